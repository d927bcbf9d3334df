# SPDX-License-Identifier: Apache-2.0
"""Replay a piece of a job without some causes of delay: how much sooner would it have ended?

An operation begins when its stream is free and its rank is ready; the rank is ready its own gap
after the end that the operation depends on. The operation ends on all its ranks T after the last
one has begun. With the recorded gaps and T, the replay gives the recorded times; each question
changes some of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    distinct_pairs,
    last_before,
    medians,
    number_rows,
    order_groups,
    order_rows,
)
from nccl_inspector.analysis.replay.gaps import Gaps
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.plan import EARLY, Plan, Program, make_plan, make_program
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.stages import parts_of_job

PARTS = 4  # parts of a piece for which results are separate
_MOST_OF_PIECE = 0.5
_NOBODY = np.zeros(0, np.int64)
_ENDS_MAX = 1 << 22  # the most times that are held at once


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What if these processes had had their peers' pace, and other times had been different?

    By row: `transfer` is a factor for T, `gap` is added to the own gap (ns). None: no change.
    """

    members: tuple[int, ...] = ()
    transfer: Floats | None = None
    gap: Floats | None = None
    follows: bool = False  # compute Piece.ahead, which takes time


@dataclass(frozen=True, slots=True)
class Piece:
    """The answers for one piece of time; times are ns."""

    piece: int
    start: int
    end: int
    length: float  # the time that the replay could have changed
    saved: Floats  # by question: how much sooner the piece would have ended
    parts: Floats  # equal parts x questions: by how much more in each part
    # Borders of the parts x questions with `follows` (else 0): how much sooner their processes were
    # there than the median process. The others have not felt that yet.
    ahead: Floats


@dataclass(frozen=True, slots=True)
class _Changed:
    """The places and questions for which the rank has its peers' pace, in order of places."""

    place: Ints
    column: Ints
    bounds: Ints  # by batch, and the end


def _changed(program: Program, member: Ints, questions: Sequence[WhatIf]) -> _Changed:
    by_member = order_groups(member)
    ordered = member[by_member]
    places, columns = [], []
    for column, question in enumerate(questions):
        some = np.array(question.members, np.int64)
        low, high = np.searchsorted(ordered, some), np.searchsorted(ordered, some, side="right")
        size = high - low
        inside = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        places.append(by_member[np.repeat(low, size) + inside])
        columns.append(np.full(len(inside), column, np.int64))
    place, column_of = np.concatenate(places), np.concatenate(columns)
    order = order_groups(place)
    place = place[order]
    starts = [low for low, _ in program.batches]
    bounds = np.append(np.searchsorted(place, starts), len(place))
    return _Changed(place, column_of[order], bounds)


def _latest(ends: Floats, needs: Ints, low: int, high: int) -> Floats:
    """Return the latest end of all parts of what some places need."""
    found: Floats = ends.take(needs[0, low:high], axis=0)
    for part in needs[1:]:
        np.maximum(found, ends.take(part[low:high], axis=0), out=found)
    return found


