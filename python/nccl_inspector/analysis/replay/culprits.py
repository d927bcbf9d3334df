# SPDX-License-Identifier: Apache-2.0
"""Which processes, or all of a node, delayed the others by their own doing, and what that cost.

The cost is found by replay: the job with that process at its peers' pace. Peers that are late only
because they waited for it elsewhere cost nothing, and are not accused.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, medians_of_others
from nccl_inspector.analysis.replay.costs import (
    binomial_tail,
    piece_shares,
    replayed_s,
    standard_error,
    total_share,
)
from nccl_inspector.analysis.replay.first_steps import in_first_steps
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Piece, Replay, WhatIf
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA

SINGLES_MAX, NODES_MAX = 96, 64  # the most suspicious, which are replayed one by one
_SUSPECT_SHARE = 0.01  # share of the time by which a suspect's own gaps exceed its peers'
_SUSPECT_Z = 6.0  # the same in units of the spread over the ranks
_MEMBER_OF_NODE = 0.7  # share of its node's cost that makes a process, not its node, the culprit
_NODE_SUSPECTS = 0.6  # share of a node's processes that must be suspicious themselves
_NODE_Z = 3.0
_ONCE_PIECES, _ONCE_SHARE = 4, 0.6
_STEADY_PARTS_MIN = 6
_ALONE_MIN = 4  # processes needed to tell that always the same one stands out
LONG_SHARE, _LONG_MIN = 0.3, 0.02  # long delays: least share of the longest one, and of a piece
LATE_NS_MIN = 100_000.0  # a shorter excess does not count as late
# A delay is far longer than those of others if it is this many times as long as their longest:
# delays of random length reach twice that. Of the others, this quantile, because some may be late
# themselves. One delay alone is `once`.
FAR_TIMES, FAR_OTHERS = 4.0, 0.75
_FAR_MIN = 2


@dataclass(frozen=True, slots=True)
class Culprit:
    """One cause of delay; shares are of the job's time."""

    members: tuple[int, ...]  # one process, or all of a node
    node: str  # empty: it is one process
    cost_share: float
    error_share: float  # standard error of the cost, over the pieces
    typical_share: float  # cost of the median process (or node) of this job
    once: bool  # one single piece has most of the cost: it may have happened once
    saved_ns: float  # in the replayed pieces
    late_ns: float  # median excess of the gaps that make up most of its lateness
    most_share: float  # share of these gaps among its gaps
    late_share: float  # share of its gaps that were too long
    start_share: float  # share of that lateness that was in the job's first steps
    # Begin and end of each piece (ns), and the share that it cost there.
    pieces: tuple[tuple[int, int, float], ...]
    steady: float = 0.0  # standard errors above 0, without the most extreme part
    chance: float = 1.0  # probability that the same one is late so often, if it could be anyone
    far_share: float = 0.0  # share of its lateness in delays far longer than any of the others'


@dataclass(frozen=True, slots=True)
class FoundCulprits:
    """What the replay says about a job."""

    culprits: tuple[Culprit, ...]  # the most costly first, also those without any cost
    seconds: float  # time that could be replayed
    pieces: int
    imbalance_share: float  # what all processes together at the usual pace would save
    dismissed_share: float = 0.0  # what lateness costs that is not proved to be more than chance


