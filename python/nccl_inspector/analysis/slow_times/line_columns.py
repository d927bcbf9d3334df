# SPDX-License-Identifier: Apache-2.0
"""Time lines of a box as numpy columns: thousands of ranks have millions of windows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import Line
from nccl_inspector.summary.columns import START_S_MAX, line_head, line_planes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = tuple[int, int, int]  # communicator's id, func, size class


@dataclass(frozen=True, slots=True)
class Columns:
    """The windows of one rank's line, with times as in model.process.Line.

    `member` is the number that the caller gave the process; a process is in many communicators,
    with another rank in each.
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
    min_ns: Floats
    median_ns: Floats
    first_index: Floats
    last_index: Floats


def columns_of(line: Line, member: int) -> Columns:
    """Return a line of a node summary as columns."""
    table = np.array(line.windows, dtype=np.float64).T
    start_s, _, ops, size_bytes, busy_ns, min_ns, median_ns, first_index, last_index = table
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
        min_ns,
        median_ns,
        first_index,
        last_index,
    )


def _unfold(numbers: Ints) -> Ints:
    return (numbers >> 1) ^ -(numbers & 1)


def _column(width: int, planes: bytes, rows: int) -> Ints:
    """Return the numbers of a packed column; a number that does not fit 62 bits is refused."""
    raw = np.zeros((rows, 8), dtype=np.uint8)
    raw[:, :width] = np.frombuffer(planes, dtype=np.uint8).reshape(width, rows).T
    found: Ints = raw.view("<i8")[:, 0].astype(np.int64)
    if found.size and (found.min() < 0 or found.max() >> 62):
        raise RefusedError("bad_summary", "a number is too large")
    return found


def columns_of_packed(data: bytes, member: int) -> Columns:
    """Return `columns_of(unpack_line(data), member)`, in a tenth of the time.

    Raises:
        RefusedError: the bytes are no valid time line.
    """
    head, planes = line_head(data), line_planes(data)
    columns = [_column(width, raw, planes.rows) for width, raw in planes.columns]
    gaps, _, ops, sizes, busy_ns, min_ns, median_ns, firsts, lasts = columns
    last_place = int(gaps.max()) if gaps.max() >> 40 else int(gaps.sum()) + planes.rows - 1
    too_late = last_place * head.window_s > START_S_MAX
    if too_late or max(int(ops.max()), 1) * head.mean >> 62:
        raise RefusedError("bad_summary", "a number is too large")
    places = np.arange(planes.rows)
    with np.errstate(over="ignore"):  # an overflow gives a number below 0 or out of order
        start_s = (np.cumsum(gaps) + places) * head.window_s
        size_bytes = _unfold(sizes) + ops * head.mean
        lengths = _unfold(lasts)
        last_index = np.cumsum(_unfold(firsts) + lengths) + places + 1
    first_index = last_index - lengths
    if not ops.all() or min(size_bytes.min(), first_index.min()) < 0:
        raise RefusedError("bad_summary", "invalid time line")
    counted = (ops, size_bytes, busy_ns, min_ns, median_ns, first_index, last_index)
    return Columns(
        (head.comm_id, head.func, head.size_class), head.rank, member, head.window_s,
        head.since_s, start_s, *(column.astype(np.float64) for column in counted),
    )  # fmt: skip


def _merged(values: Floats, places: NDArray[np.intp]) -> Floats:
    """Return the sums of neighbouring windows; `places`: the first window of each sum."""
    return np.add.reduceat(values, places)


def coarsen(columns: Columns, window_s: int) -> Columns:
    """Return windows of `window_s`, a multiple of the line's own, by the rule of timeline.on_grid.

    It must be one line: several lines of one kind and rank, as of a process that came twice, do not
    work.
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
        np.minimum.reduceat(columns.min_ns, places),
        _merged(columns.median_ns * columns.ops, places) / ops,
        columns.first_index[places],
        columns.last_index[ends],
    )


def common_window_s(lengths_s: Iterable[int]) -> int:
    """Return the shortest window (s) that is a multiple of all; at most START_S_MAX + 1.

    The lengths are claims of boxes and may have an enormous common multiple.
    """
    return min(lcm(*set(lengths_s)), START_S_MAX + 1)


def coarsest_s(lines: Sequence[Columns], windows_max: int) -> int:
    """Return the window length that fits all lines and gives at most `windows_max` windows.

    A box's windows last 10 s times a power of two; for other lengths it is a multiple of all.
    """
    window_s = common_window_s(line.window_s for line in lines)
    first_s = min(int(line.start_s[0]) for line in lines)
    last_s = max(int(line.start_s[-1]) for line in lines)
    while last_s // window_s - first_s // window_s >= windows_max:
        window_s *= 2
    return window_s
