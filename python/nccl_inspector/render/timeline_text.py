# SPDX-License-Identifier: Apache-2.0
"""A job's time line drawn with characters, and its tracks for the charts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.card import (
    Card,
    Degradation,
    Period,
    Series,
    Throughput,
    TimeLine,
)
from nccl_inspector.model.wording import change, clock, digits, elapsed, from_to, number, percent
from nccl_inspector.render.heat import merged
from nccl_inspector.render.output_limits import Limits
from nccl_inspector.render.text_layout import Item, Paint, TextLine, bullet, paragraph

_ACROSS = 60  # with its label within 80 columns
_LINES_MAX = 3
POINTS_MIN = 3
_LARGE_CLASS = 16  # from 64 KiB on an operation has a bandwidth that means something
_STEPS_S = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_LEVELS = ((0.95, "#"), (0.85, "+"), (0.70, "-"), (0.0, "."))
_LEGEND = (
    "# from 95% of what is usual on, + 85% to 95%, - 70% to 85%, . less; ^ bandwidth found slow, "
    "w ranks waited longer"
)


@dataclass(frozen=True, slots=True)
class StripTrack:
    """A series of the time line: bandwidth or throughput."""

    name: str
    unit: str
    values: tuple[float | None, ...]
    baseline: float | None
    # When it was slow, and when its ranks waited longer; for a throughput, of all series.
    slow: tuple[Period, ...]
    waited: tuple[Period, ...]


def _baseline(values: Sequence[float | None]) -> float | None:
    """Return the 70th percentile: what the series reached while nothing was wrong."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return quantiles(known, n=10, method="inclusive")[6]


def _periods(found: Iterable[Degradation], waited: bool) -> tuple[Period, ...]:
    return tuple(one.period for one in found if one.waited_longer == waited)


def _of_series(one: Series, line: TimeLine, names: dict[str, str]) -> StripTrack:
    own = (one.transport, one.communicator, one.func, one.size_class)
    found = [
        d for d in line.degradations if (d.transport, d.communicator, d.func, d.size_class) == own
    ]
    by_time = [d.baseline_gbs for d in found if not d.waited_longer]
    baseline = by_time[0] if by_time else _baseline(one.bus_gbs)
    whose = names.get(one.communicator) or one.communicator
    name = f"{one.transport} {one.func} {size_label(one.size_class)} of {whose}"
    return StripTrack(
        name, "GB/s", one.bus_gbs, baseline, _periods(found, False), _periods(found, True)
    )


def _of_throughput(one: Throughput, line: TimeLine) -> StripTrack:
    baseline, name = _baseline(one.values), f"throughput ({one.source})"
    slow, waited = (_periods(line.degradations, waited) for waited in (False, True))
    return StripTrack(name, one.unit, one.values, baseline, slow, waited)


def _names(card: Card) -> dict[str, str]:
    """Return the names of communicators by id."""
    return {one.id: one.name for one in card.communicators}


def tracks(card: Card, shown: int) -> list[StripTrack]:
    """Return the throughput, the slow series, then the first of each transport class.

    `shown`: at most so many series besides the throughput. Series of fewer than POINTS_MIN values
    show no course and are left out. So are small operations beside large ones: their time is
    latency, and a bandwidth of it says nothing.
    """
    line, names = card.timeline, _names(card)
    slow = {(d.communicator, d.func, d.size_class) for d in line.degradations}
    large = [
        one
        for one in line.series
        if one.size_class >= _LARGE_CLASS or (one.communicator, one.func, one.size_class) in slow
    ]
    series = large or line.series
    first: dict[str, Series] = {}
    for one in series:
        first.setdefault(one.transport, one)

    def order(one: Series) -> tuple[bool, bool]:
        return (one.communicator, one.func, one.size_class) not in slow, one is not first[
            one.transport
        ]

    chosen = sorted(series, key=order)[:shown]
    found = [_of_throughput(line.throughput, line)] if line.throughput else []
    found += [_of_series(one, line, names) for one in chosen if any(one.bus_gbs)]
    return [one for one in found if _known(one.values) >= POINTS_MIN]


