# SPDX-License-Identifier: Apache-2.0
"""The processes and operations of a job that stands still, as a graph of who waits for what."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nccl_inspector.analysis.claims import Run
from nccl_inspector.analysis.hang.arrival import Arrival, Meeting, OpPlace, Seat
from nccl_inspector.analysis.hang.ending import BEATS_APART_S
from nccl_inspector.analysis.hang.stuck_peer import CREDIT, GPU, find_stuck_peer
from nccl_inspector.analysis.hang.suspect_age import GIVEN_UP_S, is_unusual
from nccl_inspector.analysis.hang.wait_for import End, find_ends, successors
from nccl_inspector.model.card import NETWORK, TRANSPORT
from nccl_inspector.model.process import FUNCS, Operation, Process

ROUND_NS = 1.5e9  # a round of the beat thread, with some margin
FOLLOWED = 0.5  # share of the suspect age; the operation that blocks others began before them

# A node of the graph: a process, by its place in the list, or an operation.
_Node: TypeAlias = int | OpPlace


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks that are in an operation."""

    meeting: Meeting
    place: OpPlace
    seats: tuple[tuple[Seat, Operation], ...]

    @property
    def since_ns(self) -> int:
        """The Unix time since which the first of them is in it."""
        return min(seat.process.facts.beat_ns - one.age_ns for seat, one in self.seats)

    def begun(self) -> list[int]:
        """Return the processes whose kernel has begun; the others wait for something else."""
        return [seat.who for seat, one in self.seats if one.started]

    @property
    def age_ns(self) -> int:
        """How long the first of them was in it when its box was last written."""
        return max(one.age_ns for _, one in self.seats)


