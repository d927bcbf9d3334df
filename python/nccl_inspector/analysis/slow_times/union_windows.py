# SPDX-License-Identifier: Apache-2.0
"""How busy the GPUs of a job were, window by window, as tables of processes x windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.box.layout import UNION_WINDOWS
from nccl_inspector.model.process import NS_PER_S
from nccl_inspector.summary.unpacked_samples import UnionColumns

_LOW = 0.5  # a window is slow below this share of the usual operations
_WHOLE_LIFE = 0.9  # share of the job that a process must have windows of
_WINDOWS_MIN, _WINDOWS_MAX = 16, 2 * UNION_WINDOWS


@dataclass(frozen=True, slots=True)
class UnionWindows:
    """Tables of processes x windows: operations that ended, and seconds inside operations.

    `places`: of the processes, among those that were asked for.
    """

    start_s: int
    window_s: int
    operations: Floats
    busy_s: Floats
    places: NDArray[np.intp]

    def low(self) -> NDArray[np.bool_] | None:
        """Tell in which windows few operations ended; None: in too many to know what is usual."""
        pooled = self.operations.sum(axis=0)
        usual = float(np.median(pooled[pooled > 0])) if (pooled > 0).any() else 0.0
        found = pooled < _LOW * usual
        return found if usual else None

    def longer_s(self, fair: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return for how much longer processes were outside and inside operations than usual.

        Usual is what as many operations took in the `fair` windows. In seconds, by window; NaN if a
        process had none there.
        """
        idle_s = self.window_s - self.busy_s
        many = self.operations[:, fair]
        seen = (many > 0).any(axis=1)
        outside, inside = np.full((2, len(many), 1), np.nan)
        for found, some in ((outside, idle_s), (inside, self.busy_s)):
            each = np.where(many > 0, some[:, fair] / np.maximum(many, 1), np.nan)
            found[seen] = np.nanmedian(each[seen], axis=1, keepdims=True)
        return idle_s - self.operations * outside, self.busy_s - self.operations * inside


def on_grid(unions: Sequence[Sequence[UnionColumns]]) -> UnionWindows | None:
    """Return the windows of processes that have them for nearly all of the job; None: too few."""
    there = [[one for one in some if len(one.start_s)] for some in unions]
    places = np.flatnonzero([bool(some) for some in there])
    used = [there[place] for place in places.tolist()]
    if len(used) < 2:
        return None
    window_s = max(one.window_s for some in used for one in some)
    firsts = np.array([min(int(one.start_s[0]) for one in some) for some in used]) // window_s
    lasts = np.array([max(int(one.start_s[-1]) for one in some) for some in used]) // window_s
    first, count = int(np.median(firsts)), int(np.median(lasts)) - int(np.median(firsts)) + 1
    if not _WINDOWS_MIN <= count <= _WINDOWS_MAX:
        return None
    operations, busy_s = np.zeros((len(used), count)), np.zeros((len(used), count))
    for place, some in enumerate(used):
        for one in some:
            at = one.start_s // window_s - first
            inside = (at >= 0) & (at < count)
            operations[place] += np.bincount(at[inside], one.operations[inside], count)
            busy_s[place] += np.bincount(at[inside], one.busy_ns[inside] / NS_PER_S, count)
    whole = np.minimum(lasts, first + count - 1) - np.maximum(firsts, first)
    kept = whole >= _WHOLE_LIFE * (count - 1)
    if kept.sum() < 2:
        return None
    busy_s = np.minimum(busy_s[kept], float(window_s))
    return UnionWindows(first * window_s, window_s, operations[kept], busy_s, places[kept])
