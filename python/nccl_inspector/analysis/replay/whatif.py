# SPDX-License-Identifier: Apache-2.0
"""Replay a piece of a job with some causes of delay taken out: how much sooner would it have ended?

An operation begins when its stream is free and its rank is ready, which is its own gap after the
end that it depends on. It ends on all its ranks T after the last one has begun. With the recorded
gaps and T the replay gives the recorded times; each question changes some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, last_before, number_rows
from nccl_inspector.analysis.replay.order import Gaps, Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model import PEER_NONE

_EARLY = -1e18
PARTS = 4  # of a piece, that are looked at one by one
_PARTS_MAX = 8  # Sends and Recvs of one kernel
_TOLERANCE_NS = 50_000.0  # by which ends of one operation differ


@dataclass(frozen=True, slots=True)
class Question:
    """What would have been with these processes at their peers' pace, and other times changed.

    By row: `transfer` is a factor of T, `gap` is added to the own gap (ns). None: nothing changes.
    """

    members: tuple[int, ...] = ()
    transfer: Floats | None = None
    gap: Floats | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Answers for one piece of time. Times are ns."""

    piece: int
    start: int
    end: int
    length: float  # that the replay could have changed
    saved: Floats  # by question: how much sooner it would have ended
    parts: Floats  # parts of equal length x questions: by how much more in each


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows of a piece in the order of replay, cut into batches that do not touch each other."""

    rows: Ints  # of Records
    before: Ints  # positions in `rows`; -1: none
    cause: Ints
    parts: Ints | None  # positions x parts of its kernel; None: all kernels have one
    pairs: Mask  # Sends and Recvs
    batches: tuple[tuple[int, int], ...]  # positions
    heads: tuple[Ints, ...]  # by batch: where each operation begins


def _plan(records: Records, order: Order, rows: Ints) -> _Plan:
    joined = records.joined[rows]
    last = np.full(int(joined.max()) + 1, -(1 << 62), np.int64)
    np.maximum.at(last, joined, records.begin[rows])
    # An operation is decided when its last rank begins.
    by_time = np.lexsort((joined, last[joined]))
    rows = rows[by_time]
    joined = records.joined[rows]
    position = np.full(len(records), -1, np.int64)
    position[rows] = np.arange(len(rows))
    before = np.where(order.before[rows] >= 0, position[order.before[rows]], -1)
    cause = np.where(order.cause[rows] >= 0, position[order.cause[rows]], -1)
    # What would come later than itself is no cause that the replay could follow.
    new = np.ones(len(rows), dtype=bool)
    new[1:] = joined[1:] != joined[:-1]
    number = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    before = np.where((before >= 0) & (before < first[number]), before, -1)
    cause = np.where((cause >= 0) & (cause < first[number]), cause, -1)
    parts = _parts(order.kernel[rows])
    needs = np.maximum(before, cause)
    if parts is not None:
        needs = np.where(needs >= 0, parts[needs].max(axis=1), -1)
        needs = np.where(needs < first[number], needs, np.maximum(before, cause))
    need_of = np.maximum.reduceat(needs, first) if len(first) else needs
    batches, heads = [], []
    bounds = np.append(first, len(rows))
    at, total = 0, len(first)
    while at < total:
        # Up to the first operation that needs one of this batch.
        ahead = min(at + 4096, total)
        bad = np.flatnonzero(need_of[at + 1 : ahead] >= bounds[at])
        end = at + 1 + (int(bad[0]) if len(bad) else ahead - at - 1)
        batches.append((int(bounds[at]), int(bounds[end])))
        heads.append(first[at:end] - bounds[at])
        at = end
    pairs = records.peer[rows] != PEER_NONE
    return _Plan(rows, before, cause, parts, pairs, tuple(batches), tuple(heads))


def _parts(kernel: Ints) -> Ints | None:
    """Return for each position those of all parts of its kernel; None: each has one.

    Of more than _PARTS_MAX the first are taken.
    """
    number = number_rows(kernel)
    size = np.bincount(number)
    most = min(int(size.max()), _PARTS_MAX)
    if most == 1:
        return None
    order = np.argsort(number, kind="stable")
    start = np.append(0, np.cumsum(size))[:-1]
    found = np.repeat(np.arange(len(kernel))[:, None], most, axis=1)
    for part in range(1, most):
        has = size[number] > part
        found[has, part] = order[start[number[has]] + part]
    first = order[start]
    found[:, 0] = first[number]
    return found


def _replay(
    records: Records, plan: _Plan, gaps: Floats, fixed: Floats, questions: Sequence[Question]
) -> Floats:
    """Return the ends of a plan's rows (rows x questions), ns since the piece's first begin."""
    rows, many = plan.rows, len(questions)
    zero = int(records.begin[rows].min())
    begin = (records.begin[rows] - zero).astype(float)
    end = (records.end[rows] - zero).astype(float)
    changed = np.zeros((records.members, many), dtype=bool)
    for column, question in enumerate(questions):
        changed[list(question.members), column] = True
    faster = [(at, one.transfer) for at, one in enumerate(questions) if one.transfer is not None]
    longer = [(at, one.gap) for at, one in enumerate(questions) if one.gap is not None]
    ends = np.full((len(rows) + 1, many), _EARLY)
    for (low, high), head in zip(plan.batches, plan.heads, strict=True):
        part = rows[low:high]
        gap = np.where(changed[records.member[part]], fixed[part][:, None], gaps[part][:, None])
        for column, more in longer:
            gap[:, column] = np.maximum(gap[:, column] + more[part], 0.0)
        cause = plan.cause[low:high]
        done = _ends_of(ends, plan, cause)
        ready = np.where(cause[:, None] >= 0, done + gap, begin[low:high][:, None])
        start = np.maximum(ready, _ends_of(ends, plan, plan.before[low:high]))
        size = np.diff(np.append(head, high - low))
        latest = np.repeat(np.maximum.reduceat(start, head, axis=0), size, axis=0)
        was_latest = np.repeat(np.maximum.reduceat(begin[low:high], head), size)
        beyond = end[low:high] - was_latest
        if plan.parts is not None:
            # One kernel has several pairs: the shorter side of one has less of the others' waiting.
            least = np.repeat(np.minimum.reduceat(beyond, head), size)
            beyond = np.where(plan.pairs[low:high], np.maximum(least, 0.0), beyond)
        # Who was done before the last one came did not wait for it.
        free = beyond < -_TOLERANCE_NS
        synced = latest + beyond[:, None]
        for column, factor in faster:
            synced[:, column] = latest[:, column] + beyond * factor[part]
        alone = start + (end[low:high] - begin[low:high])[:, None]
        ends[low:high] = np.where(free[:, None], alone, synced)
    return ends[:-1]


def _ends_of(ends: Floats, plan: _Plan, at: Ints) -> Floats:
    """Return the ends of the kernels of some positions; -1: long ago."""
    if plan.parts is None:
        return ends[at]
    found: Floats = ends[plan.parts[at, 0]]
    for part in range(1, plan.parts.shape[1]):
        found = np.maximum(found, ends[plan.parts[at, part]])
    found[at < 0] = _EARLY
    return found


class Replay:
    """The sampled pieces of a job, ready to be asked."""

    def __init__(self, records: Records, order: Order, gaps: Gaps) -> None:
        """Plan all pieces."""
        self._records = records
        self._gaps = gaps.own
        self._fixed = np.where(np.isnan(gaps.usual), gaps.own, gaps.usual)
        by_piece = np.argsort(records.piece, kind="stable")
        bounds = np.searchsorted(records.piece[by_piece], np.arange(int(records.piece.max()) + 2))
        self._plans: list[tuple[int, _Plan]] = []
        for piece in range(len(bounds) - 1):
            rows = by_piece[bounds[piece] : bounds[piece + 1]]
            if len(rows) > 1:
                self._plans.append((piece, _plan(records, order, rows)))

    def ask(self, questions: Sequence[Question]) -> list[Piece]:
        """Return the answers piece by piece; the first column is the job as it was."""
        everything = [Question(), *questions]
        found = []
        for piece, plan in self._plans:
            ends = _replay(self._records, plan, self._gaps, self._fixed, everything)
            found.append(_answer(self._records, piece, plan, ends))
        return found


def _answer(records: Records, piece: int, plan: _Plan, ends: Floats) -> Piece:
    """Compare the ends of each process's operations with those of the first question."""
    rows = plan.rows
    # What begins before anything that it could depend on is known stays where it was.
    held: Mask = plan.cause >= 0
    start = int(records.begin[rows].min())
    end = int(records.end[rows].max())
    first = int(np.median(_first_causes(records, plan, held))) if held.any() else end
    member = number_rows(records.member[rows])
    present = np.arange(int(member.max()) + 1)
    moments = np.linspace(first, end, PARTS + 1).astype(np.int64)
    sooner = np.zeros((PARTS + 1, ends.shape[1]))
    for part, moment in enumerate(moments):
        until = np.full(len(present), moment)
        last = last_before(member, records.end[rows], present, until)
        last = last[last >= 0]
        if len(last):
            sooner[part] = np.median(ends[last, :1] - ends[last], axis=0)
    saved: Floats = sooner[-1]
    return Piece(piece, start, end, float(max(end - first, 0)), saved, np.diff(sooner, axis=0))


def _first_causes(records: Records, plan: _Plan, held: Mask) -> Ints:
    """Return for each process the end that its first dependent operation depends on."""
    rows = plan.rows[held]
    member = records.member[rows]
    ends = records.end[plan.rows[plan.cause[held]]]
    order = np.lexsort((ends, member))
    first = order[np.append(0, np.flatnonzero(np.diff(member[order])) + 1)]
    found: Ints = ends[first]
    return found
