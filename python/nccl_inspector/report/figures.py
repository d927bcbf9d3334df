# SPDX-License-Identifier: Apache-2.0
"""The tables of a card: communicators, operations and transport classes."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from nccl_inspector.analysis import join
from nccl_inspector.model.card import Communicator, Operations, Transport
from nccl_inspector.model.process import P2P

RANKS_ENOUGH = 0.9
# For a communicator and one of its kinds of operation: expected bus bandwidth in GB/s, and its
# source.
Expect = Callable[[join.JoinedComm, join.Figures], tuple[float, str] | None]


def comm_id(comm: join.JoinedComm) -> str:
    """Return the id in the card; for communicators that were summed, a text about their shape."""
    return hex(comm.id) if comm.id else f"folded {comm.nranks}/{comm.nnodes} {comm.name}".rstrip()


def name_communicators(comms: Iterable[join.JoinedComm]) -> dict[str, str]:
    """Return the name of each communicator, by its id in the card.

    ncclCommSplit copies the name of the communicator that is split, unless a new name is given. So
    smaller communicators whose processes are all in a larger one of the same name are called
    splits.
    """
    named: dict[str, list[join.JoinedComm]] = defaultdict(list)
    found = {}
    for comm in comms:
        found[comm_id(comm)] = comm.name
        if comm.name and comm.id:
            named[comm.name].append(comm)
    for name, same in named.items():
        largest = max(same, key=lambda comm: comm.nranks)
        whole = {member.place for member in largest.members.values()}
        for comm in same:
            places = {member.place for member in comm.members.values()}
            if comm.nranks < largest.nranks and places <= whole:
                found[comm_id(comm)] = f"{name} (split of {comm.nranks})"
    return found


def _notes(comm: join.JoinedComm) -> tuple[str, ...]:
    if comm.figures:
        return comm.notes
    counted = any(key.untimed_ops for one in comm.members.values() for key in one.keys)
    return (f"no operation {'has a time' if counted else 'was measured'}", *comm.notes)


def list_communicators(
    comms: Iterable[join.JoinedComm], transports: Mapping[str, str], names: Mapping[str, str]
) -> tuple[Communicator, ...]:
    """Return the rows of communicators; `transports` and `names` by id."""
    return tuple(
        Communicator(
            id=comm_id(comm),
            name=names[comm_id(comm)],
            transport=transports[comm_id(comm)],
            nranks=comm.nranks or len(comm.members),
            nnodes=comm.nnodes,
            nodes=tuple(sorted({one.place.node for one in comm.members.values()})),
            ranks_seen=len(comm.members),
            notes=_notes(comm),
        )
        for comm in comms
    )


def _waited_for(
    comm: join.JoinedComm, one: join.Figures, accused: Sequence[str]
) -> join.Place | None:
    """Return which of the accused processes the others of a communicator waited for, or None.

    It is one whose own operations are shorter than most of the others', because it waits least in
    them.
    """
    if not accused or not one.waits:
        return None
    middle = median(one.medians.values())
    late = {
        comm.members[rank].place.name: comm.members[rank].place
        for rank, ns in one.medians.items()
        if ns < middle
    }
    return next((late[name] for name in accused if name in late), None)


def _operations(
    comm: join.JoinedComm, one: join.Figures, expect: Expect, accused: Sequence[str]
) -> Operations:
    expected = expect(comm, one)
    # The rank that came last may be missing: then even the shortest time includes waiting.
    few = len(comm.members) < RANKS_ENOUGH * comm.nranks
    told = one.exact or (not few and (one.compared or one.waiting > 0))
    included = one.func not in P2P and not told
    late = _waited_for(comm, one, accused)
    return Operations(
        communicator=comm_id(comm),
        func=one.func,
        size_class=one.size_class,
        algo_proto=one.algo_proto,
        count=one.operations,
        time_ns=one.time_ns,
        bus_gbs=one.bus_gbs or None,
        waiting_share=None if one.func in P2P or included else one.waiting,
        waiting_included=included,
        expected_gbs=expected[0] if expected else None,
        expected_source=expected[1] if expected else "",
        notes=tuple(note for note in one.notes if note not in comm.notes),
        waited_for=late.name if late else "",
        waited_for_node=late.node if late else "",
        time_error_ns=one.error_ns,
    )


def list_operations(
    comms: Iterable[join.JoinedComm], expect: Expect, accused: Sequence[str] = ()
) -> tuple[Operations, ...]:
    """Return the rows of operations, by communicator, those that took longest first.

    `accused`: the names of processes that findings call late, the most costly first. The rows name
    no other process as waited for.
    """
    return tuple(_operations(comm, one, expect, accused) for comm in comms for one in comm.figures)


def total_waiting(comms: Iterable[join.JoinedComm]) -> float | None:
    """Return waiting as a share of the ranks' time in operations where all wait for all."""
    figures = [one for comm in comms for one in comm.figures if one.waits]
    busy_ns = sum(one.busy_ns for one in figures)
    return sum(one.waiting_ns for one in figures) / busy_ns if busy_ns else None


@dataclass(slots=True)
class _ClassSum:
    """The sums over the operations of one class."""

    busy_ns: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    transfer_ns: float = 0.0  # T times operations, of those whose bandwidth is defined
    bus_bytes: float = 0.0
    waiting_ns: float = 0.0
    all_ns: float = 0.0


def _add(comm: join.JoinedComm, total: _ClassSum) -> None:
    for member in comm.members.values():
        place = member.place.node, member.place.process
        total.busy_ns[place] += sum(key.busy_ns for key in member.keys)
    for one in comm.figures:
        spent_ns = one.time_ns * one.operations
        total.bus_bytes += one.bus_gbs * spent_ns
        total.transfer_ns += spent_ns if one.bus_gbs else 0.0
        if one.waits:
            total.waiting_ns += one.waiting_ns
            total.all_ns += one.busy_ns


def sum_transports(
    comms: Sequence[join.JoinedComm], transports: Mapping[str, str], wall_s: float | None
) -> tuple[Transport, ...]:
    """Return a row for each class, the busiest first; `wall_s`: how long the job ran."""
    sums: dict[str, _ClassSum] = defaultdict(_ClassSum)
    for comm in comms:
        if comm.figures:
            _add(comm, sums[transports[comm_id(comm)]])
    rows = []
    for transport, total in sums.items():
        busy_s = max(total.busy_ns.values(), default=0) / 1e9
        rows.append(
            Transport(
                transport=transport,
                busy_s=busy_s,
                # Operations of several streams overlap, but together they are busy at most all the
                # time.
                wall_share=min(1.0, busy_s / wall_s) if wall_s else None,
                waiting_share=total.waiting_ns / total.all_ns if total.all_ns else None,
                bus_gbs=total.bus_bytes / total.transfer_ns if total.transfer_ns else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.busy_s))
