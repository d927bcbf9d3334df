# SPDX-License-Identifier: Apache-2.0
"""The geometry of the page's charts; templates/charts.html.j2 draws them.

A plot is stretched to the available width, so it contains no text: labels are beside it.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.card import Card, Operations, Period, TimeLine
from nccl_inspector.model.wording import bandwidth, change, clock, duration, elapsed, percent
from nccl_inspector.render.heat import bound_heat, merged
from nccl_inspector.render.output_limits import Limits
from nccl_inspector.render.timeline_text import StripTrack, tracks

WIDTH, HEIGHT = 1000, 100  # size of a plot, in its own units
_POINTS_MAX = 400
_HEAT_ROWS, _HEAT_COLUMNS = 40, 96
_LEVELS = 6
_CALM_NS = 200e3  # a map of mere noise should look calm
_BARS = 12
_TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
_TICKS_MAX = 6
_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the time axis; `left` in percent of the width."""

    left: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A line over time; the coordinates are of WIDTH and HEIGHT."""

    name: str
    unit: str
    low: str
    high: str
    paths: tuple[tuple[str, ...], ...]  # points of a polyline, for each stretch without a gap
    baseline_y: float | None
    bands: tuple[tuple[float, float], ...]  # x and width of slow times
    waits: tuple[tuple[float, float], ...]  # of times in which ranks waited longer


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Processes in rows, windows in columns; neighbouring cells of one level are one rectangle."""

    names: tuple[str, ...]
    columns: int
    cells: tuple[tuple[float, int, float, int], ...]  # x, row, width in columns, level
    legend: tuple[tuple[int, str], ...]  # level, and the lateness from which on it is used
    left_out: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar; widths and places are in percent of the longest."""

    name: str
    about: str
    share: float
    words: str
    expected: float | None = None
    baseline: float | None = None


def ticks(line: TimeLine) -> list[Tick]:
    """Return at most _TICKS_MAX labels at round times."""
    length_s = line.windows * line.window_s
    if not length_s:
        return []
    steps = (*_TICK_STEPS_S, *(_DAY_S * days for days in (1, 2, 7, 30, 365)))
    step_s = next((s for s in steps if length_s / s < _TICKS_MAX), length_s)
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if length_s <= _DAY_S else "%m-%d %H:%M"
    first_s = -(-line.start_s // step_s) * step_s
    return [
        Tick(round(100 * (at_s - line.start_s) / length_s, 2), clock(at_s, form))
        for at_s in range(first_s, line.start_s + length_s + 1, step_s)
    ]


def _scale(values: Sequence[float], baseline: float | None) -> tuple[float, float]:
    """Return the ends of the axis: from 0 on, except for a series that stays in its upper part."""
    high = min(max(*values, baseline or 0.0, 0.0) * 1.05, sys.float_info.max) or 1.0
    return next((part * high for part in (0.8, 0.5) if min(values) > part * high), 0.0), high


def _height(value: float, low: float, high: float) -> float:
    """Return the place of a value on the axis, from the top; what is outside is put at its edge."""
    return HEIGHT * min(max((high - value) / (high - low), 0.0), 1.0)


def _paths(values: Sequence[float | None], low: float, high: float) -> Iterator[tuple[str, ...]]:
    """Yield the points of each stretch without a gap; a single point becomes a short line."""
    step = WIDTH / max(1, len(values))
    points: list[str] = []
    for at, value in enumerate((*values, None)):
        if value is not None:
            points.append(f"{(at + 0.5) * step:.1f},{_height(value, low, high):.1f}")
        elif points:
            if len(points) == 1:
                x, _, y_text = points[0].partition(",")
                points.append(f"{float(x) + step / 2:.1f},{y_text}")
            yield tuple(points)
            points = []


def _apart(periods: Iterable[Period]) -> list[tuple[float, float]]:
    """Return start and end of the times that the periods cover; overlapping periods are merged."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((one.start_s, max(one.start_s, one.end_s)) for one in periods):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _bands(periods: Iterable[Period], line: TimeLine) -> tuple[tuple[float, float], ...]:
    """Return x and width of the times that the periods cover."""
    length_s = line.windows * line.window_s
    return tuple(
        (
            round(WIDTH * (start - line.start_s) / length_s, 1),
            round(WIDTH * (end - start) / length_s, 1),
        )
        for start, end in _apart(periods)
    )


