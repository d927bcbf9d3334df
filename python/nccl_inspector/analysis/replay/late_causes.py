# SPDX-License-Identifier: Apache-2.0
"""Which ranks, or sets of ranks, were late by their own doing and made the others wait.

Some of that is the program's. In a mixture of experts each layer sends its tokens to the ranks with
their experts, and back. A rank whose experts get more computes longer between these two exchanges,
and in no other part of the step. A slow GPU is as slow in the rest of the layer, and a late host is
late at any place. So neither hardware nor host is at fault, however many ranks at the same place of
all groups are late.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, medians, number_rows
from nccl_inspector.analysis.replay.cause import COST_MIN, LATE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.costs import felt_later, period_of, total_share
from nccl_inspector.analysis.replay.culprits import (
    Culprit,
    FoundCulprits,
    Runs,
    find_culprits,
    own_excess,
    spans,
)
from nccl_inspector.analysis.replay.late_sets import spread_of
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Replay, WhatIf
from nccl_inspector.model.process import FUNCS, PEER_NONE

# One holds up its company if it costs so many times as much as each of them, and if this share of
# them is accused. In the job that showed it: 6.4 times, and all seven.
_HELD_TIMES, _HELD_SHARE = 3.0, 0.5
_ERRORS = 4.0  # standard errors that a cost must be above 0
_CHANCE_MAX = 1e-4  # chance that the long delays are always the same process's
_SPREADS = 5.0  # in units of the spread of the other processes' costs
_LATE_SHARE, _LATE_APART = 0.6, 0.3  # share of its gaps, and how much more than usual in the job
_WHOLE_PIECE, _UNSEEN_MAX = 0.9, 0.5  # quantile of pieces' lengths; most of long delays missed
_RARE_SHARE, _RARE_TIMES = 0.03, 8.0  # share of a process's gaps; times its usual excess
_AT_START = 0.8  # share of its lateness
_RARE_APART_S = 20.0  # average distance; a process that is late once per step is not rarely late

# Of work that is uneven.
_ALL_TO_ALL = FUNCS.index("AlltoAll")
_SEND = FUNCS.index("Send")
_RANKS_MIN = 3  # with two ranks, all peers are one
_INSIDE_MIN = 0.8  # share of the lateness that lies between two exchanges of one communicator
# Of the work between exchanges the experts' is a part, of a GPU all of it is slow: this share of it
# is not late, by less than this share of what the latest places are.
_REST_MIN, _REST_LATE_MAX = 0.2, 0.35
_PLACES_MIN = 2  # forward and backward: late once in a step may be any wait


def leader_of(records: Records) -> int:
    """Return the process that is rank 0 of the largest communicator; -1: none."""
    largest = max(records.comms, key=lambda comm: (comm.nranks, -comm.ordinal), default=None)
    return min(largest.members) if largest is not None and largest.members else -1


def _rare_gap(
    records: Records, order: Order, usual: Floats, member: int, replay: Replay
) -> Floats | None:
    """Return what to add to gaps to remove a process's rare long delays; None: it has none."""
    excess, known = own_excess(order, usual)
    mine = np.flatnonzero(known & (records.member == member))
    if len(mine) < 1 / _RARE_SHARE:
        return None
    high = float(np.quantile(np.abs(excess[mine]), 1 - _RARE_SHARE))
    long_ = _RARE_TIMES * max(high, 1e5)
    # All gaps that are counted from there contain the delay.
    times = len(np.unique(order.cause[mine[excess[mine] > long_]]))
    if not times or spans(records)[member] < _RARE_APART_S * 1e9 * times:
        return None
    pace = replay.to_peers_pace((member,))  # also for operations that were queued
    return np.where(pace < -long_, pace, 0.0)


def _is_proved(one: Culprit, spread: float, usual_late: float) -> bool:
    cost = _net(one)
    if cost < max(TOLD_MIN, _SPREADS * spread):
        return False
    # In a short job the cost of its few parts varies; a process that is nearly always late, and the
    # only one, counts anyway.
    always = one.late_share >= max(_LATE_SHARE, usual_late + _LATE_APART)
    return (
        always
        or one.once
        or cost >= _ERRORS * one.error_share
        or one.steady >= 2 * _ERRORS
        or one.chance <= _CHANCE_MAX
        or cost * one.far_share >= TOLD_MIN
    )


def _net(one: Culprit) -> float:
    """Return what a culprit costs more than others do by chance."""
    return max(one.cost_share - max(one.typical_share, 0.0), 0.0)


