# SPDX-License-Identifier: Apache-2.0
"""When something was slow: the dips of all series of a job, told apart by two numbers.

If T became longer and the waiting did not change, the transport was slow. If the waiting grew and T
did not change, there was a straggler. If the mix or the sizes of operations changed too, it was
another phase of the workload.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_inspector.analysis.replay.arrays import Mask
from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.slow_times.segment import (
    DEPTH_MIN,
    VALUES_MIN,
    Dip,
    Segmentation,
    segment_all,
)
from nccl_inspector.analysis.slow_times.series import Track
from nccl_inspector.analysis.straggler.lateness import LATE_NS_MIN, LATE_SHARE_MIN, SYNCHRONISING
from nccl_inspector.model.card import CRITICAL, INFO, WARNING, Degradation, Period, Severity
from nccl_inspector.model.transport import UNKNOWN

TRANSPORT, STRAGGLER, BOTH, FLAT = "transport", "straggler", "both", "flat"
# In other functions a rank may end before the last has come, or T is not the transfer.
JUDGED = SYNCHRONISING | {"AlltoAll"}
TRACKS_MAX = 1024  # the busiest are judged; that takes about a second
MIX_MAX = 0.25  # the most by which operations of other kinds may change
MIX_OPS_MIN = 30.0  # expected operations; with fewer, their number means nothing
SIZE_MAX = 0.05  # the most by which the mean size may differ
COMMON_MIN = 0.5  # overlap, as a share of the longer of two periods, that makes them one

# Severity by the share of the job's time that it cost. Among the many series of a healthy job, some
# minute is slow by chance: 15 % of jobs with 40 series have one, but none costs 0.05 %.
WARNING_SHARE, CRITICAL_SHARE = 0.001, 0.5


@dataclass(frozen=True, slots=True)
class SlowSeries:
    """A period in which one series was slow; `lost_s`: what each member lost at most."""

    track: Track
    transport: str
    kind: str
    period: Period
    depth: float
    baseline_gbs: float
    bus_gbs: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A period in which one series was slow because the workload differed; `why` says how."""

    track: Track
    transport: str
    period: Period
    why: str


@dataclass(frozen=True, slots=True)
class JudgedSeries:
    """The results for all series of a job."""

    degradations: tuple[Degradation, ...] = ()  # the most expensive first
    slows: tuple[SlowSeries, ...] = ()
    phases: tuple[Phase, ...] = ()
    judged: int = 0  # number of series
    too_short: int = 0
    not_judged: int = 0  # of functions in which ranks do not all wait, or beyond TRACKS_MAX


@dataclass(frozen=True, slots=True)
class _AllSeries:
    """What is known of all series while one is judged."""

    transports: Mapping[int, str]
    of_member: dict[int, list[Track]] = field(default_factory=lambda: defaultdict(list))


def inside(track: Track, period: Period) -> Mask:
    """Return a mask of the windows whose middle is in the period."""
    middles = track.start_s + (np.arange(track.windows) + 0.5) * track.window_s
    found: Mask = (middles >= period.start_s) & (middles < period.end_s)
    return found


def _mean(values: Floats, weights: Floats, where: Mask) -> float:
    """Return the weighted mean over windows that have a value and a weight; NaN without any."""
    where = where & (weights > 0) & ~np.isnan(values)
    total = float(weights[where].sum())
    return float((values[where] * weights[where]).sum()) / total if total else float("nan")


def two_numbers(track: Track, slow: Mask, other: Mask) -> str:
    """Return what the windows `slow` suffer from, compared with the windows `other`.

    The waiting is that of the typical rank, because the longest is that of the rank that came
    first. It contains the spread of T, which grows with T; that growth does not count as waiting.
    """
    rates, waits = track.bus_gbs, track.typical_ns - track.time_ns
    was, now = _mean(rates, track.ops, other), _mean(rates, track.ops, slow)
    waited, waits_now = _mean(waits, track.ops, other), _mean(waits, track.ops, slow)
    least_ns = max(LATE_NS_MIN, LATE_SHARE_MIN * _mean(track.time_ns, track.ops, other))
    longer = now <= (1 - DEPTH_MIN) * was
    usual_ns = waited * max(1.0, was / now) if now > 0 else waited
    later = waits_now - usual_ns >= least_ns
    return {(True, True): BOTH, (True, False): TRANSPORT, (False, True): STRAGGLER}.get(
        (longer, later), FLAT
    )


def _rate(track: Track, where: Mask) -> float:
    """Return the operations per window."""
    count = np.count_nonzero(where)
    return float(track.ops[where].sum()) / count if count else 0.0


def _another_workload(track: Track, period: Period, other: Mask, job: _AllSeries) -> str:
    """Return how the workload differed, as text; empty if it did not."""
    slow = inside(track, period)
    sizes = track.bytes / np.maximum(track.ops, 1)
    was, now = _mean(sizes, track.ops, other), _mean(sizes, track.ops, slow)
    if abs(now / was - 1) > SIZE_MAX:
        return f"operations of {now / was - 1:+.0%} bytes"
    usual = _rate(track, other)
    expected = _rate(track, slow) / usual if usual else 1.0
    for sibling in job.of_member[track.members[0]]:
        if sibling is track or sibling.since_s > track.start_s + track.window_s:
            continue  # it is followed only from later on; what was before is not known
        within = inside(sibling, period)
        windows = (period.end_s - period.start_s) / sibling.window_s
        count = _rate(sibling, ~within) * expected * windows
        seen = float(sibling.ops[within].sum())
        if max(count, seen) >= MIX_OPS_MIN and abs(seen - count) > MIX_MAX * max(count, seen):
            return f"{seen:.0f} {sibling.func} where {count:.0f} would be usual"
    return ""