def _plot(track: StripTrack, line: TimeLine) -> Plot:
    values = merged(track.values, max(1, -(-len(track.values) // _POINTS_MAX)))
    known = [value for value in values if value is not None]
    low, high = _scale(known or [0.0], track.baseline)
    baseline_y = _height(track.baseline, low, high) if track.baseline else None
    return Plot(
        track.name,
        track.unit,
        f"{bandwidth(low)} (not 0)" if low else "0",
        bandwidth(high),
        tuple(_paths(values, low, high)),
        None if baseline_y is None else round(baseline_y, 1),
        _bands(track.slow, line),
        _bands(track.waited, line),
    )


def plots(card: Card, limits: Limits) -> list[Plot]:
    """Return the throughput and the bandwidth of the series, each with a scale of its own."""
    line = card.timeline
    if not line.windows or not line.window_s:
        return []
    return [_plot(track, line) for track in tracks(card, limits.series)]


def _runs(levels: Sequence[int | None]) -> Iterator[tuple[int, int, int]]:
    """Yield place, length and level of the runs of one level; gaps are left out."""
    start = 0
    for at in range(1, len(levels) + 1):
        if at == len(levels) or levels[at] != levels[start]:
            level = levels[start]
            if level is not None:
                yield start, at - start, level
            start = at


def heat_map(card: Card) -> HeatMap | None:
    """Return the map of the latest processes; None: no lateness is known."""
    rows = bound_heat(card.heat, _HEAT_ROWS, _HEAT_COLUMNS)
    known = [value for _, values in rows for value in values if value is not None]
    if not known:
        return None
    most = max(*known, _CALM_NS)

    def level(value: float | None) -> int | None:
        return None if value is None else min(_LEVELS - 1, max(0, int(_LEVELS * value / most)))

    cells = tuple(
        (float(x), row, float(width), found)
        for row, (_, values) in enumerate(rows)
        for x, width, found in _runs([level(value) for value in values])
    )
    columns = max(len(values) for _, values in rows)
    legend = tuple(
        (at, duration(most * at / _LEVELS) if at else f"under {duration(most / _LEVELS)}")
        for at in range(_LEVELS)
    )
    names = tuple(name for name, _ in rows)
    return HeatMap(names, columns, cells, legend, len(card.heat) - len(rows))


def _waiting(found: Sequence[Operations]) -> float | None:
    """Return the share of waiting over all kinds, each weighted by its time; None: not known."""
    shares = [
        (one.waiting_share, one.count * one.time_ns / max(1e-3, 1 - one.waiting_share))
        for one in found
        if one.waiting_share is not None
    ]
    whole = sum(weight for _, weight in shares)
    return sum(share * weight for share, weight in shares) / whole if whole else None


def waiting_bars(card: Card) -> list[Bar]:
    """Return the share of waiting of the communicators, the largest first."""
    by_id: dict[str, list[Operations]] = {}
    for one in card.operations:
        by_id.setdefault(one.communicator, []).append(one)
    found = [(_waiting(by_id.get(one.id, [])), one) for one in card.communicators]
    known = sorted(
        ((share, one) for share, one in found if share is not None), key=lambda pair: -pair[0]
    )
    return [
        Bar(
            one.name or one.id,
            f"{one.transport}, {one.nranks:,} ranks",
            100 * share,
            percent(share),
        )
        for share, one in known[:_BARS]
    ]


def _said_bandwidth(one: Operations) -> str:
    words = [f"{bandwidth(one.bus_gbs)} GB/s"]
    if one.expected_gbs and one.bus_gbs:
        words.append(f"{percent(one.bus_gbs / one.expected_gbs)} of expected")
    if one.baseline_delta is not None:
        words.append(f"{change(one.baseline_delta)} against baseline")
    return ", ".join(words)


def bandwidth_bars(card: Card) -> list[Bar]:
    """Return the bus bandwidth of the kinds of operation that took longest."""
    known = [one for one in card.operations if (one.bus_gbs or 0) > 0]
    longest = sorted(known, key=lambda one: -one.count * one.time_ns)[:_BARS]
    names = {one.id: one.name for one in card.communicators}
    shown: list[tuple[Operations, float, float | None, float | None]] = []
    for one in longest:
        delta = one.baseline_delta
        usual = (one.bus_gbs or 0) / (1 + delta) if delta is not None and delta > -1 else None
        shown.append((one, one.bus_gbs or 0, one.expected_gbs, usual))
    most = max((max(own, ceiling or 0, usual or 0) for _, own, ceiling, usual in shown), default=1)
    return [
        Bar(
            f"{one.func} {size_label(one.size_class)}",
            names.get(one.communicator) or one.communicator,
            100 * own / most,
            _said_bandwidth(one),
            100 * ceiling / most if ceiling else None,
            100 * usual / most if usual else None,
        )
        for one, own, ceiling, usual in shown
    ]


def length_words(card: Card) -> str:
    """Return the length of the time line and of its windows, as text."""
    line = card.timeline
    return f"{elapsed(line.windows * line.window_s)}, windows of {elapsed(line.window_s)}"