def _known(values: Iterable[float | None]) -> int:
    return sum(value is not None for value in values)


def _mark(value: float | None, baseline: float) -> str:
    if value is None:
        return " "
    return next((mark for level, mark in _LEVELS if value >= level * baseline), ".")


def _step_s(line: TimeLine) -> int:
    """Return the seconds of one character: a round time and a multiple of the windows' length."""
    least = line.windows * line.window_s / (_ACROSS * _LINES_MAX)
    fits = (step for step in _STEPS_S if step >= least and step % line.window_s == 0)
    return next(fits, line.window_s * max(1, -(-int(least) // line.window_s)))


def _why_slow(track: StripTrack, start_s: float, end_s: float) -> str:
    """Return the mark below a time of the strip."""
    for mark, periods in (("^", track.slow), ("w", track.waited)):
        if any(one.start_s < end_s and one.end_s > start_s for one in periods):
            return mark
    return " "


def _drawn(track: StripTrack, line: TimeLine, step_s: int) -> Iterator[Item]:
    if not track.baseline:
        return
    yield bullet(f"{track.name}, usually {digits(track.baseline)} {track.unit}")
    marks = [
        _mark(value, track.baseline) for value in merged(track.values, step_s // line.window_s)
    ]
    form = "%H:%M" if line.windows * line.window_s < 20 * 3600 else "%m-%d %H:%M"
    for at in range(0, len(marks), _ACROSS):
        start_s = line.start_s + at * step_s
        row = "".join(marks[at : at + _ACROSS])
        label = f"   {clock(start_s, form)} "
        yield TextLine(f"{label}{row}")
        found = "".join(
            _why_slow(track, start_s + n * step_s, start_s + (n + 1) * step_s)
            for n in range(len(row))
        )
        if found.strip():
            yield TextLine(" " * len(label) + found.rstrip(), Paint.WARNING)


def said_slow(one: Degradation, names: dict[str, str]) -> str:
    """Return a sentence about a degradation; `names`: of communicators by id."""
    explained = (
        f", which explains {percent(one.explained_share)} of the dip in progress"
        if one.explained_share is not None
        else ""
    )
    kind = f"{one.transport} {one.func} {size_label(one.size_class)}"
    of_kind = f"{kind} of {names.get(one.communicator) or one.communicator}"
    rates = f"{digits(one.baseline_gbs)} -> {digits(one.bus_gbs)} GB/s"
    if one.waited_longer:
        return (
            f"{from_to(one.period)}: ranks waited longer in {of_kind}: with the waiting {rates} "
            f"({change(one.depth)}){explained}"
        )
    return f"{from_to(one.period)}: {of_kind} {rates} ({change(one.depth)}){explained}"


def slow_lines(card: Card, limits: Limits) -> Iterator[str]:
    """Return a line for each degradation."""
    names = _names(card)
    found = card.timeline.degradations
    for one in found[: limits.periods]:
        yield said_slow(one, names)
    if len(found) > limits.periods:
        yield limits.more(number(len(found) - limits.periods, "slow time"))


def draw_timeline(card: Card, limits: Limits) -> list[Item]:
    """Return the section TIMELINE; none when the job has no time line."""
    line = card.timeline
    if not line.windows or not line.window_s:
        return []
    found = tracks(card, limits.series)
    if line.too_short:
        length = elapsed(line.windows * line.window_s)
        return [paragraph("TIMELINE  ", f"{length}: too short to find slow times in", Paint.TITLE)]
    if not found:
        return []
    step_s = _step_s(line)
    head = f"{elapsed(step_s)} a character from {clock(line.start_s)} UTC on"
    lines: list[Item] = [paragraph("TIMELINE  ", head, Paint.TITLE), bullet(_LEGEND)]
    for track in found:
        lines += _drawn(track, line, step_s)
    lines += map(bullet, slow_lines(card, limits))
    return lines
