# SPDX-License-Identifier: Apache-2.0
"""Time lines of a box as columns of numbers: thousands of ranks have millions of windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.model import Line

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = tuple[int, int, int]  # communicator's id, func, size class


@dataclass(frozen=True, slots=True)
class Columns:
    """The windows of one rank's line, times as in model.Line.

    `member` is a process of the job, as the caller counts them: it is in many communicators, with
    another rank in each.
    """

    kind: Kind
    rank: int
    member: int
    window_s: int
    since_s: int
    start_s: Ints
    ops: Floats
    bytes: Floats
    busy_ns: Floats
    median_ns: Floats
    first_index: Floats
    last_index: Floats


def columns_of(line: Line, member: int) -> Columns:
    """Return a line of a node summary as columns."""
    table = np.array(line.windows, dtype=np.float64).T
    start_s, _, ops, size_bytes, busy_ns, _, median_ns, first_index, last_index = table
    return Columns(
        (line.comm_id, line.func, line.size_class),
        line.rank,
        member,
        line.window_s,
        line.since_s,
        start_s.astype(np.int64),
        ops,
        size_bytes,
        busy_ns,
        median_ns,
        first_index,
        last_index,
    )


def _merged(values: Floats, places: NDArray[np.intp]) -> Floats:
    """Return the sums of neighbours; `places`: where the windows of each sum begin."""
    return np.add.reduceat(values, places)


def coarsen(columns: Columns, window_s: int) -> Columns:
    """Return windows of `window_s`, a multiple of its own: the rule of timeline.on_grid.

    Several lines with one kind and rank, as of a process that came twice, are not for this.
    """
    if window_s == columns.window_s:
        return columns
    starts = columns.start_s - columns.start_s % window_s
    places = np.flatnonzero(np.diff(starts, prepend=starts[0] - 1))
    ends = np.append(places[1:], len(starts)) - 1
    ops = _merged(columns.ops, places)
    return Columns(
        columns.kind,
        columns.rank,
        columns.member,
        window_s,
        columns.since_s,
        starts[places],
        ops,
        _merged(columns.bytes, places),
        _merged(columns.busy_ns, places),
        _merged(columns.median_ns * columns.ops, places) / ops,
        columns.first_index[places],
        columns.last_index[ends],
    )


def coarsest_s(lines: Sequence[Columns], windows_max: int) -> int:
    """Return the window that all lines can be put on with at most so many from first to last.

    The windows of a box are 10 s times a power of two; of other lengths this takes a multiple.
    """
    window_s = int(np.lcm.reduce([line.window_s for line in lines]))
    first_s = min(int(line.start_s[0]) for line in lines)
    last_s = max(int(line.start_s[-1]) for line in lines)
    while last_s // window_s - first_s // window_s >= windows_max:
        window_s *= 2
    return window_s