def _victims(records: Records, culprit: tuple[int, ...]) -> tuple[int, ...]:
    """Return the processes that work most closely with a culprit, and so were late with it."""
    mine = np.isin(records.member, culprit)
    often = np.bincount(records.comm[mine], minlength=len(records.comms))
    for comm in np.argsort(-often).tolist():
        members = set(records.comms[comm].members)
        if often[comm] and len(members) < len(np.unique(records.member)) / 2:
            return tuple(sorted(members - set(culprit)))
    return ()


def without_held_up(
    causes: Sequence[Cause], cost_of: Callable[[tuple[int, ...]], float]
) -> list[Cause]:
    """Return the causes without processes that are late only because a far later one is.

    Most of those that work closely with it are accused, too, each of much less. That they all have
    a fault of their own is improbable; they wait for it in something that has no record. If they
    cost nothing by themselves (`cost_of`, the share that is saved if some processes keep their
    peers' pace), what they cost is the later one's. Who is accused is said to be late because of
    nobody.
    """
    kept = sorted(causes, key=lambda one: -one.cost_share)
    for one in list(kept):
        company = set(one.victims)
        held = [
            other for other in kept
            if other is not one and set(other.members) <= company
            and other.cost_share * _HELD_TIMES <= one.cost_share
        ]  # fmt: skip
        members = tuple(sorted({member for other in held for member in other.members}))
        if one not in kept or not members or len(members) < _HELD_SHARE * len(company):
            continue
        if cost_of(members) >= TOLD_MIN:
            continue
        more = max(cost_of((*one.members, *members)) / one.cost_share, 1.0)
        kept = [other for other in kept if other not in held]
        kept[kept.index(one)] = replace(
            one, cost_share=min(one.cost_share * more, 1.0), saved_s=one.saved_s * more
        )
    accused = {member for one in kept for member in one.members}
    return [
        replace(one, victims=tuple(sorted(set(one.victims) - accused)))
        if accused & set(one.victims) else one
        for one in kept
    ]  # fmt: skip


def _felt_later(replay: Replay, guilty: tuple[int, ...]) -> float:
    gap = replay.to_peers_pace(guilty)
    first_half = np.where(replay.in_first_half(), gap, 0.0)
    return felt_later(replay, WhatIf(members=guilty, follows=True), WhatIf(gap=first_half))


def late_causes(
    records: Records, order: Order, usual: Floats, nodes: Sequence[str], replay: Replay
) -> tuple[list[Cause], FoundCulprits]:
    """Return the causes that are proved, and all that was asked; `nodes` is by process."""
    found = find_culprits(records, order, usual, nodes, replay)
    # A process that is always early would make the job longer at the usual pace; that is no spread.
    costs = np.array([max(one.cost_share, 0.0) for one in found.culprits if len(one.members) == 1])
    spread = spread_of(costs)[1] if len(costs) > 3 else 0.0
    late = [one.late_share for one in found.culprits if len(one.members) == 1]
    usual_late = float(np.median(late)) if late else 0.0
    leader = leader_of(records)
    parts = replay.part[np.unique(records.member)]
    causes = []
    proved = [one for one in found.culprits if _is_proved(one, spread, usual_late)]
    guilty = tuple({member for one in proved for member in one.members})
    factor = _felt_later(replay, guilty) if guilty else 1.0
    broken = (int(records.run.max()) + 1) / max(found.pieces, 1)
    exchanging = _exchanges(records)
    dismissed = [one for one in found.culprits if one not in proved]
    # What costs this much is told, though it may be chance.
    doubtful = [one for one in dismissed if _net(one) >= COST_MIN]
    for one in [*proved, *doubtful]:
        cost = _net(one) * factor
        rare = False
        if len(one.members) == 1:
            rare, long_ns = _mostly_rare(records, order, usual, one, replay)
            cost = min(cost * (_unseen(one, long_ns * broken) if rare else 1.0), 1.0)
        start, end, whole = period_of(one.pieces)
        if one.once:
            best = max(one.pieces, key=lambda piece: piece[2] * (piece[1] - piece[0]))
            start, end, whole = best[0], best[1], False
        causes.append(
            Cause(
                LATE,
                cost,
                one.error_share * factor,
                start,
                end,
                whole,
                members=one.members,
                among=one.among,
                uneven=bool(exchanging.any())
                and _is_uneven(records, order, usual, exchanging, one.members, found.runs),
                late_ns=one.late_ns,
                late_share=one.most_share,
                rare=rare,
                once=one.once,
                starting=one.start_share >= _AT_START,
                leader=one.members == (leader,),
                victims=_victims(records, one.members),
                saved_s=one.saved_ns * factor / 1e9,
                doubtful=one in doubtful,
                part=int(np.sum(parts == replay.part[one.members[0]])) if np.ptp(parts) else 0,
            )
        )
    causes = without_held_up(
        causes, lambda members: total_share(replay.ask([WhatIf(members)]), 1) * factor
    )
    told = sum(_net(one) for one in proved)
    rest = max(sum(map(_net, dismissed)), found.imbalance_share - told, 0.0)
    return causes, replace(found, dismissed_share=rest)


