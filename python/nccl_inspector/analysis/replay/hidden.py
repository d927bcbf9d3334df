# SPDX-License-Identifier: Apache-2.0
"""Operations without a record for which all ranks waited, found by what the others show.

JSON lines have no small operations, and programs synchronise by these (the norm of the gradients,
8 bytes). Without them the replay takes the waiting in them for each rank's own work, and a late
rank seems to cost nothing.

When all ranks are between two operations, such a point may lie there. It does if the gap of a rank
is shorter by as much as the rank came later: then all of them left it together.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, number_rows
from nccl_inspector.analysis.replay.records import Comm, Records
from nccl_inspector.model import FUNCS, PEER_NONE

_TIMES_MIN = 20  # that it must be seen
_COVERED = 0.9  # of the times at which a rank is at that place, those with all ranks between two
_SLOPE, _SLOPE_TOLERANCE, _SLOPE_ERROR = -1.0, 0.2, 0.05  # of the gaps against the arrivals
_SPREAD_NS_MIN = 20_000.0  # of the arrivals; clocks are aligned less exactly
_AFTER_NS, _TRANSFER_NS = 1_000, 5_000  # begin after the operation before, and time, of the found
_ORDINAL = 1 << 20
_ALL_REDUCE = FUNCS.index("AllReduce")


@dataclass(frozen=True, slots=True)
class _Points:
    """Moments at which all processes are between two operations: rows of Records by process."""

    before: Ints  # points x processes: the row of the latest end
    after: Ints
    present: Ints  # processes


def _find_points(records: Records) -> _Points | None:
    by_begin = np.argsort(records.begin, kind="stable")
    latest = np.maximum.accumulate(records.end[by_begin])
    begins = records.begin[by_begin]
    idle = np.flatnonzero(begins[1:] > latest[:-1])
    if len(idle) < _TIMES_MIN:
        return None
    moments = begins[idle + 1]
    present, first = np.unique(records.member, return_index=True)
    bounds = np.append(first, len(records))
    before = np.full((len(idle), len(present)), -1, np.int64)
    after = before.copy()
    for place in range(len(present)):
        low, high = int(bounds[place]), int(bounds[place + 1])
        next_ = np.searchsorted(records.begin[low:high], moments)
        # The row that ends last need not be the one that began last.
        ends = records.end[low:high]
        longest = ends == np.maximum.accumulate(ends)
        last = np.maximum.accumulate(np.where(longest, np.arange(low, high), low))
        inside = (next_ > 0) & (next_ < high - low)
        before[inside, place] = last[next_[inside] - 1]
        after[inside, place] = low + next_[inside]
    whole = (before >= 0).all(axis=1)
    before, after = before[whole], after[whole]
    piece = records.piece[before[:, :1]]
    same = ((records.piece[before] == piece) & (records.piece[after] == piece)).all(axis=1)
    return _Points(before[same], after[same], present) if same.sum() >= _TIMES_MIN else None


def _classes(records: Records, points: _Points) -> tuple[Ints, Ints]:
    """Return the class of each point by what all processes are between; and by row its own part.

    The second is the class of (row, the next row of its process).
    """
    sizes = np.array([comm.nranks for comm in records.comms], np.int64)
    ordinals = np.array([comm.ordinal for comm in records.comms], np.int64)
    kind = number_rows(
        sizes[records.comm], ordinals[records.comm], records.func, records.size_class,
        (records.peer != PEER_NONE).astype(np.int64),
    )  # fmt: skip
    part = kind[points.before] * (int(kind.max()) + 1) + kind[points.after]
    _, part = np.unique(part, return_inverse=True)
    part = part.reshape(points.before.shape)
    weights = np.random.default_rng(1).integers(1, 1 << 62, part.shape[1]).astype(np.uint64)
    mixed = ((part.astype(np.uint64) + np.uint64(1)) * weights).sum(axis=1, dtype=np.uint64)
    return number_rows(mixed), kind


def _is_synchronised(arrived: Floats, gap: Floats) -> bool:
    """Tell whether gaps (points x processes, ns) are shorter by as much as arrivals are later."""
    x = arrived - np.median(arrived, axis=1, keepdims=True)
    y = gap - np.median(gap, axis=1, keepdims=True)
    x, y = x - np.median(x, axis=0), y - np.median(y, axis=0)
    for_x, for_y = 8 * np.median(np.abs(x)) + 1e3, 8 * np.median(np.abs(y)) + 1e3
    used = (np.abs(x) <= for_x) & (np.abs(y) <= for_y)
    x, y = x[used], y[used]
    if len(x) < _TIMES_MIN or float(np.std(x)) < _SPREAD_NS_MIN:
        return False
    square = float((x * x).sum())
    slope = float((x * y).sum()) / square
    error = float(np.sqrt(((y - slope * x) ** 2).sum() / len(x) / square))
    return abs(slope - _SLOPE) <= _SLOPE_TOLERANCE and error <= _SLOPE_ERROR


def _hidden(records: Records, points: _Points) -> Mask:
    """Return at which points all processes left an operation together."""
    classes, kind = _classes(records, points)
    found = np.zeros(len(classes), dtype=bool)
    low = int(records.begin.min())
    for number in np.flatnonzero(np.bincount(classes) >= _TIMES_MIN).tolist():
        mine = np.flatnonzero(classes == number)
        before, after = points.before[mine], points.after[mine]
        # How often the first process is at this place at all.
        row, follower = int(before[0, 0]), int(after[0, 0])
        own = np.flatnonzero(records.member == points.present[0])
        every = np.count_nonzero((kind[own[:-1]] == kind[row]) & (kind[own[1:]] == kind[follower]))
        if len(mine) < _COVERED * every:
            continue
        arrived = (records.end[before] - low).astype(float)
        gap = (records.begin[after] - records.end[before]).astype(float)
        found[mine] = _is_synchronised(arrived, gap)
    return found


def fill_holes(records: Records) -> Records:
    """Return the records with an operation of all processes wherever they were synchronised.

    It begins where a process's operation before it ends, and ends when the last one has begun.
    What a process does before it is not told apart from what it does after it.
    """
    points = _find_points(records) if len(records) else None
    if points is None or len(points.present) < 2:
        return records
    chosen = _hidden(records, points)
    if not chosen.any():
        return records
    before = points.before[chosen]
    times, many = before.shape
    begin = records.end[before] + _AFTER_NS
    end = np.repeat(begin.max(axis=1) + _TRANSFER_NS, many).reshape(times, many)
    end = np.minimum(end, records.begin[points.after[chosen]].min(axis=1, keepdims=True) - 1)
    begin = np.minimum(begin, end - 1)
    members = tuple(points.present.tolist())
    comm = Comm(0, "", many, 2, _ORDINAL, members)
    number = np.repeat(np.arange(1, times + 1), many)
    rows = {
        "member": np.tile(points.present, times),
        "comm": np.full(times * many, len(records.comms)),
        "func": np.full(times * many, _ALL_REDUCE),
        "size_class": np.zeros(times * many, np.int64),
        "number": number,
        "peer": np.full(times * many, PEER_NONE),
        "bytes": np.ones(times * many, np.int64),
        "begin": begin.ravel(),
        "end": end.ravel(),
        "queued": np.zeros(times * many, np.int64),
        "joined": int(records.joined.max()) + number,
        "piece": records.piece[before].ravel(),
        "shift": records.shift[before].ravel(),
    }
    both = {name: np.concatenate((getattr(records, name), rows[name])) for name in rows}
    order = np.lexsort((both["end"], both["begin"], both["member"]))
    columns: dict[str, Any] = {name: column[order] for name, column in both.items()}
    return replace(records, comms=(*records.comms, comm), **columns)
