# SPDX-License-Identifier: Apache-2.0
"""Which rank had come to which operation of a communicator when its box was read.

If a communicator has only collectives, an operation's index is the same on all ranks. If it also
has Sends and Recvs, ranks differ in how many of these they have. Then a collective is compared by
its place among those of its function, and a Send with the Recv of the same place between the same
two ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.analysis.claims import Run, gaps
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.process import (
    COMM_FOLDED,
    DROP_REASONS,
    DROPS_IN_PART,
    FUNCS,
    GROUP,
    OPERATIONS_MAX,
    P2P_FUNCS,
    Comm,
    Operation,
    Process,
)

_SEND, _RECV = FUNCS.index("Send"), FUNCS.index("Recv")
_OTHER_END = {_SEND: _RECV, _RECV: _SEND}


class Arrival(Enum):
    """How far a rank has come with an operation."""

    STARTED = "started"  # or ended
    QUEUED = "queued"  # called, but its kernel has not begun
    ABSENT = "absent"  # not called
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OpPlace:
    """An operation of a communicator, the same on all ranks that take part.

    `pair` is set for a Send or Recv only.
    """

    comm_id: int
    func: int  # for p2p the waiting rank's; -1 if the index counts all functions
    ordinal: int  # from 1
    pair: tuple[int, int] | None = None  # the waiting rank and its peer


@dataclass(frozen=True, slots=True)
class Seat:
    """A process in one communicator; `who` is its place in the list of processes."""

    who: int
    process: Process
    comm: Comm
    operations: tuple[Operation, ...]  # in flight in this communicator, in the order of the calls
    finished: Mapping[tuple[int, int], int]  # by function and peer (-1 for collectives)

    @property
    def was_silent(self) -> bool:
        """Whether nothing was counted for some time, so that counts cannot be compared."""
        return bool(self.process.facts.silent or self.process.facts.silent_ns)

    @property
    def was_cut(self) -> bool:
        """Whether more is in flight than was kept; the rest was called later than the kept ones."""
        comm = self.comm
        ended = comm.completed + comm.untimed + comm.lost
        cut = len(self.process.operations) >= OPERATIONS_MAX
        return cut and comm.enqueued - ended > len(self.operations)

    @property
    def counts_all(self) -> bool:
        """Whether all ended operations are in the tables by function and by peer."""
        drops = zip(DROP_REASONS, self.process.dropped, strict=False)
        lost = any(count for reason, count in drops if reason not in DROPS_IN_PART - {"no_peer"})
        return not (self.was_silent or lost or self.comm.lost)

    @property
    def times_all(self) -> bool:
        """Whether every operation was followed, not only a part of them."""
        return self.process.facts.sampling <= 1 and not self.process.facts.sampled_ns


def _finished(process: Process, comm: Comm) -> Mapping[tuple[int, int], int]:
    found: Counter[tuple[int, int]] = Counter()
    for key in process.keys:
        if key.comm == comm.index and key.algo != GROUP and key.func not in P2P_FUNCS:
            found[key.func, -1] += key.ops + key.untimed_ops
    for peer in process.peers:
        if peer.comm == comm.index:
            found[peer.func, peer.peer] += peer.ops
    return found


def _was_overtaken(operation: Operation, comm: Comm) -> bool:
    """Tell whether a later operation has ended: then this one has, too, and its end was not told.

    This holds only for collectives: a Recv may be posted on another stream and be overtaken all the
    time.
    """
    return operation.peer < 0 and operation.index < comm.last_sequence


def _seats(who: int, process: Process) -> Iterable[Seat]:
    operations: dict[int, list[Operation]] = defaultdict(list)
    for operation in process.operations:
        operations[operation.comm].append(operation)
    for comm in process.comms:
        if comm.state != COMM_FOLDED and comm.rank >= 0:
            mine = sorted(
                (one for one in operations[comm.index] if not _was_overtaken(one, comm)),
                key=lambda one: one.index,
            )
            yield Seat(who, process, comm, tuple(mine), _finished(process, comm))


def _like(seat: Seat, func: int, peer: int) -> list[Operation]:
    return [one for one in seat.operations if (one.func, one.peer) == (func, peer)]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A communicator and all its seats by rank; `mixed`: it has Sends and Recvs."""

    id: int
    name: str
    nranks: int
    nnodes: int
    mixed: bool
    seats: Mapping[int, Seat]

    def kinds(self) -> set[tuple[int, int]]:
        """Return the functions and size classes of its operations, also of those in flight."""
        ended = {
            (key.func, key.size_class)
            for seat in self.seats.values()
            for key in seat.process.keys
            if key.comm == seat.comm.index
        }
        return ended | {
            (one.func, size_class(one.bytes))
            for seat in self.seats.values()
            for one in seat.operations
        }

    def place_of(self, seat: Seat, operation: Operation) -> OpPlace:
        """Return the place of an operation that is in flight at this seat."""
        pair = (seat.comm.rank, operation.peer) if operation.peer >= 0 else None
        if not self.mixed:
            return OpPlace(self.id, -1, operation.index)
        before = seat.finished.get((operation.func, operation.peer), 0)
        like = _like(seat, operation.func, operation.peer)
        return OpPlace(self.id, operation.func, before + like.index(operation) + 1, pair)

    def expected_seats(self, place: OpPlace) -> list[Seat]:
        """Return the seats of the ranks that must come, ordered by rank; only ranks with a box."""
        ranks = sorted(self.seats)
        if self.nranks and place.pair:
            ranks = list(dict.fromkeys(rank for rank in place.pair if rank in self.seats))
        elif self.nranks:
            ranks = [rank for rank in ranks if rank < self.nranks]
        return [self.seats[rank] for rank in ranks]

    def expected_count(self, place: OpPlace) -> int:
        """Return how many ranks must come, with or without a box."""
        if not self.nranks:
            return len(self.seats)
        return len(set(place.pair)) if place.pair else self.nranks

    def missing(self, place: OpPlace) -> tuple[Run, ...]:
        """Return the ranks that must come and have no box, as runs.

        The number of ranks is a claim of a box. Therefore this only loops over the seats, and there
        is at most one run more than there are seats.
        """
        if not self.nranks:
            return ()
        if place.pair:
            alone = dict.fromkeys(rank for rank in place.pair if rank not in self.seats)
            return tuple((rank, rank) for rank in alone)
        return gaps(self.seats, self.nranks)

    def operation_at(self, seat: Seat, place: OpPlace) -> Operation | None:
        """Return the operation in flight at this seat that has this place."""
        func, peer = self._own_end(seat, place)
        if func < 0:
            return next((one for one in seat.operations if one.index == place.ordinal), None)
        like = _like(seat, func, peer)
        at = place.ordinal - seat.finished.get((func, peer), 0) - 1
        return like[at] if 0 <= at < len(like) else None

    def arrival(self, seat: Seat, place: OpPlace) -> Arrival:
        """Return how far this seat's rank has come."""
        operation = self.operation_at(seat, place)
        if operation is not None:
            return Arrival.STARTED if operation.started else Arrival.QUEUED
        if seat.was_silent:
            return Arrival.UNKNOWN
        func, peer = self._own_end(seat, place)
        if func < 0:
            called = seat.comm.enqueued
        else:
            called = seat.finished.get((func, peer), 0) + len(_like(seat, func, peer))
        if place.ordinal <= called:
            # Operations in flight that were not kept are queued behind those that were.
            first = min((one.index for one in seat.operations), default=called + 1)
            behind = func < 0 and seat.was_cut and place.ordinal > first
            return Arrival.QUEUED if behind else Arrival.STARTED
        if func >= 0 and seat.was_cut:
            return Arrival.UNKNOWN
        exact = func < 0 or (seat.counts_all and (peer < 0 or seat.times_all))
        return Arrival.ABSENT if exact else Arrival.UNKNOWN

    def _own_end(self, seat: Seat, place: OpPlace) -> tuple[int, int]:
        """Return the function that this rank calls at a place, and its peer."""
        if place.pair is None:
            return place.func, -1
        waiter, peer = place.pair
        if seat.comm.rank == waiter:
            return place.func, peer
        return _OTHER_END.get(place.func, place.func), waiter


def _is_mixed(seats: Iterable[Seat]) -> bool:
    return any(
        any(peer >= 0 for _, peer in seat.finished)
        or any(one.peer >= 0 for one in seat.operations)
        or any(key.comm == seat.comm.index and key.func in P2P_FUNCS for key in seat.process.keys)
        for seat in seats
    )


def find_meetings(processes: Sequence[Process]) -> list[Meeting]:
    """Return every communicator that is not folded, with the seats of all its ranks."""
    seats: dict[int, dict[int, Seat]] = defaultdict(dict)
    for who, process in enumerate(processes):
        for seat in _seats(who, process):
            seats[seat.comm.id].setdefault(seat.comm.rank, seat)
    found = []
    for comm_id, of_ranks in seats.items():
        first = next(iter(of_ranks.values())).comm
        mixed = _is_mixed(of_ranks.values())
        found.append(Meeting(comm_id, first.name, first.nranks, first.nnodes, mixed, of_ranks))
    return found