def _lost_s(track: Track, slow: Mask, times_ns: Floats, baseline_gbs: float) -> float:
    """Return by how many seconds the operations took longer than at the baseline."""
    usual_ns = track.bytes * track.factor / baseline_gbs
    longer = (track.ops * times_ns - usual_ns)[slow & (track.ops > 0)]
    return max(float(np.nansum(longer)) / 1e9, 0.0)


def _period(track: Track, first: int, end: int) -> Period:
    return Period(track.start_s + first * track.window_s, track.start_s + end * track.window_s)


def _mask(track: Track, dips: Iterable[Dip]) -> Mask:
    found = np.zeros(track.windows, dtype=bool)
    for dip in dips:
        found[dip.first : dip.end] = True
    return found


def _find(
    track: Track, by_time: Segmentation, by_feel: Segmentation, job: _AllSeries
) -> Iterator[SlowSeries | Phase]:
    """Yield the periods in which a series was slow, by T and by what the typical rank felt."""
    transport = job.transports.get(track.kind[0], UNKNOWN)
    other = ~_mask(track, (*by_time.dips, *by_feel.dips))
    seen = np.zeros(track.windows, dtype=bool)
    for cut, dip in [(by_time, one) for one in by_time.dips] + [
        (by_feel, one) for one in by_feel.dips
    ]:
        slow = _mask(track, [dip])
        kind = two_numbers(track, slow, other)
        if cut is by_time:
            kind = BOTH if kind == BOTH else TRANSPORT
        # A dip that the transport explains is felt as well; it must not count twice.
        elif kind not in (STRAGGLER, BOTH) or (slow & seen).sum() >= COMMON_MIN * slow.sum():
            continue
        else:
            kind = STRAGGLER  # the waiting is in its figures
        seen |= slow
        period = _period(track, dip.first, dip.end)
        if why := _another_workload(track, period, other, job):
            yield Phase(track, transport, period, why)
            continue
        times_ns = track.time_ns if cut is by_time else track.typical_ns
        lost_s = _lost_s(track, slow, times_ns, cut.baseline)
        yield SlowSeries(track, transport, kind, period, dip.depth, cut.baseline, dip.level, lost_s)


def _is_one(a: Period, b: Period) -> bool:
    common = min(a.end_s, b.end_s) - max(a.start_s, b.start_s)
    return common >= COMMON_MIN * max(a.end_s - a.start_s, b.end_s - b.start_s)


def _groups(slows: Iterable[SlowSeries]) -> list[list[SlowSeries]]:
    """Return groups of slow periods of one transport class and time, the most costly first."""
    found: list[list[SlowSeries]] = []
    for slow in sorted(slows, key=lambda one: (-one.lost_s, one.period.start_s, one.track.kind)):
        for group in found:
            same = (group[0].transport, group[0].kind) == (slow.transport, slow.kind)
            if same and _is_one(group[0].period, slow.period):
                group.append(slow)
                break
        else:
            found.append([slow])
    return found


def _degradation(group: Sequence[SlowSeries], wall_s: float) -> Degradation:
    leader = group[0]
    lost: dict[int, float] = defaultdict(float)
    for slow in group:
        for member in slow.track.members:
            lost[member] += slow.lost_s
    cost_s = min(max(lost.values()), leader.period.end_s - leader.period.start_s)
    comm_id, _, size_class = leader.track.kind
    return Degradation(
        period=leader.period,
        transport=leader.transport,
        communicator=hex(comm_id),
        func=leader.track.func,
        size_class=size_class,
        depth=leader.depth,
        baseline_gbs=leader.baseline_gbs,
        bus_gbs=leader.bus_gbs,
        kind=leader.kind,
        communicators=tuple(dict.fromkeys(hex(slow.track.kind[0]) for slow in group)),
        cost_s=cost_s,
        cost_share=cost_s / wall_s if wall_s > 0 else None,
    )


def severity_of(degradation: Degradation) -> Severity:
    """Return the severity by the share of the job's time that it cost."""
    share = degradation.cost_share or 0.0
    return CRITICAL if share >= CRITICAL_SHARE else WARNING if share >= WARNING_SHARE else INFO


def find_degradations(
    tracks: Sequence[Track], transports: Mapping[int, str], wall_s: float
) -> JudgedSeries:
    """Judge all series of a job; `tracks` have the busiest first (`make_tracks`).

    `transports`: class by communicator's id; `wall_s`: how long the job ran.
    """
    job = _AllSeries(transports)
    for track in tracks:
        for member in track.members:
            job.of_member[member].append(track)
    judged = [track for track in tracks if track.func in JUDGED and track.factor > 0][:TRACKS_MAX]
    looked_at = max(sum(int(np.count_nonzero(one.ops)) for one in judged), VALUES_MIN)
    series = [track.bus_gbs for track in judged] + [track.felt_gbs for track in judged]
    cuts = segment_all(series, looked_at=looked_at)
    by_time, by_feel = cuts[: len(judged)], cuts[len(judged) :]
    found = [
        one for each in zip(judged, by_time, by_feel, strict=True) for one in _find(*each, job)
    ]
    short = sum(cut.too_short for cut in by_time)
    slows = [one for one in found if isinstance(one, SlowSeries)]
    degradations = [_degradation(group, wall_s) for group in _groups(slows)]
    return JudgedSeries(
        degradations=tuple(sorted(degradations, key=lambda one: -(one.cost_s or 0.0))),
        slows=tuple(slows),
        phases=tuple(one for one in found if isinstance(one, Phase)),
        judged=len(judged) - short,
        too_short=short,
        not_judged=len(tracks) - len(judged),
    )