def _replay(
    records: Records,
    plan: Plan,
    program: Program,
    gaps: tuple[Floats, Floats, Floats],
    questions: Sequence[WhatIf],
    ends: Floats,
) -> None:
    """Fill in the ends of a program's rows (places x questions), ns since the piece's begin.

    `gaps`, by row of the records: own, at the peers' pace, and the share of a gap that may change.
    `ends` has one extra row.
    """
    at = program.at
    rows = plan.rows[at]
    changed = _changed(program, records.member[rows], questions)
    begin, taken, beyond = plan.begin[at], plan.taken[at], plan.beyond[at]
    own, share = gaps[0][rows], gaps[2][rows]
    fixed = (own + (gaps[1][rows] - own) * share)[changed.place]
    ended, caused = plan.ended[at], plan.caused[at]
    held, free = (plan.cause[at] < 0) & (caused == EARLY), plan.free[at]
    # Rows without any known cause, and rows that need something of an earlier piece.
    edge = np.flatnonzero(held | (caused > EARLY) | (ended > EARLY))
    edges = np.searchsorted(edge, [*(low for low, _ in program.batches), len(at)])
    faster = [
        (c, one.transfer[rows]) for c, one in enumerate(questions) if one.transfer is not None
    ]
    longer = []
    for column, question in enumerate(questions):
        if question.gap is not None:
            more = question.gap[rows] * share
            longer.append((column, np.maximum(own + more, 0.0)))
            mine = changed.column == column
            fixed[mine] = np.maximum(fixed[mine] + more[changed.place[mine]], 0.0)
    ends[-1] = EARLY
    for number, (low, high) in enumerate(program.batches):
        ready = _latest(ends, program.cause, low, high)
        here = edge[edges[number] : edges[number + 1]]
        ready[here - low] = np.maximum(ready[here - low], caused[here, None])
        some = slice(changed.bounds[number], changed.bounds[number + 1])
        where = changed.place[some] - low, changed.column[some]
        of_peers = ready[where] + fixed[some]
        others = [(column, ready[:, column] + gap[low:high]) for column, gap in longer]
        ready += own[low:high, None]
        for column, then in others:
            ready[:, column] = then
        ready[where] = of_peers
        alone = here[held[here]]
        ready[alone - low] = begin[alone, None]
        np.maximum(ready, _latest(ends, program.before, low, high), out=ready)
        ready[here - low] = np.maximum(ready[here - low], ended[here, None])
        latest = np.maximum.reduceat(ready, program.heads[number], axis=0)
        done = latest.repeat(program.sizes[number], axis=0)
        others = [
            (column, done[:, column] + beyond[low:high] * factor[low:high])
            for column, factor in faster
        ]
        done += beyond[low:high, None]
        for column, then in others:
            done[:, column] = then
        unheld = np.flatnonzero(free[low:high])
        done[unheld] = ready[unheld] + taken[low + unheld, None]
        ends[low:high] = done


