# SPDX-License-Identifier: Apache-2.0
"""Which processes, or sets of them, delayed the others by their own doing, and what that cost.

The cost is found by replay: the job with that process at its peers' pace. Peers that are late only
because they waited for it elsewhere cost nothing, and are not accused. The smallest set that
explains the cost is named (late_sets.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from nccl_inspector.analysis.chance import binomial_tail
from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask
from nccl_inspector.analysis.replay.costs import (
    piece_shares,
    replayed_s,
    standard_error,
    total_share,
)
from nccl_inspector.analysis.replay.first_steps import in_first_steps
from nccl_inspector.analysis.replay.late_sets import LateSet, of_nodes, spread_of, suspicious
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Piece, Replay, WhatIf

SINGLES_MAX, NODES_MAX = 96, 64  # the most suspicious, which are replayed one by one
_SUSPECT_SHARE = 0.01  # share of the time by which a suspect's own gaps exceed its peers'
_SUSPECT_Z = 6.0  # the same in units of the spread over the ranks
# Share of its set's cost that makes a process, or a smaller late set, the culprit.
_MEMBER_OF_SET, _SET_OF_SET = 0.7, 0.9
# A set of this share of the processes has a part in what is usual: it is compared with the others.
_LARGE_SET = 0.2
_UNIT_SUSPECTS = 0.8  # share of a set's processes that makes it one of several that hide each other
_ONCE_PIECES, _ONCE_SHARE = 4, 0.6
_STEADY_PARTS_MIN = 6
_ALONE_MIN = 4  # processes needed to tell that always the same one stands out
LATE_NS_MIN = 100_000.0  # a shorter excess does not count as late
# A delay is far longer than those of others if it is this many times as long as their longest:
# delays of random length reach twice that. Of the others, this quantile, because some may be late
# themselves. One delay alone is `once`.
FAR_TIMES, FAR_OTHERS = 4.0, 0.75
_FAR_MIN = 2
# Delays shorter than this are not counted to tell whether it is chance whose they are: where ranks
# queue behind each other in each operation, the lateness of who waited is not known as well.
_LONG_NS = 100_000_000.0


@dataclass(frozen=True, slots=True)
class Culprit:
    """One cause of delay; shares are of the job's time."""

    members: tuple[int, ...]  # one process, or all of a set
    among: LateSet | None  # None: it is one process
    cost_share: float
    error_share: float  # standard error of the cost, over the pieces
    typical_share: float  # cost of the median process (or set of its sort) of this job
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
    runs: "Runs"
    dismissed_share: float = 0.0  # what lateness costs that is not proved to be more than chance


