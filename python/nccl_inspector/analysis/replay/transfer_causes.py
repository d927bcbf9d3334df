# SPDX-License-Identifier: Apache-2.0
"""Transfers that were slow: compared with their siblings all the time, or with other times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, medians, number_rows
from nccl_inspector.analysis.replay.cause import HABIT_TIMES, TOLD_MIN, TRANSFER, Cause
from nccl_inspector.analysis.replay.changes import Changes
from nccl_inspector.analysis.replay.costs import (
    cost_then,
    felt_later,
    period_of,
    replayed_s,
    saved_share,
    slow_times,
)
from nccl_inspector.analysis.replay.longer_transfers import LONGER
from nccl_inspector.analysis.replay.order import Order, cost_of_bytes
from nccl_inspector.analysis.replay.paths import (
    SlowPaths,
    Spot,
    Where,
    find_paths,
    find_slow_paths,
    inside_nodes,
    locate_then,
    path_numbers,
    transfer_times,
)
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Piece, Replay, WhatIf
from nccl_inspector.model.process import PEER_NONE

_APART_NS = 5_000_000_000  # between two slow times; what is nearer is one
_THEN_NS = 1_000_000_000  # of a slow time, in which all paths are compared
_RATE_SHARE_MIN = 0.25  # share of the pieces that must be as usual to tell the usual rate
_FELT_MIN = 0.001  # share of a piece's time that it loses beside a slow time, to belong to it
_ITS_OWN_PIECES = 4  # a slow time of so many pieces is told by itself, even if there are others


def ask_transfers(replay: Replay, factors: Sequence[Floats], faster: Floats | None) -> list[Piece]:
    """Return what another T would have saved, for each factor.

    The gaps of faster transfers (`faster`) alone also save a little, which is not due to the
    transfers and is subtracted.
    """
    questions = [WhatIf(gap=faster)]
    questions += [WhatIf(transfer=factor, gap=faster) for factor in factors]
    return [
        replace(one, saved=one.saved[2:] - one.saved[1], parts=one.parts[:, 2:] - one.parts[:, 1:2])
        for one in replay.ask(questions)
    ]


def transfer_causes(
    records: Records,
    order: Order,
    faster: Floats,
    replay: Replay,
    changes: Changes,
    spots: Sequence[Spot],
) -> list[Cause]:
    """Return the slow transfers with their cost; `faster` is gaps_if_faster of bound_gaps.py."""
    beside: tuple[SlowPaths, ...] = find_slow_paths(records, order, spots)
    inner = _is_inside(records, spots)
    changed = [np.where(inner == inside, changes.transfer, 1.0) for inside in (False, True)]
    all_beside = np.minimum.reduce([np.ones(len(records)), *(one.factor for one in beside)])
    pairs = _find_pairs(records, order)
    factors = [
        *(_by_kernel(pairs, one.factor, one.inside, all_beside, one.usual) for one in beside),
        *(
            _by_kernel(pairs, factor, inside, changes.transfer)
            for factor, inside in zip(changed, (False, True), strict=True)
        ),
    ]
    if len(beside) > 1:
        usual = beside[0].usual
        factors.append(_by_kernel(pairs, all_beside, False, all_beside, usual))
    answers = ask_transfers(replay, factors, faster)
    found = _always_slow(replay, beside, factors, answers)
    for place, factor in enumerate(changed):
        _, _, rows = saved_share(answers, len(beside) + place)
        side = inner == bool(place)
        every = np.where(side, changes.brief, 1.0)
        if not (every < 1).any():
            every = factor
        often = len(_bouts(records, np.flatnonzero(every < 1)).T) >= HABIT_TIMES
        told: list[int] = []
        times = slow_times(rows)
        for slow, around in zip(times, _around(times, rows), strict=True):
            if often and slow[-1] - slow[0] + 1 < _ITS_OWN_PIECES:
                continue
            then = _slower_then(records, answers, rows, slow, around, factor, spots, side)
            if then:
                told += [answers[at].piece for at in (*slow, *around)]
                if not any(_same_place(then.where, other.where) for other in found):
                    found.append(replace(then, inside=bool(place)))
        rest = np.where(np.isin(records.piece, told), 1.0, every)
        short = _now_and_then(records, pairs, replay, rest, faster, spots, side, inside=bool(place))
        if short and not any(_same_place(short.where, other.where) for other in found):
            found.append(short)
    return found


def _always_slow(
    replay: Replay,
    beside: Sequence[SlowPaths],
    factors: Sequence[Floats],
    answers: Sequence[Piece],
) -> list[Cause]:
    """Return the causes of paths that are slow beside siblings.

    `factors`: of each, first; if there are several, of all together at last.
    """
    found: list[Cause] = []
    for place, one in enumerate(beside):
        cost, error, rows = saved_share(answers, place)
        if place:
            # A path within a node that is as slow as the network beside it costs nothing more.
            both = saved_share(answers, len(factors) - 1)[0]
            cost = min(cost, both - saved_share(answers, 0)[0])
        later = _felt_later(replay, factors[place]) if cost >= TOLD_MIN else 1.0
        cost = min(max(cost * later, 0.0), 1.0)
        start, end, _ = period_of(rows)
        found.append(
            Cause(
                TRANSFER,
                cost,
                error * later,
                start,
                end,
                True,
                members=one.where.members,
                where=one.where,
                inside=one.inside,
                ratio=one.ratio,
                saved_s=cost * replayed_s(answers),
            )
        )
    return found


def _around(
    times: Sequence[Sequence[int]], rows: Sequence[tuple[int, int, float]]
) -> list[list[int]]:
    """Return for each slow time the pieces around it that cost less: it grew, or went away."""
    taken = {at for one in times for at in one}
    found: list[list[int]] = []
    for one in times:
        found.append([])
        for at, way in ((one[0] - 1, -1), (one[-1] + 1, 1)):
            while 0 <= at < len(rows) and at not in taken and rows[at][2] >= _FELT_MIN:
                found[-1].append(at)
                taken.add(at)
                at += way
    return found


def _now_and_then(
    records: Records,
    pairs: "_Pairs",
    replay: Replay,
    factor: Floats,
    faster: Floats,
    spots: Sequence[Spot],
    side: Mask,
    *,
    inside: bool,
) -> Cause | None:
    """Return all times with slower transfers that cost too little to be told each; None: nothing.

    `factor`: for T by row, of paths within nodes (`inside`) or of those between nodes; `side`: the
    rows of these paths.
    """
    slow = np.flatnonzero(factor < 1)
    if not len(slow):
        return None
    undone = _by_kernel(pairs, factor, inside, factor)
    answers = ask_transfers(replay, [undone], faster)
    cost, error, _ = saved_share(answers, 0)
    if cost < TOLD_MIN:
        return None
    bouts = _bouts(records, slow)
    bursts = int(records.run.max()) == int(records.piece.max())
    then = np.isin(records.begin // _THEN_NS, np.unique(records.begin[slow] // _THEN_NS))
    where = locate_then(records, factor, then & side, spots)
    return Cause(
        TRANSFER,
        cost,
        error,
        int(bouts[0, 0]),
        int(bouts[1, -1]),
        False,
        members=where.members if where else (),
        where=where,
        inside=inside,
        ratio=float(np.median(1 / factor[slow])),
        rare=True,
        times=0 if bursts else bouts.shape[1],
        late_ns=float(np.median(bouts[1] - bouts[0])),
        saved_s=cost * replayed_s(answers),
    )


def _bouts(records: Records, slow: Ints) -> Ints:
    """Return begins and ends (2 rows, ns) of the times in which some rows are."""
    if not len(slow):
        return np.zeros((2, 0), np.int64)
    at = slow[np.argsort(records.begin[slow])]
    ended = np.maximum.accumulate(records.end[at])
    apart = np.flatnonzero(records.begin[at][1:] - ended[:-1] > _APART_NS)
    first, last = np.append(0, apart + 1), np.append(apart, len(at) - 1)
    found: Ints = np.stack((records.begin[at][first], ended[last]))
    return found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The Sends and Recvs whose T is known (`rows`), with their kernels; the rest is by them.

    `bound`: T may be less. `known`: the factor that makes it what the path has where it is known.
    """

    rows: Ints
    kernel: Ints
    joined: Ints
    transfer: Floats
    bound: Mask
    known: Floats