class Replay:
    """The sampled pieces of a job, prepared for questions."""

    def __init__(self, records: Records, order: Order, gaps: Gaps) -> None:
        """Make the plan of all pieces."""
        self._records = records
        self._gaps = gaps.own, np.where(np.isnan(gaps.usual), gaps.own, gaps.usual)
        self._order = order
        self._plan = make_plan(records, order)
        self.part = parts_of_job(records)  # by process
        self._pieces = _pieces(records, self._plan, self.part, order.blocks)
        # A gap that began in an earlier piece belongs to this piece only in part.
        since = (records.begin - self._moments(lambda one: one.start)).astype(float)
        self._inside = np.clip(since / np.maximum(np.nan_to_num(gaps.own), 1.0), 0.0, 1.0)
        self._programs: dict[tuple[int, int], Program] = {}

    def to_peers_pace(self, members: Sequence[int]) -> Floats:
        """Return by row what to add to gaps (ns) so that `members` have their peers' pace."""
        own, usual = self._gaps
        mine = np.isin(self._records.member, members)
        return np.where(mine, np.nan_to_num(usual - own), 0.0)

    def to_others_pace(self, members: Sequence[int]) -> Floats:
        """Return by row what to add to gaps (ns) so that `members` have the pace of all others.

        What is usual is a median that contains the others of a set. If it is a large part of its
        peers, the median is not what the peers take.
        """
        own, usual = self._gaps
        mine = np.isin(self._records.member, members)
        order = self._order
        place = number_rows(order.place, np.where(order.cause >= 0, order.place[order.cause], -1))
        rest = np.flatnonzero(~mine & ~np.isnan(own))
        theirs = medians(place[rest], own[rest], int(place.max()) + 1)[place]
        target = np.where(np.isnan(theirs), usual, theirs)
        return np.where(mine, np.nan_to_num(target - own), 0.0)

    def _moments(self, moment: Callable[["_Known"], int]) -> Ints:
        """Return for each row a moment of its piece."""
        moments = np.full(len(self._plan.bounds) - 1, -(1 << 62), np.int64)
        for piece, one in self._pieces.items():
            moments[piece] = moment(one)
        return moments[self._records.piece]

    def _own_rows(
        self,
        last: Sequence[Sequence[Ints]],
        rows: Sequence[Sequence[Ints]],
        members: Sequence[int],
    ) -> list[Ints]:
        """Return for each moment the rows of `ends` of some processes; `last`: their positions."""
        found = []
        for at, of_ends in zip(last, rows, strict=True):
            own = self._records.member[self._plan.rows[np.concatenate([*at, _NOBODY])]]
            found.append(np.concatenate([*of_ends, _NOBODY])[np.isin(own, members)])
        return found

    def in_first_half(self) -> Mask:
        """Tell which rows begin in the first half of their piece."""
        middle = self._moments(lambda one: one.end - int(one.length / 2))
        found: Mask = self._records.begin <= middle
        return found

    def ask(self, questions: Sequence[WhatIf]) -> list[Piece]:
        """Return the answers piece by piece; the first column is the job as it was."""
        everything = [WhatIf(), *questions]
        bounds = self._plan.bounds
        most = max(_ENDS_MAX // len(everything), 1)
        found: list[Piece] = []
        together = [
            (some, int(bounds[some.start]), int(bounds[some.stop]))
            for some in _together(bounds, most)
        ]
        longest = max(high - low for _, low, high in together)
        room = np.empty((longest + 1, len(everything)))
        for some, low, high in together:
            if (low, high) not in self._programs:
                self._programs[low, high] = make_program(self._plan, low, high)
            program = self._programs[low, high]
            ends = room[: high - low + 1]
            gaps = *self._gaps, self._inside
            _replay(self._records, self._plan, program, gaps, everything, ends)
            place = np.empty(high - low, np.int64)
            place[program.at - low] = np.arange(high - low)
            for piece in some:
                if piece in self._pieces:
                    known = self._pieces[piece]
                    last = [[place[one - low] for one in parts] for parts in known.last]
                    sooner = _sooner(ends, last)
                    ahead = np.zeros(sooner.shape)
                    for column, question in enumerate(everything):
                        if question.follows:
                            own = self._own_rows(known.last, last, question.members)
                            ahead[:, column] = _ahead(ends[:, [0, column]], own, sooner[:, column])
                    found.append(
                        Piece(
                            piece, known.start, known.end, known.length, sooner[-1],
                            np.diff(sooner, axis=0), ahead,
                        )
                    )  # fmt: skip
        return found


def _ahead(ends: Floats, own: Sequence[Ints], sooner: Floats) -> Floats:
    """Return for each moment how much more some processes were sooner than the median one.

    `ends`: as it was, and by the question. `own`: their rows by moment; without any the result is
    0.
    """
    found = np.zeros(len(sooner))
    for moment, rows in enumerate(own):
        if len(rows):
            found[moment] = np.median(ends[rows, 0] - ends[rows, 1]) - sooner[moment]
    return found


def _sooner(ends: Floats, last: Sequence[Sequence[Ints]]) -> Floats:
    """Return by moment and question how much sooner the processes' operations ended.

    `last`: by moment and part of the job, the rows of `ends` that were the last ones. Parts of a
    job do not wait for each other (for example servers of an inference job); the part that changes
    most counts.
    """
    found = np.zeros((len(last), ends.shape[1]))
    for moment, parts in enumerate(last):
        for rows in parts:
            middle = np.median(ends[rows, :1] - ends[rows], axis=0)
            found[moment] = np.where(np.abs(middle) > np.abs(found[moment]), middle, found[moment])
    return found


def _together(bounds: Ints, most: int) -> Iterator[range]:
    """Yield ranges of pieces to replay together: up to `most` rows, but at least one piece."""
    begin = 0
    for piece in range(1, len(bounds) - 1):
        if bounds[piece + 1] - bounds[begin] > most:
            yield range(begin, piece)
            begin = piece
    yield range(begin, len(bounds) - 1)


@dataclass(frozen=True, slots=True)
class _Known:
    """What all answers for one piece have in common; times are ns."""

    # By moment between its parts, and by part of the job: positions where processes ended last.
    last: tuple[tuple[Ints, ...], ...]
    start: int
    end: int
    length: float


def _by_part(last: Ints, part: Ints) -> tuple[Ints, ...]:
    """Group positions by the part of the job that their rows belong to; -1 is left out."""
    last = last[last >= 0]
    part = part[last]
    return tuple(last[part == one] for one in np.unique(part).tolist())


def _medians_by_piece(pieces: Ints, values: Ints) -> dict[int, int]:
    """Return the median of each piece that has values, one value for each process."""
    order = order_groups(pieces)
    cuts = np.flatnonzero(np.diff(pieces[order])) + 1
    groups = np.split(order, cuts) if len(order) else []
    return {int(pieces[one[0]]): int(np.median(values[one])) for one in groups}


def _pieces(records: Records, plan: Plan, part: Ints, blocks: Mask) -> dict[int, _Known]:
    """Return the pieces that can be replayed: those with more than one row.

    `part`: of the job, by process. `blocks`: by row of the records. A piece is replayed from one
    blocking operation to another, if that is most of the piece, because the others have only partly
    felt what happened after the last one.
    """
    rows = plan.rows
    member = records.member[rows]
    part_of = part[member]
    run = records.run[rows]
    end = records.end[rows]
    pieces, _ = distinct_pairs(plan.piece, member)
    owner = number_rows(plan.piece, member)
    # A row before anything it could depend on keeps its time.
    held = np.flatnonzero(plan.cause >= 0)
    by_work = blocks[rows[plan.cause[held]]]
    held = held[by_work] if by_work.any() else held
    since = end[plan.cause[held]]
    order = order_rows(owner[held], since, since)
    order = order[np.append(True, np.diff(owner[held][order]) != 0)[: len(order)]]
    first_of, since = plan.piece[held][order], since[order]
    begins = _medians_by_piece(first_of, since)
    holds = np.flatnonzero(blocks[rows])
    latest = np.full(int(owner.max()) + 1, -1, np.int64)
    np.maximum.at(latest, owner[holds], end[holds])
    has = latest >= 0
    of_owner = np.empty(len(latest), np.int64)
    of_owner[owner] = plan.piece
    holding = _medians_by_piece(of_owner[has], latest[has])
    found: dict[int, tuple[int, int, Ints]] = {}
    for piece, (low, high) in enumerate(pairwise(plan.bounds.tolist())):
        if high - low > 1:
            until = int(end[low:high].max())
            if piece - 1 in found and run[low - 1] == run[low]:
                first = found[piece - 1][1]
            else:
                first = begins.get(piece, until)
            held_until = holding.get(piece, until)
            if held_until - first >= _MOST_OF_PIECE * (until - first):
                until = held_until
            moments = np.linspace(first, until, PARTS + 1).astype(np.int64)
            found[piece] = min(int(plan.start[piece]), first), until, moments
    asked = np.isin(pieces, list(found))
    pieces, questions = pieces[asked], np.flatnonzero(asked)
    if not len(pieces):
        return {}
    moments_of = np.concatenate([found[piece][2] for piece in pieces.tolist()])
    last = last_before(owner, end, np.repeat(questions, PARTS + 1), moments_of)
    last = last.reshape(-1, PARTS + 1)
    return {
        piece: _Known(
            tuple(_by_part(one, part_of) for one in last[pieces == piece].T),
            start,
            until,
            float(max(until - int(moments[0]), 0)),
        )
        for piece, (start, until, moments) in found.items()
    }
