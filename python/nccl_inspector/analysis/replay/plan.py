# SPDX-License-Identifier: Apache-2.0
"""All rows of the records in the order in which a replay computes them, and what each needs.

An operation is computed when its last rank begins. Operations that need nothing of each other are
one batch; numpy computes all rows of a batch together.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    number_rows,
    order_groups,
    order_rows,
)
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

EARLY = -1e18  # the end if nothing is needed
_PARTS_MAX = 8  # the most Sends and Recvs of one kernel
_SORT_ROUNDS = 64  # operations that follow each other within what clocks may be off


@dataclass(frozen=True, slots=True)
class Plan:
    """All rows, by piece, in the order of replay; times are ns since the piece's first begin."""

    rows: Ints  # of Records
    piece: Ints
    bounds: Ints  # positions where pieces begin, and the end
    start: Ints  # by piece: its first begin, ns
    operation: Ints
    first: Ints  # the first position of its operation
    before: Ints  # positions; -1: none in its piece
    cause: Ints
    beside: Mask  # the begin of `cause` counts, not its end
    ended: Floats  # recorded end of a `before` in an earlier piece; EARLY: none
    caused: Floats  # the same for `cause`, or its begin
    parts: Ints | None  # positions x parts of the kernel; None: all kernels have one part
    batch: Ints  # number in the piece; rows of a batch need only rows of earlier batches
    begin: Floats
    taken: Floats  # from begin to end
    beyond: Floats  # from the begin of the last rank to the end
    free: Mask  # the rank left before the last one came


def make_plan(records: Records, order: Order) -> Plan:
    """Return the plan: all rows in the order of replay."""
    joined = records.joined
    last = _last_begins(records, order)
    # An operation is computed when its last rank begins. All its rows are in one piece.
    piece_of = np.zeros(len(last), np.int64)
    piece_of[joined] = records.piece
    turn = np.empty(len(last), np.int64)
    turn[order_rows(piece_of, last, last)] = np.arange(len(last))
    rows = order_groups(turn[joined])
    joined, piece = joined[rows], records.piece[rows]
    position = np.empty(len(records), np.int64)
    position[rows] = np.arange(len(rows))
    before = np.where(order.before[rows] >= 0, position[order.before[rows]], -1)
    cause = np.where(order.cause[rows] >= 0, position[order.cause[rows]], -1)
    # A cause that would come later than the row itself cannot be used in the replay.
    new = np.append(True, joined[1:] != joined[:-1])
    operation = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    before = np.where((before >= 0) & (before < first[operation]), before, -1)
    cause = np.where((cause >= 0) & (cause < first[operation]), cause, -1)
    parts = _parts(order.kernel[rows])
    bounds = np.searchsorted(piece, np.arange(int(piece[-1]) + 2))
    start = records.begin[rows[bounds[:-1]]]
    np.minimum.at(start, piece, records.begin[rows])
    beside = order.beside[rows]
    ended, caused, begun = (
        _ended_earlier(times[rows], needed, parts, start[piece], bounds[piece])
        for times, needed in (
            (records.end, before), (records.end, cause), (records.begin, cause),
        )
    )  # fmt: skip
    caused = np.where(beside, begun, caused)
    before, cause = (np.where(needed >= bounds[piece], needed, -1) for needed in (before, cause))
    needs = np.maximum(
        *(_needed_parts(one, parts, first[operation]).max(axis=1) for one in (before, cause))
    )
    batch = _batches(np.maximum.reduceat(needs, first), first, bounds)[operation]
    begin = (records.begin[rows] - start[piece]).astype(float)
    end = (records.end[rows] - start[piece]).astype(float)
    beyond = end - np.maximum.reduceat(begin, first)[operation]
    free = order.left[rows]
    if parts is not None:
        # If a kernel has several pairs, the shorter side of a pair contains less of the others'
        # waiting.
        least = np.minimum.reduceat(beyond, first)[operation]
        several = np.bincount(piece, parts[:, 0] != parts[:, -1], minlength=len(start)) > 0
        pairs = (records.peer[rows] != PEER_NONE) & several[piece]
        beyond = np.where(pairs, np.maximum(least, 0.0), beyond)
        free = free & ~pairs
    return Plan(
        rows,
        piece,
        bounds,
        start,
        operation,
        first[operation],
        before,
        cause,
        beside,
        ended,
        caused,
        parts,
        batch,
        begin,
        end - begin,
        beyond,
        free,
    )


def _needed_parts(needed: Ints, parts: Ints | None, first: Ints) -> Ints:
    """Return for each position all parts of the kernel that it needs; -1: nothing.

    `first`: the first position of its operation. A part that comes no sooner is left out: it is
    computed later.
    """
    if parts is None:
        return needed[:, None]
    found: Ints = parts[needed]
    return np.where((needed[:, None] >= 0) & (found < first[:, None]), found, needed[:, None])


