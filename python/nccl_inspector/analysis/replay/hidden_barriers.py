# SPDX-License-Identifier: Apache-2.0
"""Find points at which all ranks waited without leaving a record, from the records around them.

A barrier of another library (MPI, Gloo, a scheduler on the host) leaves no record. JSON lines lack
the small operations by which programs synchronise (the norm of the gradients, 8 bytes). Without
these points the replay takes the waiting there for each rank's own work, and a process that makes
the others wait seems to cost nothing.

Such a point may lie wherever all ranks are between two operations. It does if a rank's gap is
shorter by as much as the rank came later, because then all of them left the point together.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, medians, number_rows
from nccl_inspector.analysis.replay.kernels import kernels, streams
from nccl_inspector.analysis.replay.pattern import positions
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.analysis.replay.stages import comm_classes, stages
from nccl_inspector.model.process import FUNCS, PEER_NONE

_TIMES_MIN = 6  # times that a point must be seen
_TOLD_MIN = 5  # of these, by each process
_COVERED = 0.5  # share of the times at which a rank is at that place
_MOST = 0.95  # share of the points, and of the processes, for which a rule must hold
_FAR = 8.0  # times the usual shortest gap: a pause, or the end of a burst
_SLOPE, _SLOPE_TOLERANCE, _SLOPE_ERROR = 1.0, 0.3, 0.15  # slope of gaps against how early one came
_PAUSE = 10.0  # a deviation of more than this many times the usual is a pause
_CLEARLY = 4.0  # standard errors
_OFTEN = 0.9  # share of how often the most frequent last process is last
_SPREAD_NS_MIN = 20_000.0  # spread of the arrivals; clocks are not aligned more exactly
_SPREAD_MIN = 0.25  # of the processes' usual spread: one that is nearly always last never waits
_AFTER_NS, _TRANSFER_NS = 1_000, 5_000  # of a found point: begin after the last end, and duration
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
        # The row that ends last may have begun earlier than others.
        ends = records.end[low:high]
        longest = ends == np.maximum.accumulate(ends)
        last = np.maximum.accumulate(np.where(longest, np.arange(low, high), low))
        inside = (next_ > 0) & (next_ < high - low)
        before[inside, place] = last[next_[inside] - 1]
        after[inside, place] = low + next_[inside]
    whole = (before >= 0).all(axis=1)
    return _Points(before[whole], after[whole], present) if whole.sum() >= _TIMES_MIN else None


def _steps(records: Records, points: _Points, place: Ints, kernel: Ints) -> tuple[Ints, Ints]:
    """Return the class of each point, and how often the first process is at such a place.

    Points are alike if all processes are between the same two places of their program. None of
    these may be within a kernel.
    """
    many = int(place.max()) + 1
    between = place[points.before] * many + place[points.after]
    own = np.flatnonzero(records.member == points.present[0])
    own = own[np.append(True, kernel[own[1:]] != kernel[own[:-1]])]
    steps, counts = np.unique(place[own[:-1]] * many + place[own[1:]], return_counts=True)
    at = np.minimum(np.searchsorted(steps, between[:, 0]), len(steps) - 1)
    every = np.where(steps[at] == between[:, 0], counts[at], len(own))
    return _alike(between), every


def _alike(rows: Ints) -> Ints:
    """Return the class of each row of a table; rows of one class are equal in all columns."""
    _, number = np.unique(rows, return_inverse=True)
    parts = number.reshape(rows.shape).astype(np.uint64) + np.uint64(1)
    weights = np.random.default_rng(1).integers(1, 1 << 62, parts.shape[1]).astype(np.uint64)
    return number_rows((parts * weights).sum(axis=1, dtype=np.uint64))


def _of_kernels(kernel: Ints, place: Ints) -> Ints:
    """Return the places of rows, where rows of one kernel share a place.

    Otherwise chance decides which of the Sends and Recvs of one call ends last.
    """
    least = np.full(int(kernel.max()) + 1, int(place.max()))
    np.minimum.at(least, kernel, place)
    return least[kernel]


def _by_time(early: Floats, gap: Floats) -> tuple[int, int]:
    """Return for how many processes the gap is longer by as much as they come earlier than usual.

    The second number is for how many it can be told, because their arrivals vary enough. Both
    arguments are points x processes, in ns.
    """
    x, y = early, gap
    # A pause between the two operations fits neither answer.
    odd = np.minimum(np.abs(y - np.median(y, axis=0)), np.abs(y - x - np.median(y - x, axis=0)))
    used = odd <= _PAUSE * np.median(odd, axis=0) + 1e3
    count = used.sum(axis=0)
    many = np.maximum(count, 1)
    x, y = (np.where(used, one - (one * used).sum(axis=0) / many, 0.0) for one in (x, y))
    square = (x * x).sum(axis=0)
    spread = np.sqrt(square / many)
    told = count >= _TOLD_MIN
    told &= spread > max(_SPREAD_NS_MIN, _SPREAD_MIN * float(np.median(spread)))
    x, y, square = x[:, told], y[:, told], square[told]
    slope = (x * y).sum(axis=0) / square
    error = np.sqrt(((y - slope * x) ** 2).sum(axis=0) / count[told] / square)
    sure = error <= _SLOPE_ERROR
    return int(np.sum(np.abs(slope[sure] - _SLOPE) <= _SLOPE_TOLERANCE)), int(sure.sum())


def _by_process(early: Floats, gap: Floats, alike: Ints) -> int:
    """Return how many processes have gaps longer than others' by as much as they come earlier.

    Below 0: this many have gaps as long as others although they come earlier or later, so they did
    not all leave together. A process that comes much earlier or later says more than others.
    `alike`: by process, the number of its stage.
    """
    x, y = np.median(early, axis=0), np.median(gap, axis=0)
    left = np.median(np.abs(gap - y), axis=0) / np.sqrt(len(gap))
    many = int(alike.max()) + 1
    x, y = x - medians(alike, x, many)[alike], y - medians(alike, y, many)[alike]
    # How much gaps differ between processes because of their own work.
    own = min(float(np.median(np.abs(y))), float(np.median(np.abs(y - x))))
    told = np.abs(x) > np.maximum(_SPREAD_NS_MIN, _CLEARLY * np.maximum(left, own))
    x, y = x[told], y[told]
    if not len(x):
        return 0
    slope = float((x * y).sum() / (x * x).sum())
    near = _SLOPE_TOLERANCE * np.abs(x)
    if abs(slope - _SLOPE) <= _SLOPE_TOLERANCE:
        return int(np.sum(np.abs(y - x) < near))
    return -int(np.sum(np.abs(y) < near)) if abs(slope) <= _SLOPE_TOLERANCE else 0


def _synchronised(arrived: Floats, gap: Floats, stage: Ints, latest: int) -> int:
    """Return for how many processes gaps are longer by as much as the last one came later.

    Both tables are points x processes, in ns. 0: they did not leave together, or it is not known.
    `stage`: by process. `latest`: the process that the others wait for most; its own gaps are
    longer.
    """
    early = arrived.max(axis=1, keepdims=True) - arrived
    good, sure = _by_time(early, gap)
    others = np.delete(np.arange(early.shape[1]), latest)
    apart = _by_process(early[:, others], gap[:, others], stage[others])
    if sure >= 2 and good >= _MOST * sure and apart >= 0:
        return max(good, apart)
    # A process that is always late by the same time shows only in comparison with others.
    return max(apart, 0) if 2 * good >= sure else 0


def _at_one_place(stage: Ints, before: Ints, after: Ints) -> bool:
    """Tell whether all ranks of each stage are between the same places, so that they could meet."""
    return int(number_rows(stage, before, after).max()) == len(np.unique(stage)) - 1


def _latest(early: Floats, gap: Floats) -> int:
    """Return the process that is last most often; of several, the one with the longest gaps."""
    apart = early.max(axis=1) > _SPREAD_NS_MIN
    last = np.mean(early[apart] < _SPREAD_NS_MIN, axis=0) if apart.any() else np.ones(len(early[0]))
    often = last >= _OFTEN * last.max()
    return int(np.argmax(np.where(often, np.median(gap, axis=0), -1.0)))


def _explained(arrived: Floats, gap: Floats) -> float:
    """Return the share of the gaps that is waiting for the last one, if all left together.

    This tells the point from moments long before it, which look alike if the same rank is late by
    the same time at each operation.
    """
    early = arrived.max(axis=1, keepdims=True) - arrived
    return float(np.minimum(early, gap).sum() / max(float(gap.sum()), 1.0))


def _hidden(records: Records, points: _Points) -> Mask:
    """Return at which points all processes left an unrecorded operation together."""
    classes = comm_classes(records)[records.comm]
    kind = number_rows(
        classes, records.func, records.size_class, (records.peer != PEER_NONE).astype(np.int64)
    )
    place = number_rows(kind, positions(records, number_rows(classes, records.func)))
    kernel = kernels(records, *streams(records), records.run)
    place = _of_kernels(kernel, place)
    classes, every = _steps(records, points, place, kernel)
    sure: list[tuple[float, Ints]] = []
    asked = np.zeros(len(classes), dtype=bool)
    low = int(records.begin.min())
    arrivals = (records.end[points.before] - low).astype(float)
    gaps = (records.begin[points.after] - records.end[points.before]).astype(float)
    latest = _latest(arrivals.max(axis=1, keepdims=True) - arrivals, gaps)
    stage = stages(records, kernel)[points.present]
    for number in np.flatnonzero(np.bincount(classes) >= _TIMES_MIN).tolist():
        mine = np.flatnonzero(classes == number)
        before, after = points.before[mine], points.after[mine]
        # All processes move on from one such point to the next.
        moved = (before[1:] != before[:-1]).all(axis=1)
        if len(mine) < _COVERED * every[mine[0]] or np.mean(moved) < _MOST:
            continue
        # What ended last may have begun earlier; such places do not follow each other in the
        # program.
        asked[mine] = every[mine[0]] >= len(mine)
        if not _at_one_place(stage, place[before[0]], place[after[0]]):
            continue
        arrived, gap = arrivals[mine], gaps[mine]
        # Between two bursts there is more than one operation. There the last rank's gap is long,
        # too; at a point where others wait for it, only their gaps are long.
        least = gap.min(axis=1)
        near = least <= _FAR * np.median(least)
        if near.sum() >= _TIMES_MIN:
            told = _synchronised(arrived[near], gap[near], stage, latest) * int(near.sum())
            sure.append((told * _explained(arrived[near], gap[near]), mine[near]))
    found = np.zeros(len(classes), dtype=bool)
    taken = np.zeros(len(records), dtype=bool)
    follows = _alike(place[points.after])
    shortest = gaps.min(axis=1)
    # Moments just before and after such a point look nearly like it; the surest one is taken.
    for score, mine in sorted(sure, key=lambda one: -one[0]):
        free = mine[~taken[points.before[mine]].any(axis=1)] if score else mine[:0]
        found[free] = True
        taken[points.before[free]] = True
        if not len(free):
            continue
        # The program has the point before the same operations each time. So it is also taken where
        # points are too seldom alike to be tested.
        more = np.flatnonzero((follows == follows[free[0]]) & ~asked)
        more = more[shortest[more] <= _FAR * np.median(shortest[free])]
        more = more[~taken[points.before[more]].any(axis=1)]
        found[more] = True
        taken[points.before[more]] = True
    return found


def fill_holes(records: Records) -> Records:
    """Return the records with an operation of all processes wherever they were synchronised.

    On each process it begins where the operation before it ends, and it ends when the last process
    has begun it. What a process does before and after it cannot be told apart.
    """
    points = _find_points(records) if len(records) else None
    if points is None or len(points.present) < 2:
        return records
    # Between two bursts, some may have begun the second one before others have ended the first.
    runs = records.run[np.concatenate((points.before, points.after), axis=1)]
    chosen = _hidden(records, points) & (runs == runs[:, :1]).all(axis=1)
    if not chosen.any():
        return records
    before = points.before[chosen]
    times, many = before.shape
    begin = records.end[before] + _AFTER_NS
    end = np.repeat(begin.max(axis=1) + _TRANSFER_NS, many).reshape(times, many)
    end = np.minimum(end, records.begin[points.after[chosen]].min(axis=1, keepdims=True) - 1)
    begin = np.minimum(begin, end - 1)
    members = tuple(points.present.tolist())
    comm = RecordedComm(0, "", many, 2, _ORDINAL, members, hidden=True)
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
        "piece": np.repeat(records.piece[before].max(axis=1), many),
        "run": np.repeat(records.run[before].max(axis=1), many),
    }
    if records.within is not None:
        rows["within"] = np.zeros(times * many, np.int64)
    both = {name: np.concatenate((getattr(records, name), rows[name])) for name in rows}
    order = np.lexsort((both["end"], both["begin"], both["member"]))
    columns: dict[str, Any] = {name: column[order] for name, column in both.items()}
    return replace(records, comms=(*records.comms, comm), **columns)