def own_excess(order: Order, usual: Floats) -> tuple[Floats, Mask]:
    """Return by how many ns each gap is longer than usual, and a mask of where that is known."""
    known = ~np.isnan(usual) & ~np.isnan(order.gap) & ~order.queued
    return np.where(known, order.gap - usual, 0.0), known


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of operations with one cause: owner, longest excess, and whether at the job's start.

    Operations that were put in (hidden_barriers.py) are left out: they begin when the operation
    before ends, so nobody is late for them.
    """

    owner: Ints
    longest: Floats
    starting: Mask


def _runs(records: Records, order: Order, excess: Floats, known: Mask) -> _Runs:
    told = ~np.array([comm.hidden for comm in records.comms])[records.comm]
    rows = np.flatnonzero(known & (order.cause >= 0) & told)
    if not len(rows):
        return _Runs(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    at = np.lexsort((excess[rows], order.cause[rows]))
    last = np.append(np.flatnonzero(np.diff(order.cause[rows][at])), len(rows) - 1)
    chosen = rows[at[last]]
    starting = in_first_steps(records, order)[chosen]
    return _Runs(records.member[chosen], excess[chosen], starting)


def spread_of(values: Floats) -> tuple[float, float]:
    """Return the median of values, and their deviation from it as a standard deviation."""
    middle = float(np.median(values))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))


def _parts(pieces: Sequence[Piece], column: int, lengths: Floats) -> Floats:
    """Return the share that a question saves of each part of the pieces."""
    return np.concatenate([one.parts[:, column] for one in pieces]) / lengths


def _lengths(pieces: Sequence[Piece]) -> Floats:
    """Return the length of each part of the pieces, in ns."""
    return np.concatenate(
        [np.full(len(one.parts), max(one.length / len(one.parts), 1.0)) for one in pieces]
    )


def _steady(shares: Floats, lengths: Floats) -> float:
    """Return how many standard errors the mean is above 0, without the most extreme part.

    One part is left out because a job's first seconds are special, and in a short job they are a
    large part.
    """
    if len(shares) < _STEADY_PARTS_MIN:
        return 0.0
    odd = np.argmax(np.abs(shares - np.median(shares)) * lengths)
    rest, lengths = np.delete(shares, odd), np.delete(lengths, odd)
    return float(np.average(rest, weights=lengths)) / max(standard_error(rest, lengths), 1e-9)


def _chance(own: Floats, every: Floats) -> float:
    """Return the probability that one of a job's processes has that many long delays by chance.

    Rare delays vary too much for a standard error of their mean. What counts is that they always
    belong to the same process. `own`: what it costs in each piece; `every`: processes x pieces. The
    long delays of all processes are counted from the shortest of its own long ones on.
    """
    if len(every) < _ALONE_MIN:
        return 1.0
    long_ = own >= max(float(own.max(initial=0.0)) * LONG_SHARE, _LONG_MIN)
    least = float(own[long_].min()) if long_.any() else 1.0
    count = int((every >= least).sum())
    return min(1.0, len(every) * binomial_tail(int(long_.sum()), count, 1 / len(every)))


def _suspicious(wall: Floats, present: Ints) -> tuple[int, ...]:
    """Return the processes whose own gaps are far longer than those of the others."""
    middle, spread = spread_of(wall[present])
    least = max(_SUSPECT_SHARE, _SUSPECT_Z * spread)
    return tuple(int(one) for one in present if wall[one] - middle >= least)


def find_culprits(
    records: Records,
    order: Order,
    usual: Floats,
    nodes: Sequence[str],
    replay: Replay,
) -> FoundCulprits:
    """Return which processes or nodes cost how much; `nodes` is by process."""
    excess, known = own_excess(order, usual)
    present = np.unique(records.member)
    runs = _runs(records, order, excess, known)
    span = spans(records)
    wall = np.zeros(records.members)
    np.add.at(wall, runs.owner, runs.longest)
    wall = np.divide(wall, span, out=np.zeros_like(wall), where=span > 0)
    positive = np.zeros(records.members)
    np.add.at(positive, runs.owner, np.maximum(runs.longest, 0.0))
    singles = [(int(one),) for one in present[np.argsort(-positive[present])][:SINGLES_MAX]]
    by_node: dict[str, list[int]] = defaultdict(list)
    for one in present.tolist():
        by_node[nodes[one]].append(one)
    several = {name: tuple(found) for name, found in by_node.items() if len(found) > 1}
    if len(several) < 2:
        several = {}
    ranked = sorted(several, key=lambda name: -float(positive[list(several[name])].sum()))
    groups = [several[name] for name in ranked[:NODES_MAX]]
    suspects = _suspicious(wall, present)
    everybody = tuple(present.tolist())
    asked: list[tuple[int, ...]] = [*singles, *groups, everybody]
    if len(suspects) > 1:
        asked.append(suspects)
    answers = replay.ask([WhatIf(members) for members in asked])
    if not answers:
        return FoundCulprits((), 0.0, 0, 0.0)
    columns = {members: 1 + place for place, members in enumerate(asked)}
    costs = [total_share(answers, 1 + place) for place in range(len(asked))]
    # The cost that chance gives a process or a node: the median of the others of its sort.
    typical = _typical(singles, columns, costs) | _typical(groups, columns, costs)
    lengths = _lengths(answers)
    tables = [
        np.stack([_parts(answers, columns[one], lengths) for one in sort])
        for sort in (singles, groups)
        if sort
    ]
    common_error = float(np.median([standard_error(own, lengths) for own in tables[0]]))
    by_piece = np.stack([piece_shares(answers, columns[one]) for one in singles])
    found = []
    node_costs = {
        members: costs[asked.index(members)]
        for members in groups
        if _all_of_node(wall, present, members)
    }
    taken = _choose(singles, node_costs, costs)
    if len(suspects) > 1:
        alone = _alone(replay, suspects, costs[-1])
        taken = _merge(taken, alone)
    for members, cost in sorted(taken.items(), key=lambda one: -one[1]):
        column = columns.get(members)
        shares = piece_shares(answers, column) if column is not None else np.zeros(len(answers))
        if column is not None and abs(total_share(answers, column)) < cost / 2:
            shares = shares * 0 + cost  # its cost alone was found by another question
        # It is compared with the others, whose cost is as uncertain.
        sort = groups if len(members) > 1 else singles
        rest = np.array([one != members for one in sort])
        table = tables[len(members) > 1]
        among = np.maximum(np.median(table[rest], axis=0), 0.0) if rest.any() else 0.0
        error = steady = 0.0
        if column is not None:
            own = _parts(answers, column, lengths)
            error = hypot(standard_error(own, lengths), common_error)
            steady = _steady(own - among, lengths)
        common = typical.get(members, 0.0)
        one = _culprit(answers, members, nodes, cost, shares, common, error, runs)
        single = len(members) == 1 and column is not None
        chance = _chance(piece_shares(answers, columns[members]), by_piece) if single else 1.0
        far_share = _far_share(runs, members, present)
        found.append(replace(one, steady=steady, chance=chance, far_share=far_share))
    return FoundCulprits(
        tuple(found),
        replayed_s(answers),
        len(answers),
        costs[asked.index(everybody)],
    )


def _typical(
    sort: Sequence[tuple[int, ...]],
    columns: Mapping[tuple[int, ...], int],
    costs: Sequence[float],
) -> dict[tuple[int, ...], float]:
    """Return for each of a sort (processes or nodes) the median cost of the others."""
    own = np.array([costs[columns[members] - 1] for members in sort])
    others = medians_of_others(np.zeros(len(own), np.int64), own)
    return dict(zip(sort, np.nan_to_num(others).tolist(), strict=True))


def spans(records: Records) -> Floats:
    """Return by process the time from its first to its last record, summed over pieces, in ns."""
    key = records.piece * records.members + records.member
    first = np.full(int(key.max()) + 1, np.inf)
    last = np.full(len(first), -np.inf)
    low = int(records.begin.min())
    np.minimum.at(first, key, (records.begin - low).astype(float))
    np.maximum.at(last, key, (records.end - low).astype(float))
    span = np.where(np.isfinite(first), last - first, 0.0)
    found: Floats = np.zeros(records.members)
    np.add.at(found, np.arange(len(span)) % records.members, span)
    return found


def _all_of_node(wall: Floats, present: Ints, members: tuple[int, ...]) -> bool:
    """Tell whether nearly all processes of a node have longer gaps than those of other nodes.

    This excludes processes that are late by chance and happen to share a node.
    """
    others = present[~np.isin(present, members)]
    middle, spread = spread_of(wall[others])
    least = max(_NODE_Z * spread, _SUSPECT_SHARE / 2)
    return bool(np.mean(wall[list(members)] - middle >= least) >= _NODE_SUSPECTS)


def _choose(
    singles: Sequence[tuple[int, ...]],
    nodes: Mapping[tuple[int, ...], float],
    costs: Sequence[float],
) -> dict[tuple[int, ...], float]:
    """Return the costs of processes; a node replaces its own if none of them explains its cost."""
    found = dict(zip(singles, costs, strict=False))
    for members, cost in nodes.items():
        own = max((found.get((one,), 0.0) for one in members), default=0.0)
        if own < _MEMBER_OF_NODE * cost:
            for one in members:
                found.pop((one,), None)
            found[members] = cost
    return found


def _alone(
    replay: Replay, suspects: tuple[int, ...], together: float
) -> dict[tuple[int, ...], float]:
    """Return what each of several suspects costs when the others are at the usual pace.

    Two processes that are late by the same amount cost nothing one by one, because each hides the
    other. What they cost together is divided between them.
    """
    some = suspects[:SINGLES_MAX]
    rest = [tuple(other for other in suspects if other != one) for one in some]
    answers = replay.ask([WhatIf(members) for members in (suspects, *rest)])
    costs = [
        max(total_share(answers, 1) - total_share(answers, 2 + place), 0.0)
        for place in range(len(some))
    ]
    scale = min(1.0, together / sum(costs)) if sum(costs) > 0 else 0.0
    return {(one,): cost * scale for one, cost in zip(some, costs, strict=True)}


def _merge(
    taken: dict[tuple[int, ...], float], alone: Mapping[tuple[int, ...], float]
) -> dict[tuple[int, ...], float]:
    """Return the costs with those of `alone`, unless a suspect's node already stands for it."""
    inside = {one for members in taken if len(members) > 1 for one in members}
    found = dict(taken)
    for members, cost in alone.items():
        if members[0] not in inside:
            found[members] = max(found.get(members, 0.0), cost)
    return found