def _find_pairs(records: Records, order: Order) -> _Pairs:
    times, bound = transfer_times(records, order)
    rows = np.flatnonzero((records.peer != PEER_NONE) & (times > 0))
    known = _known_before(records, times, bound)[rows] if len(rows) else np.ones(0)
    return _Pairs(rows, order.kernel[rows], records.joined[rows], times[rows], bound[rows], known)


def _by_kernel(
    pairs: _Pairs, factor: Floats, inside: bool, of_all: Floats, usual: Floats | None = None
) -> Floats:
    """Return factors for T with which kernels end when the last of their Sends and Recvs would.

    All Sends and Recvs of one call have the time of their kernel, even if only one of them was
    slow. `inside`: the factors are of paths within nodes. `of_all`: factors of all paths. In a
    kernel, a path within a node is as slow as a slow path between nodes; the latter is the one to
    blame. `usual`: factors that make each operation as fast as its siblings. If the kernels of both
    ends have a slow path, what else is in both of them has no time of its own.
    """
    rows, kernel = pairs.rows, pairs.kernel
    if not len(rows):
        return factor
    alone = factor[rows] if inside else of_all[rows]
    count = int(kernel.max()) + 1
    # What may have been over earlier is no reason for a kernel to last as long.
    alone = np.where(pairs.bound, np.minimum(alone, pairs.known), alone)
    longest, would_be = np.zeros(count), np.zeros(count)
    slow = np.bincount(kernel, factor[rows] < 1, minlength=count) > 0
    if usual is not None:
        ends = np.bincount(pairs.joined, slow[kernel])[pairs.joined]
        alone = np.where(ends > 1, np.minimum(alone, usual[rows]), alone)
    np.maximum.at(longest, kernel, pairs.transfer)
    np.maximum.at(would_be, kernel, pairs.transfer * alone)
    found = factor.copy()
    of_kernel = np.where(slow, would_be / np.maximum(longest, 1.0), 1.0)[kernel]
    # In other kernels, too: the slow path may be what holds up both of its neighbours.
    others = np.where(pairs.bound, pairs.known, 1.0)
    found[rows] = np.where(slow[kernel], of_kernel, others if slow.any() else 1.0)
    return found


