# SPDX-License-Identifier: Apache-2.0
"""The job's own throughput on windows, to be compared with the bandwidth in them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.slow_times.segment import Segmentation, segment_all
from nccl_inspector.analysis.slow_times.series import Track
from nccl_inspector.analysis.slow_times.throughput import Readings
from nccl_inspector.model.card import Period

GAP_MAX = 3.0  # times the usual distance of readings; a longer distance is a gap
_AGAIN_TIMES = 3  # so many similar falls at other times make a fall part of the program
_ERRORS = 3.0  # standard errors of the mean of the readings; a dip within these is chance


@dataclass(frozen=True, slots=True)
class Progress:
    """The throughput in windows of one length, NaN without a value; `start_s` is Unix time."""

    unit: str
    start_s: int
    window_s: int
    apart_s: float  # the usual distance of readings, s
    values: Floats

    def dip(self, period: Period) -> float | None:
        """Return (mean in the period / median of the rest) - 1; None if one of them is missing."""
        where = self._within(period)
        known = ~np.isnan(self.values)
        if not (where & known).any() or not (~where & known).any():
            return None
        usual = float(np.median(self.values[~where & known]))
        return float(self.values[where & known].mean()) / usual - 1

    def stands_out(self, period: Period) -> bool:
        """Tell whether the throughput in a period is lower than it also is now and then.

        It does not stand out if it falls by half as much, for half as long, three or more times
        elsewhere, or if the mean of as many readings varies by as much as the dip.
        """
        known = ~np.isnan(self.values)
        there = self._within(period) & known
        others = self.values[known & ~there]
        if not there.any() or not len(others):
            return False
        mean, usual = float(self.values[there].mean()), float(np.median(others))
        low = known & (self.values <= (mean + usual) / 2)
        long_ = max(int((low & there).sum()) / 2, 1)
        again = sum(length >= long_ for length in _lengths(low & ~there))
        readings = max(float(there.sum()) * self.weight, 1.0)
        chance = _ERRORS * float(others.std()) / np.sqrt(readings)
        return again < _AGAIN_TIMES and usual - mean > chance

    def is_at_start(self, period: Period) -> bool:
        """Tell whether the period begins with the first value, when data and compilers warm up."""
        known = np.flatnonzero(self.values > 0)
        return period.start_s <= self.start_s + int(known[0]) * self.window_s

    def is_at_end(self, period: Period) -> bool:
        """Tell whether the period lasts until the last value; it may be another phase."""
        known = np.flatnonzero(self.values > 0)
        return period.end_s > self.start_s + int(known[-1]) * self.window_s

    @property
    def weight(self) -> float:
        """How much of a reading each window is; a reading that fills several counts once."""
        return min(1.0, self.window_s / self.apart_s) if self.apart_s else 1.0

    def _within(self, period: Period) -> NDArray[np.bool_]:
        middles = self.start_s + (np.arange(len(self.values)) + 0.5) * self.window_s
        found: NDArray[np.bool_] = (middles >= period.start_s) & (middles < period.end_s)
        return found


def _lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Return the length of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    found: list[int] = (edges[1::2] - edges[::2]).tolist()
    return found


def on_windows(readings: Readings, start_s: int, window_s: int, windows: int) -> Progress:
    """Return the throughput in each window.

    A reading is for the time since the one before. The first reading, and one after a gap, is for
    the usual distance of readings.
    """
    values = _values(readings, start_s, window_s, windows)
    return Progress(readings.unit, start_s, window_s, readings.apart_s, values)


def _values(readings: Readings, start_s: int, window_s: int, windows: int) -> Floats:
    found = np.full(windows, np.nan)
    if not readings.found:
        return found
    times = np.array([one.time_s for one in readings.found])
    values = np.array([one.value for one in readings.found])
    apart_s = readings.apart_s
    if apart_s < window_s:
        places = ((times - start_s) // window_s).astype(int)
        for place in np.unique(places[(places >= 0) & (places < windows)]):
            found[place] = np.median(values[places == place])
        return found
    middles = start_s + (np.arange(windows) + 0.5) * window_s
    next_ = np.searchsorted(times, middles)
    lasts = np.minimum(next_, len(times) - 1)
    before = np.where(lasts > 0, times[lasts - 1], -np.inf)
    since = np.where(times[lasts] - before <= GAP_MAX * apart_s, before, times[lasts] - apart_s)
    known = (next_ < len(times)) & (middles >= since)
    found[known] = values[lasts[known]]
    return found


def progress_of(track: Track) -> Progress:
    """Return the operations per second of a series, for a job whose output has no throughput.

    A window without operations is a gap: what the job did in it is not known.
    """
    values = np.where(track.ops > 0, track.ops / track.window_s, np.nan)
    window_s = track.window_s
    return Progress(f"{track.func} operations/s", track.start_s, window_s, window_s, values)


def segment_progress(progress: Progress) -> Segmentation:
    """Cut the throughput into pieces; a reading that fills several windows counts once."""
    (found,) = segment_all([progress.values], weight=progress.weight)
    return found