def _half_of_all(amounts: Floats) -> float:
    """Return the amount from which on the larger amounts make up half of the sum.

    A rank that is late once per step is also a little late at many later operations.
    """
    if not len(amounts):
        return 0.0
    ordered = np.sort(amounts)
    total = np.cumsum(ordered)
    return float(ordered[np.searchsorted(total, total[-1] / 2)])


def _far_share(runs: _Runs, members: tuple[int, ...], present: Ints) -> float:
    """Return the share of some processes' lateness in delays far longer than those of the others.

    A delay of ten seconds where the others are late by milliseconds needs no statistics.
    """
    others = present[~np.isin(present, members)]
    mine = runs.longest[np.isin(runs.owner, members) & (runs.longest > 0)]
    if not len(others) or not len(mine):
        return 0.0
    longest = np.zeros(int(present.max()) + 1)
    np.maximum.at(longest, runs.owner, runs.longest)
    usual = float(np.quantile(longest[others], FAR_OTHERS, method="higher"))
    far = mine[mine >= max(FAR_TIMES * usual, LATE_NS_MIN)]
    return float(far.sum() / mine.sum()) if len(far) >= _FAR_MIN * len(members) else 0.0


def _culprit(
    answers: Sequence[Piece],
    members: tuple[int, ...],
    nodes: Sequence[str],
    cost: float,
    shares: Floats,
    typical: float,
    error: float,
    runs: _Runs,
) -> Culprit:
    weights = np.array([one.length for one in answers])
    mine = np.isin(runs.owner, members)
    late = mine & (runs.longest >= LATE_NS_MIN)
    some = late & (runs.longest >= _half_of_all(runs.longest[late]) / 2)
    most = runs.longest[some]
    parts = shares * weights
    total = float(parts.sum())
    once = len(parts) >= _ONCE_PIECES and total > 0 and float(parts.max()) > _ONCE_SHARE * total
    return Culprit(
        members=members,
        node=nodes[members[0]] if len(members) > 1 else "",
        cost_share=cost,
        error_share=error,
        typical_share=typical,
        once=once,
        saved_ns=total,
        late_ns=float(np.median(most)) if len(most) else 0.0,
        most_share=len(most) / max(int(mine.sum()), 1),
        late_share=float(late.sum()) / max(int(mine.sum()), 1),
        start_share=float(most[runs.starting[some]].sum()) / max(float(most.sum()), 1.0),
        pieces=tuple(
            (one.start, one.end, float(share)) for one, share in zip(answers, shares, strict=True)
        ),
    )
