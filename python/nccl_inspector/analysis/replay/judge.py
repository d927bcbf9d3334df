# SPDX-License-Identifier: Apache-2.0
"""All causes of lost time that exact records show, each with its cost, and whether one would show.

The cost is the share of the wall time that the job would not have taken without the cause, by
replaying the sampled pieces of time. What several causes cost together is shared out, so that no
second is counted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Mask
from nccl_inspector.analysis.replay.changes import GROWN, LONGER, Changes, find_changes
from nccl_inspector.analysis.replay.culprits import Culprit, Found, find_culprits, own_excess
from nccl_inspector.analysis.replay.hidden import fill_holes
from nccl_inspector.analysis.replay.order import Order, find_order, usual_gaps
from nccl_inspector.analysis.replay.paths import (
    SlowPaths,
    Spot,
    Where,
    find_slow_paths,
    locate,
    slow_then,
)
from nccl_inspector.analysis.replay.records import Records, Source, gather
from nccl_inspector.analysis.replay.whatif import Piece, Question, replay

COST_MIN = 0.01  # of the job's time, from which on a cause is a warning
TOLD_MIN = 0.003  # from which on it is information
_ERRORS = 3.0  # standard errors that a cost must be above nothing
_SPREADS = 5.0  # of what the same question says of the other processes
_PIECE_SLOW = 0.25  # of the usual cost of its worst pieces, for a piece to be in the period
_WHOLE = 0.8  # of the pieces
# Evidence that a fault of 5 % would have shown.
SEEN_PIECES_MIN, SEEN_RANKS_MIN, SEEN_JOINED_MIN, SEEN_SECONDS_MIN = 3, 0.5, 0.5, 5.0
_RARE_SHARE, _RARE_TIMES = 0.03, 8.0  # of a process's gaps; of its usual excess

LATE, TRANSFER, OUTSIDE = "late", "transfer", "outside"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of lost time. Times are ns of Unix time; shares are of the job's time."""

    kind: str  # LATE, TRANSFER or OUTSIDE
    cost_share: float
    error_share: float
    start: int
    end: int
    whole: bool  # it lasted for (nearly) all of the job
    members: tuple[int, ...] = ()  # whose doing it is; of TRANSFER those on the slow paths
    node: str = ""  # all processes of that node are late
    where: Where | None = None  # of TRANSFER
    inside: bool = False  # of TRANSFER: within nodes
    ratio: float = 1.0  # of T, or of own gaps, beside what is usual
    late_ns: float = 0.0
    late_share: float = 0.0
    victims: tuple[int, ...] = ()  # who were late because they waited for it
    rare: bool = False  # seldom and long, as checkpoints are
    once: bool = False
    leader: bool = False  # rank 0 of the largest communicator, which logs and saves for all
    saved_s: float = 0.0  # in the pieces that were replayed


@dataclass(frozen=True, slots=True)
class Judged:
    """What the records of a job say. `seen`: a fault of 5 % would have shown."""

    causes: tuple[Cause, ...] = ()
    seen: bool = False
    why_not: str = ""  # seen is False: what is missing
    pieces: int = 0
    seconds: float = 0.0  # that were replayed
    imbalance_share: float = 0.0
    clear: float = 0.0  # share of the operations of which it is known what they depend on
    wall: dict[int, float] = field(default_factory=dict)
    records: Records | None = None
    order: Order | None = None


