# SPDX-License-Identifier: Apache-2.0
"""The job's own figure of progress on windows, to be held against the bandwidth in them."""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.columns import Floats
from nccl_inspector.analysis.segment import Segmentation, segment_all
from nccl_inspector.analysis.series import Track
from nccl_inspector.analysis.throughput import Readings
from nccl_inspector.card.model import Period

GAP_MAX = 3.0  # times the usual distance of readings: a longer one is a gap


@dataclass(frozen=True, slots=True)
class Progress:
    """The figure in windows of one length, NaN where there is none. `start_s`: Unix time."""

    unit: str
    start_s: int
    window_s: int
    apart_s: float  # the usual distance of readings
    values: Floats

    def dip(self, period: Period) -> float | None:
        """Return the mean in a time by the median of the rest, less one; None: one is missing."""
        middles = self.start_s + (np.arange(len(self.values)) + 0.5) * self.window_s
        where = (middles >= period.start_s) & (middles < period.end_s)
        known = ~np.isnan(self.values)
        if not (where & known).any() or not (~where & known).any():
            return None
        usual = float(np.median(self.values[~where & known]))
        return float(self.values[where & known].mean()) / usual - 1


def on_windows(readings: Readings, start_s: int, window_s: int, windows: int) -> Progress:
    """Return the figure in each window.

    A reading is of the time since the one before; the first, and one after a gap, of as long as
    readings are usually apart.
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
    """Return the operations a second of a series: what is there where the output tells nothing.

    A window without any is a gap: what the job did then is not known.
    """
    values = np.where(track.ops > 0, track.ops / track.window_s, np.nan)
    window_s = track.window_s
    return Progress(f"{track.func} operations/s", track.start_s, window_s, window_s, values)


def segment_progress(progress: Progress) -> Segmentation:
    """Cut the figures; a reading that fills several windows counts once."""
    weight = min(1.0, progress.window_s / progress.apart_s) if progress.apart_s else 1.0
    (found,) = segment_all([progress.values], weight=weight)
    return found