def _known_before(records: Records, times: Floats, bound: Mask) -> Floats:
    """Return for each row the factor that makes T what the rows of its path have that tell it."""
    rate = cost_of_bytes(records, times)
    kind = number_rows(path_numbers(records), records.size_class)
    told = np.flatnonzero(~bound & ~np.isnan(rate) & (rate > 0))
    usual = medians(kind[told], rate[told], int(kind.max()) + 1)[kind]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.minimum(usual / rate, 1.0), nan=1.0)


def _felt_later(replay: Replay, factor: Floats) -> float:
    first_half = np.where(replay.in_first_half(), factor, 1.0)
    return felt_later(replay, WhatIf(transfer=factor), WhatIf(transfer=first_half))


def _slower_then(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    slow: Sequence[int],
    around: Sequence[int],
    factor: Floats,
    spots: Sequence[Spot],
    side: Mask,
) -> Cause | None:
    """Return the cause of a time with slower transfers; None: it cost too little.

    `around`: pieces in which it was less slow. `side`: the rows of paths within nodes, or of those
    between nodes, whichever is asked for.
    """
    # The rate of few other pieces, such as those in which the job begins, is not what is usual.
    rest = len(rows) - len(slow) - len(around)
    times_most = 2.0 if rest >= _RATE_SHARE_MIN * len(rows) else 0.0
    cost = cost_then(records, answers, rows, slow, times_most)
    lengths = [end - start for start, end, _ in rows]
    cost += sum(rows[at][2] * lengths[at] for at in around) / max(sum(lengths), 1)
    if cost < TOLD_MIN:
        return None
    numbers = [answers[at].piece for at in slow]
    where = locate_then(records, factor, side & np.isin(records.piece, numbers), spots)
    here = np.isin(records.piece, numbers) & (factor < 1)
    return Cause(
        TRANSFER,
        cost,
        0.0,
        rows[min((*slow, *around))][0],
        rows[max((*slow, *around))][1],
        False,  # it is held against other times
        members=where.members if where else (),
        where=where,
        ratio=float(np.median(1 / factor[here])) if here.any() else LONGER,
        saved_s=cost * replayed_s(answers),
        once=len(slow) == 1,
    )


def _same_place(one: Where | None, other: Where | None) -> bool:
    return (
        one is not None and other is not None and (one.kind, one.nodes) == (other.kind, other.nodes)
    )


def _is_inside(records: Records, spots: Sequence[Spot]) -> Mask:
    """Tell for each row whether all processes on its path are on one node."""
    path = path_numbers(records)
    found: Mask = inside_nodes(find_paths(records, path), spots)[path]
    return found
