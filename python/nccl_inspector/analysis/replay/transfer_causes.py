# SPDX-License-Identifier: Apache-2.0
"""Transfers that were slow: compared with their siblings all the time, or with other times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Mask
from nccl_inspector.analysis.replay.cause import TOLD_MIN, TRANSFER, Cause
from nccl_inspector.analysis.replay.changes import Changes
from nccl_inspector.analysis.replay.costs import (
    WHOLE,
    cost_then,
    felt_later,
    period_of,
    replayed_s,
    saved_share,
    slow_times,
)
from nccl_inspector.analysis.replay.longer_transfers import LONGER
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.paths import (
    SlowPaths,
    Spot,
    Where,
    find_slow_paths,
    inside_nodes,
    locate_then,
    members_of_paths,
    path_numbers,
)
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Piece, Replay, WhatIf
from nccl_inspector.model.process import PEER_NONE


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
    factors = [
        *(_by_kernel(records, order, one.factor, one.inside, all_beside) for one in beside),
        *(
            _by_kernel(records, order, factor, inside, changes.transfer)
            for factor, inside in zip(changed, (False, True), strict=True)
        ),
    ]
    answers = ask_transfers(replay, factors, faster)
    found = []
    for place, one in enumerate(beside):
        cost, error, rows = saved_share(answers, place)
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
    for place, factor in enumerate(changed):
        _, _, rows = saved_share(answers, len(beside) + place)
        for slow in slow_times(rows):
            then = _slower_then(records, answers, rows, slow, factor, spots, inner == bool(place))
            if then and not any(_same_place(then.where, other.where) for other in found):
                found.append(replace(then, inside=bool(place)))
    return found


def _by_kernel(
    records: Records, order: Order, factor: Floats, inside: bool, of_all: Floats
) -> Floats:
    """Return factors for T with which kernels end when the last of their Sends and Recvs would.

    All Sends and Recvs of one call have the time of their kernel, even if only one of them was
    slow. `inside`: the factors are of paths within nodes. `of_all`: factors of all paths. In a
    kernel, a path within a node is as slow as a slow path between nodes; the latter is the one to
    blame.
    """
    rows = np.flatnonzero((records.peer != PEER_NONE) & (order.transfer > 0))
    if not len(rows):
        return factor
    kernel, transfer = order.kernel[rows], order.transfer[rows]
    alone = factor[rows] if inside else of_all[rows]
    count = int(order.kernel.max()) + 1
    longest, would_be = np.zeros(count), np.zeros(count)
    np.maximum.at(longest, kernel, transfer)
    np.maximum.at(would_be, kernel, transfer * alone)
    slow = np.bincount(kernel, factor[rows] < 1, minlength=count) > 0
    found = factor.copy()
    found[rows] = np.where(slow, would_be / np.maximum(longest, 1.0), 1.0)[kernel]
    return found


def _felt_later(replay: Replay, factor: Floats) -> float:
    first_half = np.where(replay.in_first_half(), factor, 1.0)
    return felt_later(replay, WhatIf(transfer=factor), WhatIf(transfer=first_half))


def _slower_then(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    slow: Sequence[int],
    factor: Floats,
    spots: Sequence[Spot],
    side: Mask,
) -> Cause | None:
    """Return the cause of a time with slower transfers; None: it cost too little.

    `side`: the rows of paths within nodes, or of those between nodes, whichever is asked for.
    """
    cost = cost_then(records, answers, rows, slow)
    if cost < TOLD_MIN:
        return None
    numbers = [answers[at].piece for at in slow]
    where = locate_then(records, factor, numbers, side, spots)
    here = np.isin(records.piece, numbers) & (factor < 1)
    return Cause(
        TRANSFER,
        cost,
        0.0,
        rows[slow[0]][0],
        rows[slow[-1]][1],
        len(slow) >= WHOLE * len(rows),
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
    found: Mask = inside_nodes(members_of_paths(records, path), spots)[path]
    return found
