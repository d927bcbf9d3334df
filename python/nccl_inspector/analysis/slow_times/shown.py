# SPDX-License-Identifier: Apache-2.0
"""Choose the series that a report card shows, and put them on one grid."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.degradation import JudgedSeries
from nccl_inspector.analysis.slow_times.line_columns import Floats, common_window_s
from nccl_inspector.analysis.slow_times.progress import Progress
from nccl_inspector.analysis.slow_times.series import WINDOWS_MAX, Track
from nccl_inspector.model.card import Series, Throughput, TimeLine
from nccl_inspector.model.transport import UNKNOWN

SHOWN_MAX = 16


def choose(
    tracks: Sequence[Track], transports: Mapping[int, str], judged: JudgedSeries
) -> list[Track]:
    """Return the series to show: the busiest of each class, then slow ones, then the busiest."""
    slow = sorted(judged.slows, key=lambda one: -one.lost_s)
    busiest: dict[str, Track] = {}
    for track in tracks:
        if track.factor > 0:
            busiest.setdefault(transports.get(track.kind[0], UNKNOWN), track)
    wanted = [*busiest.values(), *(one.track for one in slow), *tracks]
    return list({track.kind: track for track in wanted if track.factor > 0}.values())[:SHOWN_MAX]


def _numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(None if isnan(value) else float(value) for value in values)


@dataclass(frozen=True, slots=True)
class _ShownGrid:
    """The windows that are shown."""

    start_s: int
    window_s: int
    windows: int

    def places(self, start_s: int, window_s: int, count: int) -> NDArray[np.intp]:
        """Return in which of these windows `count` other windows lie; some may be outside."""
        begins = start_s + np.arange(count, dtype=np.int64) * window_s
        return ((begins - self.start_s) // self.window_s).astype(np.intp)

    def means(self, values: Floats, weights: Floats, places: NDArray[np.intp]) -> Floats:
        """Return weighted means for each window, NaN without values."""
        known = ~np.isnan(values) & (weights > 0) & (places >= 0) & (places < self.windows)
        found: Floats = np.full(self.windows, np.nan)
        sums, counts = np.zeros((2, self.windows))
        np.add.at(sums, places[known], (values * weights)[known])
        np.add.at(counts, places[known], weights[known])
        np.divide(sums, counts, out=found, where=counts > 0)
        return found


def _grid(tracks: Sequence[Track]) -> _ShownGrid:
    window_s = common_window_s(track.window_s for track in tracks)
    first_s = min(track.start_s for track in tracks)
    last_s = max(track.start_s + track.windows * track.window_s for track in tracks)
    while last_s // window_s - first_s // window_s >= WINDOWS_MAX:
        window_s *= 2
    start_s = first_s - first_s % window_s
    return _ShownGrid(start_s, window_s, -(-(last_s - start_s) // window_s))


def _series(track: Track, transport: str, grid: _ShownGrid) -> Series:
    places = grid.places(track.start_s, track.window_s, track.windows)
    counts = np.bincount(places, weights=track.ops, minlength=grid.windows)
    comm_id, _, size_class = track.kind
    return Series(
        transport,
        hex(comm_id),
        track.func,
        size_class,
        _numbers(grid.means(track.bus_gbs, track.ops, places)),
        tuple(int(count) for count in counts),
    )


def _throughput(progress: Progress, source: str, grid: _ShownGrid) -> Throughput:
    places = grid.places(progress.start_s, progress.window_s, len(progress.values))
    means = grid.means(progress.values, np.ones(len(places)), places)
    return Throughput(progress.unit, source, _numbers(means))


def show(
    tracks: Sequence[Track],
    transports: Mapping[int, str],
    judged: JudgedSeries,
    progress: Progress | None = None,
    source: str = "stdout",
) -> TimeLine:
    """Return the time line of a card; `progress` (`on_windows`) is cut to its time."""
    shown = choose(tracks, transports, judged)
    if not shown:
        return TimeLine(too_short=True)
    grid = _grid(shown)
    series = [_series(one, transports.get(one.kind[0], UNKNOWN), grid) for one in shown]
    return TimeLine(
        window_s=grid.window_s,
        start_s=grid.start_s,
        windows=grid.windows,
        series=tuple(series),
        throughput=_throughput(progress, source, grid) if progress else None,
        degradations=judged.degradations,
        too_short=not judged.judged,
    )