def _period(culprit_pieces: Sequence[tuple[int, int, float]]) -> tuple[int, int, bool]:
    """Return from when to when a cause cost something, and whether that is nearly all the time."""
    shares = np.array([share for _, _, share in culprit_pieces])
    top = float(np.sort(shares)[-max(len(shares) // 4, 1) :].mean())
    slow = np.flatnonzero(shares >= max(_PIECE_SLOW * top, TOLD_MIN))
    if not len(slow):
        slow = np.arange(len(shares))
    start, end = culprit_pieces[slow[0]][0], culprit_pieces[slow[-1]][1]
    return start, end, len(slow) >= _WHOLE * len(shares)


def _leader(records: Records) -> int:
    """Return the process that is rank 0 of the largest communicator; -1: none."""
    largest = max(records.comms, key=lambda comm: (comm.nranks, -comm.ordinal), default=None)
    return min(largest.members) if largest is not None and largest.members else -1


def _rare_gap(records: Records, order: Order, usual: Floats, member: int) -> Floats | None:
    """Return what takes the rare long delays out of a process's own gaps; None: there are none."""
    excess, known = own_excess(order, usual)
    mine = np.flatnonzero(known & (records.member == member))
    if len(mine) < 1 / _RARE_SHARE:
        return None
    high = float(np.quantile(np.abs(excess[mine]), 1 - _RARE_SHARE))
    rare = mine[excess[mine] > _RARE_TIMES * max(high, 1e5)]
    if not len(rare):
        return None
    found = np.zeros(len(records))
    found[rare] = -excess[rare]
    return found


def _is_proved(one: Culprit, spread: float) -> bool:
    cost = one.cost_share - max(one.typical_share, 0.0)
    return cost >= max(TOLD_MIN, _ERRORS * one.error_share * (not one.once), _SPREADS * spread)


def _victims(records: Records, culprit: tuple[int, ...]) -> tuple[int, ...]:
    """Return who shares a smaller communicator with a culprit, and so was late with it."""
    small = [comm for comm in records.comms if set(culprit) & set(comm.members)]
    least = min((comm.nranks for comm in small), default=0)
    inside = {one for comm in small if comm.nranks == least for one in comm.members}
    return tuple(sorted(inside - set(culprit))) if least < records.members else ()


def _late_causes(
    records: Records, order: Order, usual: Floats, nodes: Sequence[str]
) -> tuple[list[Cause], Found]:
    pieces = range(int(records.piece.max()) + 1)
    found = find_culprits(records, order, usual, nodes, pieces)
    costs = np.array([one.cost_share for one in found.culprits if len(one.members) == 1])
    spread = 1.4826 * float(np.median(np.abs(costs - np.median(costs)))) if len(costs) > 3 else 0.0
    leader = _leader(records)
    causes = []
    for one in found.culprits:
        if not _is_proved(one, spread):
            continue
        cost = one.cost_share - max(one.typical_share, 0.0)
        rare = False
        if len(one.members) == 1:
            rare = _mostly_rare(records, order, usual, one, pieces)
        start, end, whole = _period(one.pieces)
        if one.once:
            best = max(one.pieces, key=lambda piece: piece[2] * (piece[1] - piece[0]))
            start, end, whole = best[0], best[1], False
        causes.append(
            Cause(
                LATE,
                cost,
                one.error_share,
                start,
                end,
                whole,
                members=one.members,
                node=one.node,
                late_ns=one.late_ns,
                late_share=one.late_share,
                rare=rare,
                once=one.once,
                leader=one.members == (leader,),
                victims=_victims(records, one.members),
                saved_s=one.saved_ns / 1e9,
            )
        )
    return causes, found


def _mostly_rare(
    records: Records, order: Order, usual: Floats, one: Culprit, pieces: range
) -> bool:
    """Tell whether most of a process's cost is from rare long delays."""
    gap = _rare_gap(records, order, usual, one.members[0])
    if gap is None:
        return False
    answers = replay(records, order, usual, [Question(), Question(gap=gap)], pieces)
    length = sum(answer.length for answer in answers)
    saved = sum(float(answer.saved[1]) for answer in answers)
    return saved / max(length, 1.0) > one.cost_share / 2


def _share(
    answers: Sequence[Piece], column: int
) -> tuple[float, float, list[tuple[int, int, float]]]:
    """Return what a question saves as a share, its standard error, and that by piece."""
    length = sum(one.length for one in answers)
    saved = sum(float(one.saved[column]) for one in answers)
    rows = [
        (one.start, one.end, float(one.saved[column]) / one.length if one.length else 0.0)
        for one in answers
    ]
    shares = np.array([share for _, _, share in rows])
    error = float(shares.std(ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return saved / length if length else 0.0, error, rows


def _slow_pieces(rows: Sequence[tuple[int, int, float]]) -> list[int]:
    shares = np.array([share for _, _, share in rows])
    return np.flatnonzero(shares >= max(0.02, 0.3 * float(shares.max(initial=0.0)))).tolist()


def _transfer_causes(
    records: Records, order: Order, usual: Floats, changes: Changes, spots: Sequence[Spot]
) -> list[Cause]:
    pieces = range(int(records.piece.max()) + 1)
    beside: tuple[SlowPaths, ...] = find_slow_paths(records, order, spots)
    inner = _is_inside(records, spots)
    questions = [Question()]
    questions += [Question(transfer=one.factor) for one in beside]
    changed = [np.where(inner == inside, changes.transfer, 1.0) for inside in (False, True)]
    questions += [Question(transfer=one) for one in changed]
    answers = replay(records, order, usual, questions, pieces)
    found = []
    for place, one in enumerate(beside):
        cost, error, rows = _share(answers, 1 + place)
        start, end, whole = _period(rows)
        found.append(
            Cause(
                TRANSFER,
                max(cost, 0.0),
                error,
                start,
                end,
                True,
                members=one.where.members,
                where=one.where,
                inside=one.inside,
                ratio=one.ratio,
                saved_s=cost * sum(answer.length for answer in answers) / 1e9,
            )
        )
    for place, factor in enumerate(changed):
        cost, error, rows = _share(answers, 1 + len(beside) + place)
        if cost < TOLD_MIN or (factor >= 1).all():
            continue
        slow = _slow_pieces(rows)
        numbers = [answers[at].piece for at in slow]
        paths, rest = slow_then(records, factor, numbers)
        where = locate(paths, rest, spots) if paths else None
        here = np.isin(records.piece, numbers) & (factor < 1)
        ratio = float(np.median(1 / factor[here])) if here.any() else LONGER
        start, end, whole = _period(rows)
        if slow:
            start, end = rows[slow[0]][0], rows[slow[-1]][1]
        if any(_same_place(where, other.where) for other in found):
            continue
        found.append(
            Cause(
                TRANSFER,
                cost,
                0.0,
                start,
                end,
                whole and len(slow) >= _WHOLE * len(rows),
                members=where.members if where and rest else (),
                where=where if rest else None,
                inside=bool(place),
                ratio=ratio,
                saved_s=cost * sum(answer.length for answer in answers) / 1e9,
            )
        )
    return found


def _same_place(one: Where | None, other: Where | None) -> bool:
    return (
        one is not None and other is not None and (one.kind, one.nodes) == (other.kind, other.nodes)
    )


def _is_inside(records: Records, spots: Sequence[Spot]) -> Mask:
    """Tell for each row whether all of its communicator's processes are on one node."""
    by_comm = np.array(
        [len({spots[one].node for one in comm.members}) == 1 for comm in records.comms]
    )
    found: Mask = by_comm[records.comm]
    return found


def _outside_cause(records: Records, order: Order, usual: Floats, changes: Changes) -> list[Cause]:
    if not (np.nan_to_num(changes.grown) >= GROWN).any():
        return []
    pieces = range(int(records.piece.max()) + 1)
    answers = replay(records, order, usual, [Question(), Question(gap=changes.gap)], pieces)
    cost, _, rows = _share(answers, 1)
    slow = _slow_pieces(rows)
    if cost < TOLD_MIN or not slow:
        return []
    grown = changes.grown[[answers[at].piece for at in slow]]
    before = slow[0] > 0
    after = slow[-1] < len(rows) - 1
    return [
        Cause(
            OUTSIDE,
            cost,
            0.0,
            rows[slow[0]][0],
            rows[slow[-1]][1],
            not (before and after),
            ratio=float(np.nanmedian(grown)),
            late_share=len(slow) / len(rows),
            saved_s=cost * sum(answer.length for answer in answers) / 1e9,
        )
    ]


def _seen(records: Records, order: Order, found: Found) -> str:
    """Return what is missing for a fault of 5 % to be seen; empty: nothing."""
    ranks = len(np.unique(records.member))
    if ranks < SEEN_RANKS_MIN * records.members:
        return f"only {ranks} of {records.members} processes have records"
    joined = float(np.mean(~np.isnan(order.transfer)))
    if joined < SEEN_JOINED_MIN:
        return f"only {joined:.0%} of the sampled operations have records of all their ranks"
    if found.seconds < SEEN_SECONDS_MIN or found.pieces < 1:
        return f"only {found.seconds:.0f} s of the job could be replayed"
    if not np.any(~np.isnan(order.waited)):
        return "no operation in which ranks wait for each other"
    return ""


def judge_records(
    sources: Sequence[Source], nodes: Sequence[str], locals_: Sequence[int], *, holed: bool = False
) -> Judged:
    """Return what the samples of a job's processes say; nodes and places there by process.

    `holed`: small operations have no record.
    """
    records = gather([one for one in sources if len(one.samples)], len(nodes))
    if records is None:
        return Judged(why_not="no process has exact records of its operations")
    if holed:
        records = fill_holes(records)
    order = find_order(records)
    usual = usual_gaps(records, order)
    spots = tuple(Spot(node, local) for node, local in zip(nodes, locals_, strict=True))
    late, found = _late_causes(records, order, usual, nodes)
    changes = find_changes(records, order, usual)
    causes = [
        *late,
        *_transfer_causes(records, order, usual, changes, spots),
        *_outside_cause(records, order, usual, changes),
    ]
    why_not = _seen(records, order, found)
    return Judged(
        tuple(sorted(causes, key=lambda one: -one.cost_share)),
        not why_not,
        why_not,
        found.pieces,
        found.seconds,
        found.imbalance_share,
        order.sure,
        dict(found.wall),
        records,
        order,
    )
