# SPDX-License-Identifier: Apache-2.0
"""Who was waited for: from what each communicator says to the processes that made it so.

A late rank makes the small group late that it belongs to, and that group's other ranks then look
late in their larger ones. So from a late rank one goes down to where it was itself kept waiting:
who waited elsewhere for about as long as it is late here, and longer than its peers here did
elsewhere, is not the cause. Who is late and has no such excuse is.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from nccl_inspector.analysis.join import Communicator, Figures, Late, Place
from nccl_inspector.analysis.lateness import SYNCHRONISING, median_without
from nccl_inspector.analysis.latewindows import LateWindows, judge_windows
from nccl_inspector.analysis.linechoice import spread
from nccl_inspector.analysis.queued import LateCall, Queued, queue_of
from nccl_inspector.card.model import HIGH, LOW, MEDIUM, UNKNOWN, Straggler
from nccl_inspector.errors import RefusedError
from nccl_inspector.model import FUNCS, P2P, Line, Process
from nccl_inspector.packedlines import Kind, PackedLines

# Of its lateness here, what a rank must have waited more than its peers elsewhere to be excused.
EXCUSE_SHARE = 0.5
WINDOWS_SHARE_MIN = 0.5
# Ranks of a ring whose links differ end apart, by a part of T and in some functions only. So who is
# late in fewer of its kinds of operation must be late by more of T.
KINDS_SHARE_MIN, SKEW_SHARE_MAX = 0.5, 0.15
RANKS_LOOKED_AT = 128  # of a large communicator: the middle of so many is that of all
CASES_LOOKED_AT = 4  # of a process, the most costly
_WAITING_FUNCS = SYNCHRONISING | {"Send", "Recv"}

_Lines = Mapping[Kind, dict[int, Line]]  # by rank


@dataclass(frozen=True, slots=True)
class Case:
    """A process that is late in one kind of operation of one communicator."""

    comm: Communicator
    figures: Figures
    late: Late

    @property
    def late_ns(self) -> float:
        """By how much in all operations together."""
        return self.late.late_ns * self.figures.operations


@dataclass(frozen=True, slots=True)
class Named:
    """A process that its peers waited for. Times are ns."""

    place: Place
    communicators: tuple[Communicator, ...]  # in which it is named
    member_of: int  # communicators that it is in and that have figures
    late_ns: float  # median over the kinds of operation that name it
    waited_ns: float  # by all peers together
    cases: tuple[Case, ...]  # the one that cost most first


def _add_waits(comm: Communicator, waits: dict[Place, dict[int, float]]) -> None:
    """Add the time that each member waited in this communicator, by medians.

    A Send and its Recv end together, so the one that took less time has that of the transfer.
    (Those of one call are there once more, as a group, which is left out.)
    """
    least: dict[tuple[str, int], float] = {}
    kinds = []
    for figures in comm.figures:
        if figures.func in _WAITING_FUNCS and figures.medians:
            kind = "" if figures.func in P2P else figures.func + figures.algo_proto
            kinds.append((figures, (kind, figures.size_class)))
            shortest = min(figures.medians.values())
            least[kinds[-1][1]] = min(least.get(kinds[-1][1], shortest), shortest)
    for figures, kind_of in kinds:
        for rank, value in figures.medians.items():
            known = waits[comm.members[rank].place]
            more_ns = (value - least[kind_of]) * figures.operations
            known[comm.id] = known.get(comm.id, 0.0) + more_ns


class _Excuses:
    """Who waited elsewhere so that it had to come late here."""

    def __init__(self, communicators: Iterable[Communicator]) -> None:
        """Add up what all waited."""
        self._waits: dict[Place, dict[int, float]] = defaultdict(dict)
        self._elsewhere: dict[int, list[float]] = {}  # of a communicator's members, sorted
        for comm in communicators:
            _add_waits(comm, self._waits)

    def _of(self, place: Place, comm: Communicator) -> float:
        waits = self._waits.get(place, {})
        return sum(ns for other, ns in waits.items() if other != comm.id)

    def excuse(self, case: Case) -> bool:
        """Tell whether what a process waited elsewhere, beyond its peers here, explains a case."""
        comm = case.comm
        if comm.id not in self._elsewhere:
            all_of = (self._of(member.place, comm) for member in comm.members.values())
            self._elsewhere[comm.id] = sorted(all_of)
        found, mine = self._elsewhere[comm.id], self._of(case.late.place, comm)
        peers = median_without(found, bisect_left(found, mine))
        return mine - peers >= EXCUSE_SHARE * max(case.late_ns, 1.0)


def _name(place: Place, cases: Sequence[Case], member_of: int) -> Named:
    ordered = sorted(cases, key=lambda case: -case.late.waited_ns)
    comms = {case.comm.id: case.comm for case in ordered}
    return Named(
        place,
        tuple(comms.values()),
        member_of,
        median(case.late.late_ns for case in ordered),
        sum(case.late.waited_ns for case in ordered),
        tuple(ordered),
    )


def _cases(communicators: Iterable[Communicator], clear: bool) -> list[Case]:
    return [
        Case(comm, figures, late)
        for comm in communicators
        for figures in comm.figures
        for late in figures.lasts
        if late.clear == clear
    ]


def _is_skew(cases: Sequence[Case], judged: int) -> bool:
    few = len(cases) < KINDS_SHARE_MIN * judged
    clear = any(case.late.clear for case in cases)
    return clear and few and max(case.late.share for case in cases) < SKEW_SHARE_MAX


def _descend(communicators: Sequence[Communicator], cases: Sequence[Case]) -> list[Named]:
    if not cases:
        return []
    excuses = _Excuses(communicators)
    memberships: dict[Place, int] = defaultdict(int)
    judged: dict[Place, int] = defaultdict(int)  # kinds of operation
    for comm in communicators:
        kinds = sum(one.judged for one in comm.figures)
        for member in comm.members.values() if comm.figures else ():
            memberships[member.place] += 1
            judged[member.place] += kinds
    by_place: dict[Place, list[Case]] = defaultdict(list)
    for case in cases:
        if not excuses.excuse(case):
            by_place[case.late.place].append(case)
    named = [
        _name(place, found, memberships[place])
        for place, found in by_place.items()
        if not _is_skew(found, judged[place])
    ]
    return sorted(named, key=lambda one: (-one.waited_ns, one.place))


def rank_stragglers(communicators: Sequence[Communicator]) -> list[Named]:
    """Return the processes that are clearly late without an excuse, the most costly first."""
    return _descend(communicators, _cases(communicators, clear=True))


def find_slowest(communicators: Sequence[Communicator]) -> Named | None:
    """Return who came last where nobody is clearly late; None: nothing was judged."""
    found = _descend(communicators, _cases(communicators, clear=False))
    return found[0] if found else None


def _kind(case: Case) -> Kind:
    return case.comm.id, FUNCS.index(case.figures.func), case.figures.size_class


def _lines_of(process: Process, ranks: Mapping[Kind, Collection[int]]) -> Iterator[Line]:
    if isinstance(process.lines, PackedLines):
        with suppress(RefusedError):  # said where all lines are looked at
            yield from process.lines.of_kinds(ranks, ranks)
        return
    for line in process.lines:
        if line.rank in ranks.get((line.comm_id, line.func, line.size_class), ()):
            yield line


def _gather_lines(processes: Iterable[Process], named: Iterable[Named]) -> _Lines:
    """Return the time lines in which somebody is named: a large job has too many for all."""
    wanted: dict[Kind, set[int]] = defaultdict(set)
    for case in (case for one in named for case in one.cases[:CASES_LOOKED_AT]):
        members = sorted(case.comm.members)
        wanted[_kind(case)].update(spread(members, RANKS_LOOKED_AT, [case.late.rank]))
    found: dict[Kind, dict[int, Line]] = defaultdict(dict)
    for process in processes if wanted else ():
        for line in _lines_of(process, wanted):
            kind = line.comm_id, line.func, line.size_class
            found[kind].setdefault(line.rank, line)
    return found


def _windows(named: Named, lines: _Lines) -> LateWindows | None:
    """Return what the windows say of the costliest case that has enough of them."""
    for case in named.cases[:CASES_LOOKED_AT]:
        of_ranks = lines.get(_kind(case), {})
        if 2 * len(of_ranks) >= min(case.comm.nranks, RANKS_LOOKED_AT):
            found = judge_windows(of_ranks, case.late.rank)
            if found is not None:
                return found
    return None


def _queue(named: Named) -> Queued | None:
    """Return what it waited for its GPU, where that tells why it was late."""
    found = queue_of(
        LateCall(
            case.comm,
            case.late.rank,
            (case.figures.func, case.figures.size_class, case.figures.algo_proto),
            case.late.late_ns,
        )
        for case in named.cases
    )
    return found if found and found.kind != UNKNOWN else None


def _straggler(named: Named, lines: _Lines, by_counters: str, clear: bool) -> Straggler:
    windows = _windows(named, lines)
    queued = _queue(named)
    kind = queued.kind if queued else by_counters
    if queued and by_counters not in (UNKNOWN, kind):
        kind = UNKNOWN  # one of the two, or both
    share = windows.share if windows else None
    flagged = clear and (share is None or share >= WINDOWS_SHARE_MIN)
    confidence = LOW
    if flagged and share is not None:
        confidence = MEDIUM if kind == UNKNOWN else HIGH
    return Straggler(
        rank=named.place.name,
        node=named.place.node,
        gpu=named.place.gpu,
        late_ns=named.late_ns,
        z=named.cases[0].late.z,
        windows_share=share,
        waited_ns=named.waited_ns,
        kind=kind,
        communicators=tuple(hex(comm.id) for comm in named.communicators),
        flagged=flagged,
        member_of=named.member_of,
        confidence=confidence,
        windows=windows.judged if windows else 0,
        period=windows.period if windows else None,
        queued_ns=queued.wait_ns if queued else None,
        peers_queued_ns=queued.peers_ns if queued else None,
        queue_looks=queued.looks if queued else 0,
    )


def find_stragglers(
    communicators: Sequence[Communicator],
    processes: Iterable[Process],
    kind_of: Callable[[str, str], str],
) -> tuple[Straggler, ...]:
    """Return the late processes, the most costly first; where none is, the slowest, not flagged.

    `kind_of`: host, gpu or unknown of a node and GPU, as counters say (analysis/slowhardware.py);
    it is asked where the GPU's queue does not tell (analysis/queued.py).
    """
    named = rank_stragglers(communicators)
    slowest = None if named else find_slowest(communicators)
    listed = [(one, True) for one in named] + ([(slowest, False)] if slowest else [])
    lines = _gather_lines(processes, named)  # who is only the slowest needs no second look
    found = [
        _straggler(one, lines, kind_of(one.place.node, one.place.gpu), clear)
        for one, clear in listed
    ]
    return tuple(sorted(found, key=lambda one: not one.flagged))


def total_waiting(communicators: Iterable[Communicator]) -> tuple[float, float]:
    """Return the ranks' time in collectives spent waiting, and all of it, ns."""
    figures = [one for comm in communicators for one in comm.figures if one.waiting > 0]
    waiting_ns = sum(one.waiting_ns for one in figures)
    return waiting_ns, sum(one.waiting_ns / one.waiting for one in figures)