@dataclass(frozen=True, slots=True)
class Picture:
    """Who has come to an operation; processes are given by their place in the list."""

    absent: tuple[int, ...]
    queued: tuple[int, ...]
    dead: tuple[int, ...]
    mismatched: tuple[int, ...]
    missing: tuple[Run, ...]  # ranks of the communicator that have no box
    unknown: tuple[int, ...]  # silent for a time, so their counts do not compare

    @property
    def late(self) -> tuple[int, ...]:
        """The processes that the others wait for."""
        return (*self.dead, *self.absent, *self.queued)

    @property
    def not_measured(self) -> bool:
        """Whether some processes may not have come, and all known ones have."""
        return bool(self.missing or self.unknown) and not (self.late or self.mismatched)


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of life: the time of the last of all, and how long each process was silent before it.

    See `silences_ns` in analysis/clocks.py. A silence shorter than `least_s` means nothing.
    """

    last_ns: int
    silences_ns: Sequence[float]
    least_s: float = BEATS_APART_S

    def is_dead(self, who: int, since_ns: int) -> bool:
        """Tell whether a process was silent for most of the time that others waited for it."""
        return self.silences_ns[who] > max(self.least_s * 1e9, (self.last_ns - since_ns) / 2)


def _find_mismatched(wait: Wait) -> tuple[int, ...]:
    """Return the processes that called another operation at this place than most; of a tie, all."""
    if wait.place.pair:
        return ()
    called: dict[tuple[int, int], list[int]] = defaultdict(list)
    for seat in wait.meeting.seats.values():
        operation = wait.meeting.operation_at(seat, wait.place)
        if operation:
            called[operation.func, operation.bytes].append(seat.who)
    if len(called) < 2:
        return ()
    most = max(len(who) for who in called.values())
    usual = [kind for kind, who in called.items() if len(who) == most]
    odd = (who for kind, who in called.items() if len(usual) > 1 or kind != usual[0])
    return tuple(sorted(who for found in odd for who in found))


def _waits_long(process: Process) -> bool:
    """Tell whether a process has been in an operation for unusually long; it may have given up."""
    return any(
        one.started and one.age_ns > GIVEN_UP_S * 1e9 and is_unusual(one, process)
        for one in process.operations
    )


def _look(wait: Wait, signs: Signs) -> Picture:
    """Return who has come to an operation and who has not.

    Who is in it and died before the others only gave up first, if another process has not come. So
    did who was in another operation for long: it still waits there, as far as this graph goes.
    """
    found: dict[str, list[int]] = defaultdict(list)
    gave_up: list[int] = []
    since_ns = wait.since_ns
    for seat in wait.meeting.expected_seats(wait.place):
        arrival = wait.meeting.arrival(seat, wait.place)
        operation = wait.meeting.operation_at(seat, wait.place)
        dead = signs.is_dead(seat.who, since_ns)
        if dead and operation is not None and operation.started:
            gave_up.append(seat.who)
        elif dead and arrival is not Arrival.STARTED and not _waits_long(seat.process):
            found["dead"].append(seat.who)
        elif arrival is Arrival.ABSENT:
            found["absent"].append(seat.who)
        elif arrival is Arrival.QUEUED:
            found["queued"].append(seat.who)
        elif arrival is Arrival.UNKNOWN:
            found["unknown"].append(seat.who)
    if not (found["dead"] or found["absent"] or found["queued"]):
        found["dead"] = gave_up
    return Picture(
        tuple(found["absent"]),
        tuple(found["queued"]),
        tuple(sorted(found["dead"])),
        _find_mismatched(wait),
        wait.meeting.missing(wait.place),
        tuple(found["unknown"]),
    )


def _waited_in(seat: Seat, least_s: float, silence_ns: float) -> Iterator[Operation]:
    """Yield the operations that a rank is in: its first collective, and every Send and Recv.

    `silence_ns`: since its last sign of life, which is up to a round before its end. Of processes
    that are ended together, one is the first. What it was in then counts until the last was ended,
    if it lived for most of that time; else it may have died first.
    """
    if _waits_long(seat.process):  # it may have given up long before the last of the job
        least_s = min(least_s, GIVEN_UP_S)

    def age_ns(one: Operation) -> float:
        lived = silence_ns <= one.age_ns + ROUND_NS
        return one.age_ns + (silence_ns if lived else 0.0)

    begun = [one for one in seat.operations if one.started and age_ns(one) >= least_s * 1e9]
    yield from (one for one in begun if one.peer >= 0)
    yield from [one for one in begun if one.peer < 0][:1]


def find_waits(meeting: Meeting, least_s: float, silences_ns: Sequence[float]) -> Iterator[Wait]:
    """Yield the operations that ranks of a communicator have been in for `least_s` or longer.

    `silences_ns`: of each process, as in `Signs`.
    """
    places: dict[OpPlace, list[tuple[Seat, Operation]]] = defaultdict(list)
    for seat in meeting.seats.values():
        for operation in _waited_in(seat, least_s, silences_ns[seat.who]):
            places[meeting.place_of(seat, operation)].append((seat, operation))
    for place, seats in places.items():
        yield Wait(meeting, place, tuple(seats))


def _over(wait: Wait) -> list[Seat]:
    """Return the other end of a Send or Recv if it is over there, so that only a group holds it."""
    if wait.place.pair is None:
        return []
    seats = wait.meeting.expected_seats(wait.place)
    return [seat for seat in seats if wait.meeting.operation_at(seat, wait.place) is None]


class WaitGraph:
    """Waiting processes and operations, and where the paths from each end."""

    def __init__(
        self, waits: Iterable[Wait], signs: Signs, meetings: Sequence[Meeting] = ()
    ) -> None:
        """Build the graph from all waits; "now" is the last sign of life of any process."""
        self.waits = {wait.place: wait for wait in waits}
        self.pictures = {place: _look(wait, signs) for place, wait in self.waits.items()}
        self._by_size: dict[int, list[Meeting]] = defaultdict(list)
        for meeting in meetings:
            if not meeting.mixed:
                self._by_size[meeting.nranks].append(meeting)
        self._meetings_of: dict[int, list[int]] = defaultdict(list)
        self._busy: list[tuple[int, int]] = []  # ranks of each meeting: in operations, idle
        for at, meeting in enumerate(meetings):
            busy = sum(bool(seat.process.operations) for seat in meeting.seats.values())
            self._busy.append((busy, len(meeting.seats) - busy))
            for seat in meeting.seats.values():
                self._meetings_of[seat.who].append(at)
        # Who did not come where most ranks wait.
        self._outvoted = {
            who
            for place, picture in self.pictures.items()
            if len(self.waits[place].seats) > len(picture.absent)
            for who in picture.absent
        }
        self._queued = {who for picture in self.pictures.values() for who in picture.queued}
        self._gone = {who for picture in self.pictures.values() for who in picture.dead}
        self._called = {
            seat.who
            for meeting in meetings
            for seat in meeting.seats.values()
            if seat.process.operations
        }
        self._kinds_of: dict[int, set[tuple[int, int]]] = {}  # cached
        edges: list[tuple[_Node, _Node]] = []
        for place, wait in self.waits.items():
            picture = self.pictures[place]
            # A dead process waits for nobody, whatever it was in.
            edges += [(who, place) for who in wait.begun() if who not in picture.dead]
            if not picture.mismatched:
                edges += [(place, who) for who in picture.late]
        edges += self._held_by_their_groups()
        self.ends = find_ends(successors(edges))
        self._blamed: dict[End[_Node], set[int]] = {}  # cached: many paths have the same end
        # Cached: many hangs have the same roots.
        self._waiting: dict[frozenset[int], frozenset[int]] = {}

    def _held_by_their_groups(self) -> Iterator[tuple[_Node, _Node]]:
        """Yield edges from Sends and Recvs to which both have come to the processes in them.

        Sends and Recvs between ncclGroupStart and ncclGroupEnd are one kernel on each rank: none is
        over before all are, so that one without a peer holds the others, and those of their peers.
        NCCL runs one group of a communicator at a time. So what a rank is in at once is one group.
        """
        groups: dict[tuple[int, int], list[OpPlace]] = defaultdict(list)
        for place, wait in self.waits.items():
            if place.pair:
                for who in wait.begun():
                    groups[place.comm_id, who].append(place)
        held: set[OpPlace] = set()
        reached = [place for place in self.waits if place.pair and self.pictures[place].late]
        while reached:
            place = reached.pop()
            for who in self.waits[place].begun():
                found = {*groups[place.comm_id, who]} - held
                held |= found
                reached += found
        for place, wait in self.waits.items():
            picture = self.pictures[place]
            if picture.late or picture.mismatched or picture.missing or picture.unknown:
                continue
            over = _over(wait)
            for who in wait.begun():
                if place in held or (over and len(groups[place.comm_id, who]) > 1):
                    yield place, who
            # Who fell silent before the wait began may have died with the last bytes.
            silent = (seat.who for seat in over if seat.process.facts.beat_ns < wait.since_ns)
            yield from ((place, who) for who in silent)

    def origins(self, place: OpPlace) -> frozenset[_Node]:
        """Return the nodes at which the paths from an operation end; it may be one of them."""
        ends = self.ends.get(place, frozenset())
        return frozenset(node for end in ends for node in end) or frozenset({place})

    def all_came(self, end: End[_Node]) -> bool:
        """Tell whether a path ends at operations to which all have come."""
        places = [node for node in end if isinstance(node, OpPlace)]
        pictures = [self.pictures[place] for place in places]
        return bool(places) and not any(one.late or one.mismatched for one in pictures)

    def roots(self, place: OpPlace) -> tuple[int, ...]:
        """Return the processes at which the paths from an operation end.

        A process that called nothing comes before those that called something that their GPUs have
        not started: these may wait for it in a way that no event tells.
        """
        found: set[int] = set()
        for end in self.ends.get(place, frozenset()):
            found |= self.blamed(end)
        queued = {who for who in found & self._queued if who not in self._gone}
        idle = found - queued - self._called
        return tuple(sorted(found - queued if idle else found))

    def blamed(self, end: End[_Node]) -> set[int]:
        """Return the processes that are behind one end."""
        if end not in self._blamed:
            self._blamed[end] = self._find_blamed(end)
        return self._blamed[end]

    def _find_blamed(self, end: End[_Node]) -> set[int]:
        if len(end) > 1:
            return set() if self.all_came(end) else self._of_knot(end)
        (node,) = end
        if isinstance(node, int):
            return {node}
        if self.pictures[node].not_measured:
            return set()
        return set(self.pictures[node].mismatched) or set(self.stuck(self.waits[node])[1])

    def waiting_for(self, roots: Iterable[int]) -> frozenset[int]:
        """Return the processes that wait for nobody but these, over all communicators."""
        those = frozenset(roots)
        if those not in self._waiting:
            self._waiting[those] = frozenset(
                who
                for who, ends in self.ends.items()
                if isinstance(who, int)
                and who not in those
                and ends
                and all((blamed := self.blamed(end)) and blamed <= those for end in ends)
            )
        return self._waiting[those]

    def may_be_right(self, who: int) -> bool:
        """Tell whether a process that did not come may be right, and those that wait wrong.

        Who stops holds up the others sooner or later. If most ranks of the operation wait for it,
        it is wrong. Else, if most of the processes with which it communicates are in no operation,
        somebody may have called one more than they.
        """
        if who in self._outvoted:
            return False
        busy, idle = 0, 0
        for at in self._meetings_of.get(who, ()):
            found_busy, found_idle = self._busy[at]
            busy, idle = busy + found_busy, idle + found_idle
        own = len(self._meetings_of.get(who, ()))  # it is idle itself
        return busy < idle - own

    def stuck(self, wait: Wait) -> tuple[str, tuple[int, ...]]:
        """Return why an operation to which all have come does not end, and who is involved."""
        seats = wait.meeting.seats
        found = find_stuck_peer((seat for seat, _ in wait.seats), wait.age_ns)
        if found is not None and found.peer in seats:
            rank, peer = seats[found.rank].who, seats[found.peer].who
            between = {GPU: (rank,), CREDIT: (peer,)}.get(found.state, (rank, peer))
            return (TRANSPORT if found.state == GPU else NETWORK), between
        pair = wait.place.pair or ()
        return TRANSPORT, tuple(seats[rank].who for rank in pair if rank in seats)

    def _of_knot(self, end: End[_Node]) -> set[int]:
        """Return who stopped calling, else who used another order than most, else everybody."""
        processes = {node for node in end if isinstance(node, int)}
        return self.stopped_in(end) or self._out_of_order(end) or self._minority(end) or processes

    def _out_of_order(self, end: End[_Node]) -> set[int]:
        """Return the processes that took two operations of a knot in another order than most did.

        For two such operations, some processes are in the first and have not begun the second, and
        for others it is the other way round. Replicas that came through, outside the knot, are
        counted, too.
        """
        places = [node for node in end if isinstance(node, OpPlace) and node in self.waits]
        inside = {place: set(self.waits[place].begun()) for place in places}
        held: dict[int, list[OpPlace]] = defaultdict(list)
        for place, begun in inside.items():
            for who in begun:
                held[who].append(place)
        first: dict[tuple[OpPlace, OpPlace], set[int]] = defaultdict(
            set
        )  # came to the first one first
        for other in places:
            picture = self.pictures[other]
            for who in {*picture.absent, *picture.queued} - inside[other]:
                for one in held.get(who, ()):
                    first[one, other].add(who)
        found: set[int] = set()
        for (one, other), came in first.items():
            against = first.get((other, one))
            if against:
                for_it = len(came) + self._through(one, other)
                if for_it < len(against) + self._through(other, one):
                    found |= came
        return found

    def _through(self, done: OpPlace, stuck: OpPlace) -> int:
        """Return how many processes are in `stuck` and have the counterpart of `done` behind them.

        The counterpart is the operation of a communicator that does the same for other ranks.
        """
        like = self.waits[done].meeting
        if like.mixed:
            return 0
        inside = set(self.waits[stuck].begun())
        return sum(
            seat.who in inside and seat.comm.last_sequence >= done.ordinal
            for meeting in self._counterparts(like)
            for seat in meeting.seats.values()
        )

    def _counterparts(self, like: Meeting) -> list[Meeting]:
        """Return the communicators of the same size and name.

        Programs may name each communicator differently, or none. Then those count that have no
        process in common with this one and had all kinds of its operations.
        """
        alike = [one for one in self._by_size.get(like.nranks, ()) if one is not like]
        named = [one for one in alike if like.name and one.name == like.name]
        if named:
            return named
        own = {seat.who for seat in like.seats.values()}
        return [
            one
            for one in alike
            if own.isdisjoint(seat.who for seat in one.seats.values())
            and self._kinds(like) <= self._kinds(one)
        ]

    def _kinds(self, meeting: Meeting) -> set[tuple[int, int]]:
        if meeting.id not in self._kinds_of:
            self._kinds_of[meeting.id] = meeting.kinds()
        return self._kinds_of[meeting.id]

    def _minority(self, end: End[_Node]) -> set[int]:
        """Return the processes of the knot that are not where most ranks of their communicator are.

        If most ranks of a communicator are in one operation and the rest are in others, the rest
        used another order.
        """
        lacking: set[int] = set()
        inside: set[int] = set()
        for place in end:
            if not isinstance(place, OpPlace) or place not in self.waits:
                continue
            wait = self.waits[place]
            begun = set(wait.begun())
            if 2 * len(begun) > wait.meeting.expected_count(place):
                inside |= begun
                lacking |= {seat.who for seat in wait.meeting.expected_seats(place)} - begun
        return {node for node in end if isinstance(node, int)} & lacking - inside

    def stopped_in(self, end: End[_Node]) -> set[int]:
        """Return who did not call what others of a knot are in, and is itself only in Recvs.

        A Recv may be posted ahead of time, so a process that is only in Recvs may still have
        stopped calling. Then a collective or Send lacks that process, but not the whole knot.
        """
        processes = {node for node in end if isinstance(node, int)}
        held = {
            seat.who
            for place, wait in self.waits.items()
            if place in end and not is_recv(place)
            for seat, _ in wait.seats
        }
        lacking = {
            who
            for place, picture in self.pictures.items()
            if not is_recv(place)
            for who in picture.absent
        }
        return (processes & lacking) - held


def is_recv(place: OpPlace) -> bool:
    return place.pair is not None and FUNCS[place.func] == "Recv"
