# SPDX-License-Identifier: Apache-2.0
"""What was different in a period of a job: bandwidth by transport class, waiting, progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, sqrt

import numpy as np

from nccl_inspector.analysis.slow_times.degradation import JUDGED, inside
from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.slow_times.progress import Progress
from nccl_inspector.analysis.slow_times.segment import noise_of
from nccl_inspector.analysis.slow_times.series import Track
from nccl_inspector.model.card import Period
from nccl_inspector.model.transport import UNKNOWN

DOWN = -0.10  # a bandwidth this much lower is slow
ERRORS_MIN = 4.0  # in units of a series' noise, for its nodes to be named


@dataclass(frozen=True, slots=True)
class ClassChange:
    """One transport class in a period, compared with the rest of the job.

    Shares are of the wall time of its busiest process, outside of the period.
    """

    transport: str
    bandwidth: float  # relative change, by T: -0.28 is slower
    share: float  # share of the transfer
    slowed: tuple[str, ...] = ()  # nodes with a process whose series is slow


@dataclass(frozen=True, slots=True)
class Comparison:
    """All comparisons of a period; None: not known."""

    classes: tuple[ClassChange, ...]
    waiting: float | None  # share of the wall time inside, minus that outside
    operations: float | None  # relative change per second: -0.08 is less
    throughput: float | None = None  # the job's own figure
    mix: str = ""  # how the workload differed, as text; empty: it did not

    @property
    def progress(self) -> float | None:
        """The dip in progress: of the job's own figure if there is one, else of the operations."""
        return self.operations if self.throughput is None else self.throughput


def _busy_share(tracks: Sequence[Track], period: Period, within: bool) -> float:
    """Return the share of the wall time that the busiest process spends in transfer."""
    by_member: dict[int, float] = {}
    for track in tracks:
        where = inside(track, period)
        where = where if within else ~where
        length_ns = float(np.count_nonzero(where)) * track.window_s * 1e9
        busy_ns = float(np.nansum((track.ops * track.time_ns)[where]))
        for member in track.members:
            by_member[member] = by_member.get(member, 0.0) + (
                busy_ns / length_ns if length_ns else 0.0
            )
    return min(max(by_member.values(), default=0.0), 1.0)


def _ratio(track: Track, values: Floats, period: Period) -> float:
    """Return (median inside / median outside) - 1; NaN if either is missing."""
    where = inside(track, period)
    known = ~np.isnan(values)
    if not (where & known).any() or not (~where & known).any():
        return float("nan")
    return float(np.median(values[where & known]) / np.median(values[~where & known])) - 1


def _chance(track: Track, period: Period) -> float:
    """Return the share by which the median inside the period may differ by chance."""
    rates = track.bus_gbs
    count = int((~np.isnan(rates[inside(track, period)])).sum())
    return ERRORS_MIN * noise_of(np.log(rates[rates > 0])) / sqrt(max(count, 1))


def _change(
    transport: str, tracks: Sequence[Track], period: Period, nodes: Mapping[int, str]
) -> ClassChange | None:
    """Return the change of a class: the mean over its series, weighted by their time."""
    ratios = [(track, _ratio(track, track.bus_gbs, period)) for track in tracks]
    known = [(track, ratio) for track, ratio in ratios if not isnan(ratio)]
    weights = [float(np.nansum(track.ops * track.time_ns)) for track, _ in known]
    if not known or not sum(weights):
        return None
    mean = sum(ratio * weight for (_, ratio), weight in zip(known, weights, strict=True))
    slowed = {
        nodes[member]
        for track, ratio in known
        if ratio <= min(DOWN, -_chance(track, period))
        for member in track.members
        if member in nodes
    }
    share = _busy_share([track for track, _ in known], period, within=False)
    return ClassChange(transport, mean / sum(weights), share, tuple(sorted(slowed)))


def _waiting(tracks: Sequence[Track], period: Period) -> float | None:
    """Return the largest growth of the typical rank's waiting, as a share of wall time."""
    found: list[float] = []
    for track in tracks:
        where = inside(track, period)
        waits_s = track.ops * (track.typical_ns - track.time_ns) / 1e9 / track.window_s
        if where.any() and not where.all():
            found.append(float(np.nan_to_num(waits_s[where]).mean()))
            found[-1] -= float(np.nan_to_num(waits_s[~where]).mean())
    return max(found) if found else None


def compare(
    tracks: Sequence[Track],
    transports: Mapping[int, str],
    nodes: Mapping[int, str],
    period: Period,
    progress: Progress | None = None,
    mix: str = "",
) -> Comparison:
    """Compare a period with the rest of the job.

    `transports`: class by communicator's id; `nodes`: node's name by member; `mix`: how the
    workload differed (Phase.why).
    """
    judged = [track for track in tracks if track.func in JUDGED and track.factor > 0]
    by_class: dict[str, list[Track]] = {}
    for track in judged:
        by_class.setdefault(transports.get(track.kind[0], UNKNOWN), []).append(track)
    classes = [_change(name, some, period, nodes) for name, some in by_class.items()]
    rates = [_ratio(track, np.where(track.ops > 0, track.ops, np.nan), period) for track in judged]
    less = [rate for rate in rates if not isnan(rate)]
    return Comparison(
        classes=tuple(one for one in classes if one is not None),
        waiting=_waiting(judged, period),
        operations=float(np.median(less)) if less else None,
        throughput=progress.dip(period) if progress else None,
        mix=mix,
    )
