# SPDX-License-Identifier: Apache-2.0
"""All causes of lost time that exact records show, each with its cost, and whether one would show.

The cost is the share of the wall time that the job would not have taken without the cause, by
replaying the sampled pieces of time. What several causes cost together is shared out, so that no
second is counted twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Mask
from nccl_inspector.analysis.replay.bound import gaps_if_faster
from nccl_inspector.analysis.replay.changes import GROWN, LONGER, Changes, find_changes
from nccl_inspector.analysis.replay.choice import Choice
from nccl_inspector.analysis.replay.culprits import Culprit, Found, find_culprits, own_excess
from nccl_inspector.analysis.replay.hidden import fill_holes
from nccl_inspector.analysis.replay.order import Gaps, Order, find_gaps, find_order
from nccl_inspector.analysis.replay.paths import (
    SlowPaths,
    Spot,
    Where,
    find_slow_paths,
    locate,
    slow_then,
)
from nccl_inspector.analysis.replay.records import Records, Source, gather
from nccl_inspector.analysis.replay.whatif import Piece, Question, Replay

COST_MIN = 0.01  # of the job's time, from which on a cause is a warning
HABIT_TIMES = 3  # what comes so often is part of the program
TOLD_MIN = 0.004  # from which on it is information
_ERRORS = 4.0  # standard errors that a cost must be above nothing
_CHANCE_MAX = 1e-4  # that long delays are by chance always the same one's
_SPREADS = 5.0  # of what the same question says of the other processes
_LATE_SHARE, _LATE_APART = 0.6, 0.3  # of its gaps, and beyond what is usual in the job
_PIECE_SLOW = 0.25  # of the usual cost of its worst pieces, for a piece to be in the period
_WHOLE = 0.8  # of the pieces
# Evidence that a fault of 5 % would have shown.
SEEN_RANKS_MIN, SEEN_JOINED_MIN, SEEN_SECONDS_MIN, SEEN_UNLIKE_MAX = 0.5, 0.5, 5.0, 0.7
_RARE_SHARE, _RARE_TIMES = 0.03, 8.0  # of a process's gaps; of its usual excess

# By how much a job may be longer, by the replay, if all ranks took what is usual: else it is wrong.
_AGAINST_MAX = 0.03
# What all ranks do between operations differs by chance, too: it is grown beside much that is not.
_OUTSIDE_PIECES_MIN, _OUTSIDE_SHARE_MAX = 8, 0.6
_SLOW_PIECE_MIN = 0.02  # of a piece, that a slow one loses
_APART_MAX = 2  # pieces: of a time that is slow some pieces may be as usual

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
    rare: bool = False  # seldom and long, as checkpoints are; of OUTSIDE: again and again
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
    replay: Replay | None = None
    shorter: Floats | None = None  # gaps where transfers are faster (bound.py)
    looked: int = 0  # processes whose records were looked at
    refused: Mapping[str, int] = field(default_factory=dict)  # of which they could not be read

    def below(self, factors: Mapping[tuple[int, int, int], float]) -> tuple[float, float]:
        """Return what slow transfers cost all the time: share and standard error.

        `factors`: of T, by communicator's id, function and size class: what it could be.
        """
        if self.records is None or self.replay is None or not factors:
            return 0.0, 0.0
        factor = np.ones(len(self.records))
        for kind, value in factors.items():
            factor[_of_kind(self.records, kind)] = value
        cost, error, _ = _share(_ask_transfers(self.replay, [factor], self.shorter), 0)
        return cost, error

    def queued_share(self, kinds: Iterable[tuple[int, int, int]]) -> float:
        """Return the share of operations of some kinds that began when their stream was free."""
        if self.records is None or self.order is None:
            return 0.0
        rows = [_of_kind(self.records, kind) for kind in kinds]
        mine = np.logical_or.reduce(rows) if rows else np.zeros(len(self.records), dtype=bool)
        return float(np.mean(self.order.queued[mine])) if mine.any() else 0.0


def _of_kind(records: Records, kind: tuple[int, int, int]) -> Mask:
    """Tell which rows are of a communicator (its id), function and size class."""
    comm_id, func, size_class = kind
    comms = [place for place, comm in enumerate(records.comms) if comm.id == comm_id]
    found: Mask = (
        np.isin(records.comm, comms)
        & (records.func == func)
        & (records.size_class == size_class)
    )
    return found


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


def _is_proved(one: Culprit, spread: float, usual_late: float) -> bool:
    cost = one.cost_share - max(one.typical_share, 0.0)
    if cost < max(TOLD_MIN, _SPREADS * spread):
        return False
    # In a short job the cost of few parts varies; who nearly always is late, and alone, is late.
    always = one.late_share >= max(_LATE_SHARE, usual_late + _LATE_APART)
    return (
        always
        or one.once
        or cost >= _ERRORS * one.error_share
        or one.steady >= 2 * _ERRORS
        or one.chance <= _CHANCE_MAX
    )


def _victims(records: Records, culprit: tuple[int, ...]) -> tuple[int, ...]:
    """Return who works most closely with a culprit, and so was late with it."""
    mine = np.isin(records.member, culprit)
    often = np.bincount(records.comm[mine], minlength=len(records.comms))
    for comm in np.argsort(-often).tolist():
        members = set(records.comms[comm].members)
        if often[comm] and len(members) < len(np.unique(records.member)) / 2:
            return tuple(sorted(members - set(culprit)))
    return ()


def _late_causes(
    records: Records, order: Order, usual: Floats, nodes: Sequence[str], replay: Replay
) -> tuple[list[Cause], Found]:
    found = find_culprits(records, order, usual, nodes, replay)
    # Who is early in all that it does would make the job longer at the usual pace: no spread.
    costs = np.array([max(one.cost_share, 0.0) for one in found.culprits if len(one.members) == 1])
    spread = 1.4826 * float(np.median(np.abs(costs - np.median(costs)))) if len(costs) > 3 else 0.0
    late = [one.late_share for one in found.culprits if len(one.members) == 1]
    usual_late = float(np.median(late)) if late else 0.0
    leader = _leader(records)
    causes = []
    for one in found.culprits:
        if not _is_proved(one, spread, usual_late):
            continue
        cost = one.cost_share - max(one.typical_share, 0.0)
        rare = False
        if len(one.members) == 1:
            rare = _mostly_rare(records, order, usual, one, replay)
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
    records: Records, order: Order, usual: Floats, one: Culprit, replay: Replay
) -> bool:
    """Tell whether most of a process's cost is from rare long delays."""
    gap = _rare_gap(records, order, usual, one.members[0])
    if gap is None:
        return False
    answers = replay.ask([Question(gap=gap)])
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