def _last_begins(records: Records, order: Order) -> Ints:
    """Return by operation when its last rank begins, in ns, but after all that it needs.

    Clocks may be off by more than the time between two operations. What a process needs it did
    itself, and the order of that is known from its own clock.
    """
    found = np.full(int(records.joined.max()) + 1, -(1 << 62), np.int64)
    np.maximum.at(found, records.joined, records.begin)
    sources, targets = [], []
    for needed in (order.cause, order.before):
        rows = np.flatnonzero(needed >= 0)
        rows = rows[records.piece[needed[rows]] == records.piece[rows]]
        sources.append(records.joined[needed[rows]])
        targets.append(records.joined[rows])
    source, target = np.concatenate(sources), np.concatenate(targets)
    for _ in range(_SORT_ROUNDS):
        wrong = found[source] >= found[target]
        if not wrong.any():
            break
        np.maximum.at(found, target[wrong], found[source[wrong]] + 1)
    return found


def _ended_earlier(end: Ints, needed: Ints, parts: Ints | None, start: Ints, low: Ints) -> Floats:
    """Return the recorded ends of what positions need in earlier pieces, in ns; EARLY: nothing.

    `start`, `low`: begin and first position of each position's piece.
    """
    some = np.flatnonzero((needed >= 0) & (needed < low))
    there = end[needed[some]] if parts is None else end[parts[needed[some]]].max(axis=1)
    found = np.full(len(needed), EARLY)
    found[some] = there - start[some]
    return found


def _batches(needs: Ints, first: Ints, bounds: Ints) -> Ints:
    """Return the number of each operation's batch in its piece.

    `needs`: the last position that the operation needs; `first`: its own first position; `bounds`:
    of pieces.
    """
    found = np.empty(len(first), np.int64)
    ends = np.searchsorted(first, bounds)
    for low, high in pairwise(ends.tolist()):
        at, number, ahead = low, 0, 64
        while at < high:
            # The batch ends before the first operation that needs one of it.
            bad = needs[at + 1 : min(at + ahead, high)] >= first[at]
            end = at + 1 + (int(bad.argmax()) if bad.any() else len(bad))
            if end == at + ahead and end < high:
                ahead *= 2
                continue
            found[at:end] = number
            at, number, ahead = end, number + 1, max(2 * (end - at), 64)
    return found


def _parts(kernel: Ints) -> Ints | None:
    """Return for each position those of all parts of its kernel; None: each kernel has one part.

    Of more than _PARTS_MAX parts the first ones are used.
    """
    number = number_rows(kernel)
    size = np.bincount(number)
    most = min(int(size.max()), _PARTS_MAX)
    if most == 1:
        return None
    order = order_groups(number)
    start = np.append(0, np.cumsum(size))[:-1]
    found = np.repeat(np.arange(len(kernel))[:, None], most, axis=1)
    for part in range(1, most):
        has = size[number] > part
        found[has, part] = order[start[number[has]] + part]
    first = order[start]
    found[:, 0] = first[number]
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """The rows of some pieces, batch by batch, so that all these pieces are replayed together."""

    at: Ints  # positions in the plan
    before: Ints  # places in `at` by part of the kernel; len(at): none
    cause: Ints  # the same; places of begins follow those of ends
    beside: bool  # some causes are begins
    batches: tuple[tuple[int, int], ...]  # first place and end of each batch
    heads: tuple[Ints, ...]  # by batch: where each operation begins
    sizes: tuple[Ints, ...]  # by batch: the number of rows of each operation


def make_program(plan: Plan, low: int, high: int) -> Program:
    """Return the program of the plan's positions from `low` up to `high`: whole pieces."""
    count = high - low
    at = low + order_groups(plan.batch[low:high])
    place = np.full(high - low + 1, count, np.int64)
    place[at - low] = np.arange(count)

    def places(which: Ints) -> Ints:
        needed = _needed_parts(which, plan.parts, plan.first[at])
        found: Ints = place[np.where(needed >= 0, needed - low, count)].T.copy()
        return found

    before, cause = places(plan.before[at]), places(plan.cause[at])
    beside = plan.beside[at] & (plan.cause[at] >= 0)
    cause[:, beside] += count + 1
    new = np.append(True, np.diff(plan.operation[at]) != 0)
    batch = plan.batch[at]
    bounds = np.append(np.flatnonzero(np.append(True, np.diff(batch) != 0)), count)
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, count))
    cuts = np.searchsorted(first, bounds)
    batches = tuple(pairwise(bounds.tolist()))
    ranges = list(pairwise(cuts.tolist()))
    heads = tuple(first[a:b] - begin for (a, b), (begin, _) in zip(ranges, batches, strict=True))
    sizes = tuple(size[a:b] for a, b in ranges)
    return Program(at, before, cause, bool(beside.any()), batches, heads, sizes)