def own_excess(order: Order, usual: Floats) -> tuple[Floats, Mask]:
    """Return by how many ns each gap is longer than usual, and a mask of where that is known."""
    known = ~np.isnan(usual) & ~np.isnan(order.gap) & ~order.queued
    return np.where(known, order.gap - usual, 0.0), known


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of operations with one cause: owner, longest excess, and whether at the job's start.

    `rows`: of the records, the one with the longest excess.

    Operations that were put in (hidden_barriers.py) are left out: they begin when the operation
    before ends, so nobody is late for them.
    """

    rows: Ints
    owner: Ints
    longest: Floats
    starting: Mask


def _find_runs(records: Records, order: Order, excess: Floats, known: Mask) -> Runs:
    """Return the runs of all processes; excess and mask are of `own_excess`."""
    told = ~np.array([comm.hidden for comm in records.comms])[records.comm]
    rows = np.flatnonzero(known & (order.cause >= 0) & told)
    if not len(rows):
        return Runs(rows, np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    at = np.lexsort((excess[rows], order.cause[rows]))
    last = np.append(np.flatnonzero(np.diff(order.cause[rows][at])), len(rows) - 1)
    chosen = rows[at[last]]
    starting = in_first_steps(records, order)[chosen]
    return Runs(chosen, records.member[chosen], excess[chosen], starting)


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


def _chance(runs: Runs, member: int, present: Ints) -> float:
    """Return the probability that one of a job's processes has that many long delays by chance.

    Delays that come and go vary too much for a standard error of their mean. What counts is that
    they always belong to the same process. The long delays of all processes are counted, from the
    shortest of its own long ones on: those of who waited for it, too, and what all have at once.
    """
    if len(present) < _ALONE_MIN:
        return 1.0
    late = runs.longest >= LATE_NS_MIN
    own = runs.longest[late & (runs.owner == member)]
    least = max(_half_of_all(own) / 2, _LONG_NS)
    mine, every = int((own >= least).sum()), int((runs.longest >= least).sum())
    return min(1.0, len(present) * binomial_tail(mine, every, 1 / len(present)))


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
    runs = _find_runs(records, order, excess, known)
    span = spans(records)
    wall = np.zeros(records.members)
    np.add.at(wall, runs.owner, runs.longest)
    wall = np.divide(wall, span, out=np.zeros_like(wall), where=span > 0)
    positive = np.zeros(records.members)
    np.add.at(positive, runs.owner, np.maximum(runs.longest, 0.0))
    singles: list[tuple[int, ...]] = [
        (int(one),) for one in present[np.argsort(-positive[present])][:SINGLES_MAX]
    ]
    by_node = of_nodes(present, nodes)
    by_node.sort(key=lambda one: -float(positive[list(one.members)].sum()))
    sets = suspicious(by_node[:NODES_MAX], records, wall, present)
    suspects = _suspicious(wall, present)
    everybody = tuple(present.tolist())
    sorts: list[list[tuple[int, ...]]] = [singles]
    sorts += ([one.members for one in sort] for sort in sets.sorts if sort)
    late = {one.members: one for one in sets.late}
    asked: list[tuple[int, ...]] = list(
        dict.fromkeys([*(one for sort in sorts for one in sort), *late, everybody])
    )
    answers = replay.ask([_question(replay, members, late, len(present)) for members in asked])
    if not answers:
        return FoundCulprits((), 0.0, 0, 0.0, runs)
    columns = {members: 1 + place for place, members in enumerate(asked)}
    costs = {members: total_share(answers, column) for members, column in columns.items()}
    lengths = _lengths(answers)
    sort_of = {members: sort for sort in reversed(sorts) for members in sort}
    parts = {members: _parts(answers, columns[members], lengths) for members in sort_of}
    common_error = float(np.median([standard_error(parts[one], lengths) for one in singles]))
    found = []
    taken = _choose({one: costs[one] for one in singles}, late, costs)
    taken = _merge(taken, _alone(replay, _units(suspects, taken, late)))
    for members, cost in sorted(taken.items(), key=lambda one: -one[1]):
        column = columns.get(members)
        shares = piece_shares(answers, column) if column is not None else np.zeros(len(answers))
        if column is not None and abs(total_share(answers, column)) < cost / 2:
            shares = shares * 0 + cost  # its cost alone was found by another question
        # It is compared with the others of its sort, whose cost is as uncertain. What chance gives
        # is the median of theirs.
        rest = [one for one in sort_of.get(members, ()) if one != members]
        among = np.maximum(np.median([parts[one] for one in rest], axis=0), 0.0) if rest else 0.0
        common = float(np.median([costs[one] for one in rest])) if rest else 0.0
        error = steady = 0.0
        if column is not None:
            own = _parts(answers, column, lengths)
            error = hypot(standard_error(own, lengths), common_error)
            steady = _steady(own - among, lengths)
        one = _culprit(answers, members, late.get(members), cost, shares, common, error, runs)
        single = len(members) == 1 and column is not None
        chance = _chance(runs, members[0], present) if single else 1.0
        far_share = _far_share(runs, members, present)
        found.append(replace(one, steady=steady, chance=chance, far_share=far_share))
    return FoundCulprits(tuple(found), replayed_s(answers), len(answers), costs[everybody], runs)


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


def _question(
    replay: Replay,
    members: tuple[int, ...],
    late: Mapping[tuple[int, ...], LateSet],
    present: int,
) -> WhatIf:
    """Return the question what a process or set costs; `present`: how many processes there are."""
    if members in late and len(members) >= _LARGE_SET * present:
        return WhatIf(gap=replay.to_others_pace(members))
    return WhatIf(members)


def _choose(
    singles: Mapping[tuple[int, ...], float],
    late: Mapping[tuple[int, ...], LateSet],
    costs: Mapping[tuple[int, ...], float],
) -> dict[tuple[int, ...], float]:
    """Return the costs of processes and sets: the smallest that explain what there is to explain.

    A set that is late together replaces what is inside it if none of that explains its cost.
    `late`: the smallest sets first.
    """
    found = dict(singles)
    for members in late:
        inside = [one for one in found if set(one) <= set(members)]
        cost = costs[members]
        if all(
            found[one] < (_SET_OF_SET if len(one) > 1 else _MEMBER_OF_SET) * cost for one in inside
        ):
            for one in inside:
                del found[one]
            found[members] = cost
    return found


def _units(
    suspects: Sequence[int],
    taken: Mapping[tuple[int, ...], float],
    late: Mapping[tuple[int, ...], LateSet],
) -> list[tuple[int, ...]]:
    """Return the sets and processes that may hide each other, without common members."""
    units = [members for members in taken if len(members) > 1]
    rest = set(suspects) - {one for members in units for one in members}
    for members in sorted(late, key=len, reverse=True):
        if len(rest & set(members)) >= _UNIT_SUSPECTS * len(members):
            units.append(members)
            rest -= set(members)
    return [*units, *((one,) for one in suspects if one in rest)]


def _alone(replay: Replay, units: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """Return what each of several suspects costs when the others are at the usual pace.

    Two that are late by the same amount cost nothing one by one, because each hides the other. What
    they cost together is divided between them.
    """
    some = units[:SINGLES_MAX]
    if len(some) < 2:
        return {}
    everyone = tuple(one for unit in units for one in unit)
    rest = [tuple(one for one in everyone if one not in unit) for unit in some]
    answers = replay.ask([WhatIf(members) for members in (everyone, *rest)])
    together = total_share(answers, 1)
    costs = [max(together - total_share(answers, 2 + place), 0.0) for place in range(len(some))]
    scale = min(1.0, together / sum(costs)) if sum(costs) > 0 else 0.0
    return {unit: cost * scale for unit, cost in zip(some, costs, strict=True)}


def _merge(
    taken: Mapping[tuple[int, ...], float], alone: Mapping[tuple[int, ...], float]
) -> dict[tuple[int, ...], float]:
    """Return the costs with those of `alone`; a set replaces what is inside it."""
    inside = {(one,) for unit in alone if len(unit) > 1 for one in unit}
    found = {members: cost for members, cost in taken.items() if members not in inside}
    for unit, cost in alone.items():
        found[unit] = max(found.get(unit, 0.0), cost)
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


def _far_share(runs: Runs, members: tuple[int, ...], present: Ints) -> float:
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
    among: LateSet | None,
    cost: float,
    shares: Floats,
    typical: float,
    error: float,
    runs: Runs,
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
        among=among,
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