def _ask_transfers(
    replay: Replay, factors: Sequence[Floats], shorter: Floats | None
) -> list[Piece]:
    """Return what other times T would have saved, by factor.

    `shorter` gaps alone save a little, too, which is not the transfers' doing.
    """
    questions = [Question(gap=shorter)]
    questions += [Question(transfer=factor, gap=shorter) for factor in factors]
    return [
        replace(one, saved=one.saved[2:] - one.saved[1], parts=one.parts[:, 2:] - one.parts[:, 1:2])
        for one in replay.ask(questions)
    ]


def _slow_times(rows: Sequence[tuple[int, int, float]]) -> list[list[int]]:
    """Return the times in which something cost much, each as the places of its pieces.

    Two are one when few pieces between them, beside the first, are as they should be.
    """
    shares = np.array([share for _, _, share in rows])
    span = np.array([end - start for start, end, _ in rows], float)
    # A piece that is cut short, as a job's first one, says little of how slow it may be.
    whole = span >= np.median(span) / 2
    slow = np.flatnonzero(shares >= max(_SLOW_PIECE_MIN, 0.3 * float(shares[whole].max())))
    found: list[list[int]] = []
    for at in slow.tolist():
        if found and at - found[-1][-1] - 1 <= max(_APART_MAX, len(found[-1]) // 2):
            found[-1].append(at)
        else:
            found.append([at])
    return found


def _transfer_causes(
    records: Records,
    order: Order,
    gaps: Gaps,
    replay: Replay,
    changes: Changes,
    spots: Sequence[Spot],
) -> list[Cause]:
    beside: tuple[SlowPaths, ...] = find_slow_paths(records, order, spots)
    inner = _is_inside(records, spots)
    changed = [np.where(inner == inside, changes.transfer, 1.0) for inside in (False, True)]
    factors = [*(one.factor for one in beside), *changed]
    answers = _ask_transfers(replay, factors, gaps_if_faster(records, order, gaps))
    found = []
    for place, one in enumerate(beside):
        cost, error, rows = _share(answers, place)
        start, end, _ = _period(rows)
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
        _, _, rows = _share(answers, len(beside) + place)
        for slow in _slow_times(rows):
            then = _slower_then(records, answers, rows, slow, factor, spots, bool(place))
            if then and not any(_same_place(then.where, other.where) for other in found):
                found.append(then)
    return found


def _slower_then(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    slow: Sequence[int],
    factor: Floats,
    spots: Sequence[Spot],
    inside: bool,
) -> Cause | None:
    """Return the cause of a time in which transfers were slower; None: it cost too little."""
    cost = _cost_of_pieces(answers, rows, slow) * _believed(records, answers, rows, slow)
    if cost < TOLD_MIN:
        return None
    numbers = [answers[at].piece for at in slow]
    paths, rest = slow_then(records, factor, numbers)
    where = locate(paths, rest, spots) if paths and rest else None
    here = np.isin(records.piece, numbers) & (factor < 1)
    return Cause(
        TRANSFER,
        cost,
        0.0,
        rows[slow[0]][0],
        rows[slow[-1]][1],
        len(slow) >= _WHOLE * len(rows),
        members=where.members if where else (),
        where=where,
        inside=inside,
        ratio=float(np.median(1 / factor[here])) if here.any() else LONGER,
        saved_s=cost * sum(answer.length for answer in answers) / 1e9,
        once=len(slow) == 1,
    )


def _believed(
    records: Records,
    answers: Sequence[Piece],
    rows: Sequence[tuple[int, int, float]],
    some: Sequence[int],
) -> float:
    """Return how much of a cost in some pieces is to be believed, from 0 to 1.

    What costs time makes operations fewer: by how many a second is seen, whatever the replay says.
    """
    done = np.bincount(records.piece)[[one.piece for one in answers]].astype(float)
    span = np.array([one.end - one.start for one in answers], float)
    rate = done / np.maximum(span, 1.0)
    there = np.zeros(len(answers), dtype=bool)
    there[list(some)] = True
    if there.all():
        return 1.0
    share = sum(rows[at][2] for at in some) / len(some)
    fewer = 1 - float(np.median(rate[there])) / float(np.median(rate[~there]))
    if fewer >= share / 2:
        return 1.0
    return fewer / share if fewer >= _SLOW_PIECE_MIN else 0.0


def _cost_of_pieces(
    answers: Sequence[Piece], rows: Sequence[tuple[int, int, float]], some: Sequence[int]
) -> float:
    """Return what was lost in some pieces, as a share of all.

    Pieces are of one length of time. The part of one that can be replayed is smaller where
    operations are rare, because everything is slow; that must not make it count less.
    """
    span = np.array([one.end - one.start for one in answers], float)
    weight = np.ones(len(span))
    for edge in (0, -1):  # the job began and ended within a piece
        weight[edge] = min(1.0, span[edge] / float(np.median(span)))
    return float(sum(rows[at][2] * weight[at] for at in some) / weight.sum())


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


def _outside_causes(records: Records, replay: Replay, changes: Changes) -> list[Cause]:
    grown_at = changes.grown[np.isfinite(changes.grown)]
    grown_often = float(np.mean(grown_at >= GROWN)) if len(grown_at) else 0.0
    if len(grown_at) < _OUTSIDE_PIECES_MIN or not 0 < grown_often <= _OUTSIDE_SHARE_MAX:
        return []
    answers = replay.ask([Question(gap=changes.gap)])
    _, _, rows = _share(answers, 1)
    found = []
    for slow in _slow_times(rows):
        cost = _cost_of_pieces(answers, rows, slow) * _believed(records, answers, rows, slow)
        grown = changes.grown[[answers[at].piece for at in slow]]
        ends = slow[0] > 0 and slow[-1] < len(rows) - 1
        # Longer by as much everywhere in a step is more work, as of longer sequences.
        evenly = changes.evenly[[answers[at].piece for at in slow]]
        ends = ends and float(np.mean(evenly)) < 0.5
        if cost >= TOLD_MIN and np.isfinite(grown).any():
            found.append(
                Cause(
                    OUTSIDE,
                    cost,
                    0.0,
                    rows[slow[0]][0],
                    rows[slow[-1]][1],
                    not ends,
                    ratio=float(np.nanmedian(grown)),
                    late_share=len(slow) / len(rows),
                    saved_s=cost * sum(answer.length for answer in answers) / 1e9,
                    once=len(slow) == 1,
                )
            )
    if sum(not one.whole for one in found) >= HABIT_TIMES:
        return [replace(one, rare=True) for one in found]
    return found


def _seen(records: Records, order: Order, usual: Floats, found: Found, looked: int) -> str:
    """Return what is missing for a fault of 5 % to be seen; empty: nothing.

    `looked`: of how many processes a fault would have had to show in records.
    """
    ranks = len(np.unique(records.member))
    if ranks < SEEN_RANKS_MIN * looked:
        return f"only {ranks} of {looked} processes have records"
    joined = float(np.mean(~np.isnan(order.transfer)))
    if joined < SEEN_JOINED_MIN:
        return f"only {joined:.0%} of the sampled operations have records of all their ranks"
    if found.seconds < SEEN_SECONDS_MIN or found.pieces < 1:
        return f"only {found.seconds:.0f} s of the job could be replayed"
    if np.mean(np.isnan(usual)) > SEEN_UNLIKE_MAX:
        return "hardly any rank has others that do the same work"
    if found.imbalance_share < -_AGAINST_MAX:
        return "what the operations depend on could not be found out"
    if not np.any(~np.isnan(order.waited)):
        return "no operation in which ranks wait for each other"
    return ""


def judge_records(
    sources: Sequence[Source],
    nodes: Sequence[str],
    locals_: Sequence[int],
    *,
    choice: Choice | None = None,
) -> Judged:
    """Return what the samples of a job's processes say; nodes and places there by process.

    `choice`: the sources are of these processes only.
    """
    refused = Counter[str]()
    records = gather(sources, len(nodes), choice.left_out if choice else {}, refused)
    if records is None:
        why_not = "no process has exact records of its operations"
        return Judged(why_not=why_not, refused=dict(refused))
    records = fill_holes(records)
    order = find_order(records)
    gaps = find_gaps(records, order)
    usual = gaps.usual
    spots = tuple(Spot(node, local) for node, local in zip(nodes, locals_, strict=True))
    replay = Replay(records, order, gaps)
    late, found = _late_causes(records, order, usual, nodes, replay)
    changes = find_changes(records, order, gaps)
    causes = [
        *late,
        *_transfer_causes(records, order, gaps, replay, changes, spots),
        *_outside_causes(records, replay, changes),
    ]
    looked = len(choice.members) if choice and choice.some else len(nodes)
    must = looked if choice and choice.by_busy else len(nodes)
    why_not = _seen(records, order, usual, found, must)
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
        replay,
        gaps_if_faster(records, order, gaps),
        looked,
        dict(refused),
    )