def _exchanges(records: Records) -> Mask:
    """Tell which communicators exchange all with all: by AlltoAll, or a Send to each other rank."""
    count = len(records.comms)
    found: Mask = np.bincount(records.comm[records.func == _ALL_TO_ALL], minlength=count) > 0
    sends = np.flatnonzero((records.func == _SEND) & (records.peer != PEER_NONE))
    if len(sends):
        cell = number_rows(records.comm[sends], records.member[sends])
        pair = np.unique(np.stack((cell, records.peer[sends])), axis=1)
        peers = np.bincount(pair[0], minlength=int(cell.max()) + 1)[cell]
        sizes = np.array([one.nranks for one in records.comms], np.int64)[records.comm[sends]]
        all_of = sends[(peers >= sizes - 1) & (sizes >= _RANKS_MIN)]
        found = found | (np.bincount(records.comm[all_of], minlength=count) > 0)
    return found


def _is_uneven(
    records: Records,
    order: Order,
    usual: Floats,
    exchanging: Mask,
    members: Sequence[int],
    runs: Runs,
) -> bool:
    """Tell whether late processes are late only in the part of a layer that is between exchanges.

    `exchanging`: by communicator.
    """
    mine = np.isin(runs.owner, members)
    rows, excess = runs.rows[mine], runs.longest[mine]
    between = exchanging[records.comm[rows]]
    cause = order.cause[rows]
    between &= records.comm[cause] == records.comm[rows]
    late = np.maximum(excess, 0.0)
    if not between.any() or late[between].sum() < _INSIDE_MIN * late.sum():
        return False
    # A pattern of nothing but exchanges has one place; they are told apart by their turn.
    turn = _turns(runs.owner[mine], records.begin[rows], between)[between]
    rows, cause, excess = rows[between], cause[between], excess[between]
    spot = number_rows(order.spot[rows], order.spot[cause], turn)
    count = int(spot.max()) + 1
    longer = medians(spot, excess / np.maximum(usual[rows], 1.0), count)
    work = np.bincount(spot, usual[rows], minlength=count)
    rest = longer < _REST_LATE_MAX * longer.max()
    places = np.count_nonzero(~rest)
    return bool(places >= _PLACES_MIN and work[rest].sum() >= _REST_MIN * work.sum())


def _turns(owner: Ints, begin: Ints, between: Mask) -> Ints:
    """Return for each row how many rows after the last one that is not `between` it comes."""
    in_order = np.lexsort((begin, owner))
    new = np.append(True, np.diff(owner[in_order]) != 0) | ~between[in_order]
    place = np.arange(len(owner))
    found = np.empty(len(owner), np.int64)
    found[in_order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return found


def _mostly_rare(
    records: Records, order: Order, usual: Floats, one: Culprit, replay: Replay
) -> tuple[bool, float]:
    """Tell whether most of a process's cost is of rare long delays, and how long these are (ns)."""
    gap = _rare_gap(records, order, usual, one.members[0], replay)
    if gap is None:
        return False, 0.0
    saved = total_share(replay.ask([WhatIf(gap=gap)]), 1)
    return saved > one.cost_share / 2, float(-gap[gap < 0].mean())


def _unseen(one: Culprit, long_ns: float) -> float:
    """Return the factor by which a cost of long delays is higher than what was seen.

    A delay that reaches over the border of a piece is not seen, and longer delays reach over it
    more often. The time that such a delay takes is also missing from the replayed time.
    """
    whole_ns = float(np.quantile([end - start for start, end, _ in one.pieces], _WHOLE_PIECE))
    if not whole_ns or not one.cost_share:
        return 1.0
    replayed = one.saved_ns / one.cost_share / (whole_ns * len(one.pieces))
    return max(1.0, min(replayed, 1.0) / (1 - min(long_ns / whole_ns, _UNSEEN_MAX)))
