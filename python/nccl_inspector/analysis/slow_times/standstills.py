# SPDX-License-Identifier: Apache-2.0
"""Times in which a whole job stood still outside communication, from how busy its GPUs were.

Exact records cover short bursts, and none has a stop that is longer than a burst. But for each
window of the whole job it is known how many operations ended, and how long each GPU was in
operations. If few operations end and nobody waits in one, all ranks wait for something else:
storage, a service of the host, or a part of the program that does not communicate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.slow_times.union_windows import UnionWindows, on_grid
from nccl_inspector.summary.unpacked_samples import UnionColumns

_SLOW_MAX = 0.5  # share of slow windows, from which on nobody knows what is usual
_PAIR = 0.65  # share of the usual operations of two windows: a stop of 7 s is divided between them
_APART_MAX = 1  # usual windows that may lie between two slow ones of one time
_DENSE = 0.8  # share of slow windows in such a time; with fewer, the program stops and goes
_ALL_QUANTILE, _ALL_SHARE = 0.1, 0.5  # this quantile must lose this share of the median
_STEPS_MIN = 3  # windows with ended operations within the time
_ALIKE_MIN = 0.5  # share of the usual time per operation that makes it one of the same steps


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time (Unix) in which hardly any operation ended and nearly no process waited in one.

    `lost_s`: by how much the median process was outside operations longer than usual for as many.
    `lost_share`: the same as a share of the job's time. `ratio`: its time outside operations for
    each of them, compared with the usual. `steps`: the job's usual operations went on in that time,
    each of them late. Without them, a checkpoint, an evaluation or another part of the program
    looks the same.
    """

    start_s: int
    end_s: int
    lost_s: float
    lost_share: float
    ratio: float
    steps: bool


def _slow_times(low: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Yield the first and last window of each slow time, except at the job's begin and end.

    A slow time may contain a few usual windows. If slow and usual windows alternate, as in a
    program that writes for some seconds and learns for some, each slow window is a time of its own.
    """
    for some in _split(np.flatnonzero(low), _APART_MAX + 1):
        dense = len(some) >= _DENSE * (some[-1] - some[0] + 1)
        for each in [some] if dense else _split(some, 1):
            first, last = int(each[0]), int(each[-1])
            if first > 0 and last < len(low) - 1:
                yield first, last


def _split(at: NDArray[np.intp], apart: int) -> list[NDArray[np.intp]]:
    """Return ascending places in groups; within a group neighbours are at most `apart` apart."""
    return np.split(at, np.flatnonzero(np.diff(at) > apart) + 1) if len(at) else []


def find_standstills(unions: Sequence[Sequence[UnionColumns]]) -> tuple[Standstill, ...]:
    """Return the times in which a job stood still, in order.

    `unions` has those of each process. The begin and the end of a job are left out: at first data
    and caches warm up, and what the job writes at last is part of it.
    """
    windows = on_grid(unions)
    low = windows.low() if windows is not None else None
    if windows is None or low is None or low.mean() > _SLOW_MAX:
        return ()
    times = sorted([*_slow_times(low), *_halved(windows.operations.sum(axis=0), low)])
    return tuple(
        found
        for first, last in times
        if (found := _standstill(windows, low, first, last)) is not None
    )


def _halved(pooled: Floats, low: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """Yield pairs of windows between which a stop is divided, so that neither of them is slow."""
    near = np.convolve(low, [1, 1, 1], "same") > 0
    usual = float(np.median(pooled[~low]))
    at = 1
    while at < len(low) - 2:
        both = pooled[at] + pooled[at + 1]
        if not near[at] and not near[at + 1] and both < _PAIR * 2 * usual:
            yield at, at + 1
            at += 2
        at += 1


def _standstill(
    windows: UnionWindows, low: NDArray[np.bool_], first: int, last: int
) -> Standstill | None:
    """Return a slow time; None: ranks waited in operations, so it has another cause."""
    idle_s = windows.window_s - windows.busy_s
    many = windows.operations
    fair = ~low
    with np.errstate(invalid="ignore", divide="ignore"):
        each_s = idle_s[:, fair].sum(axis=1) / many[:, fair].sum(axis=1)
        in_operation = windows.busy_s[:, fair].sum(axis=1) / many[:, fair].sum(axis=1)
    # The windows next to it belong to it partly.
    there = slice(first - 1, last + 2)
    idle, done = idle_s[:, there].sum(axis=1), many[:, there].sum(axis=1)
    lost = windows.longer_s(fair)[0][:, there].sum(axis=1)
    known = np.isfinite(lost)
    if known.sum() < 2:
        return None
    middle = float(np.median(lost[known]))
    if middle <= 0 or float(np.quantile(lost[known], _ALL_QUANTILE)) < _ALL_SHARE * middle:
        return None
    due_s = np.maximum((done * each_s)[known], windows.window_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        core = slice(first, last + 1)
        alike = windows.busy_s[:, core].sum(axis=1) / many[:, core].sum(axis=1) / in_operation
    inner = many[:, first + 1 : last].sum(axis=0)
    steps = int((inner > 0).sum()) >= _STEPS_MIN and bool(np.nanmedian(alike[known]) >= _ALIKE_MIN)
    return Standstill(
        windows.start_s + first * windows.window_s,
        windows.start_s + (last + 1) * windows.window_s,
        middle,
        middle / (len(low) * windows.window_s),
        float(np.median(idle[known] / due_s)),
        steps,
    )
