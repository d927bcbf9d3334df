# SPDX-License-Identifier: Apache-2.0
"""Join what the ranks of a communicator say, and find the one that the others waited for.

A collective ends on all ranks at about the same time, so its time on a rank is
transfer plus waiting for the last rank: T, the least of the ranks' medians, is
the transfer, and the rank that has it came last (reference: NCCL waits inside
the kernel).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.bandwidth import bus_factor
from nccl_inspector.analysis.histogram import median_error_ns, median_ns, merge
from nccl_inspector.analysis.lateness import (
    LATE_NS_MIN,
    SYNCHRONISING,
    comparable,
    find_late,
)
from nccl_inspector.analysis.naming import name_processes
from nccl_inspector.model import COMM_FOLDED, FUNCS, P2P, Comm, Key, Process


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A process of the job, in words (analysis/naming.py), and where it ran."""

    node: str
    process: str
    gpu: str
    name: str

    def __hash__(self) -> int:
        """Return that of the name, which tells processes apart: it is asked a million times."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator."""

    place: Place
    comm: Comm
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """A late rank in one kind of operation; `clear`: its peers waited for it, by all rules."""

    rank: int  # in the communicator
    place: Place
    late_ns: float  # median over the others less its own
    waited_ns: float  # by all others, all operations together
    share: float  # late_ns of T
    z: float | None
    clear: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """One kind of operation of one communicator, over its ranks."""

    func: str
    size_class: int
    algo_proto: str
    operations: int  # of the busiest rank
    time_ns: float  # T; the median over all for Send and Recv
    bus_gbs: float  # GB/s (1e9 bytes), 0: not defined
    waiting: float  # share of the ranks' time; 0 for Send and Recv
    waiting_ns: float
    lasts: tuple[Late, ...]  # the last rank, then others that are clearly late; none: not judged
    notes: tuple[str, ...]
    medians: Mapping[int, float]  # ns, by rank

    @property
    def judged(self) -> bool:
        """Whether a late rank would have been named."""
        return bool(self.lasts)

    @property
    def late(self) -> Late | None:
        """The rank that the others waited for."""
        return next((one for one in self.lasts if one.clear), None)


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator as all its ranks together saw it."""

    id: int
    name: str
    nranks: int
    nnodes: int
    members: dict[int, Member]
    figures: tuple[Figures, ...]
    notes: tuple[str, ...]


def _place(node: str, process: Process, comm: Comm, name: str) -> Place:
    gpu = (
        process.gpus[comm.gpu].label
        if comm.gpu is not None and 0 <= comm.gpu < len(process.gpus)
        else "unknown"
    )
    return Place(node, process.facts.name, gpu, name)


def _bytes_per_ns(key: Key, time_ns: float, nranks: int) -> float:
    """Return bus bytes per ns, which is GB/s."""
    return (
        key.bytes / key.ops * bus_factor(FUNCS[key.func], nranks) / time_ns
        if time_ns > 0 and key.ops
        else 0.0
    )


def _find_lasts(
    keys: dict[int, Key], medians: dict[int, float], members: dict[int, Member]
) -> tuple[Late, ...]:
    """Return the last of ranks whose medians are of the same operations, and all late ones."""
    if not medians:
        return ()
    # Nobody is clearly late by less, whatever the errors are: they cost as much as all the rest.
    may_be = max(medians.values()) - min(medians.values()) >= LATE_NS_MIN
    errors = {rank: median_error_ns(keys[rank].histogram) if may_be else 0.0 for rank in medians}
    found = []
    for one in find_late(medians, errors):
        above_ns = sum(max(0.0, value - one.time_ns) for value in medians.values())
        waited_ns = above_ns * min(keys[rank].ops for rank in medians)
        share = one.late_ns / one.time_ns if one.time_ns else 0.0
        place = members[one.rank].place
        found.append(Late(one.rank, place, one.late_ns, waited_ns, share, one.z, one.clear))
    return tuple(found)


def _range_notes(keys: dict[int, Key], nranks: int) -> tuple[str, ...]:
    """Say where the ranks' medians are not of the same operations."""
    notes = []
    if len(keys) < nranks:
        notes.append(f"{nranks - len(keys)} of {nranks} ranks missing")
    if len({key.ops for key in keys.values()}) > 1:
        low, high = min(key.ops for key in keys.values()), max(key.ops for key in keys.values())
        notes.append(f"ranks have {low} to {high} operations")
    elif len({(key.first_index, key.last_index) for key in keys.values()}) > 1:
        notes.append("ranks counted different operations")
    untimed = max(key.untimed_ops for key in keys.values())
    if untimed:
        notes.append(f"and up to {untimed} without a time")
    return tuple(notes)


def _collective(keys: dict[int, Key], members: dict[int, Member], nranks: int) -> Figures:
    medians = {rank: median_ns(key.histogram) for rank, key in keys.items()}
    ops = {rank: key.ops for rank, key in keys.items()}
    alike = {rank: medians[rank] for rank in sorted(comparable(ops, nranks))}
    fastest = min(alike or medians, key=lambda rank: (medians[rank], rank))
    key, time_ns = keys[fastest], medians[fastest]
    busy_ns = sum(key.busy_ns for key in keys.values())
    waiting_ns = sum(max(0.0, key.busy_ns - key.ops * time_ns) for key in keys.values())
    waits = FUNCS[key.func] in SYNCHRONISING
    return Figures(
        func=FUNCS[key.func],
        size_class=key.size_class,
        algo_proto=key.algo_proto,
        operations=max(ops.values()),
        time_ns=time_ns,
        bus_gbs=_bytes_per_ns(key, time_ns, nranks),
        waiting=waiting_ns / busy_ns if waits and busy_ns else 0.0,
        waiting_ns=waiting_ns if waits else 0.0,
        lasts=_find_lasts(keys, alike, members) if waits else (),
        notes=_range_notes(keys, nranks),
        medians=medians,
    )


def _transfer(keys: dict[int, Key], nranks: int) -> Figures:
    """Send and Recv: no rank waits for all others, so their own median it is."""
    key = next(iter(keys.values()))
    time_ns = median_ns(merge(key.histogram for key in keys.values()))
    mean_bytes = sum(key.bytes for key in keys.values()) / sum(key.ops for key in keys.values())
    ops = max(key.ops for key in keys.values())
    bus_gbs = mean_bytes * bus_factor(FUNCS[key.func], nranks) / time_ns if time_ns else 0.0
    medians = {rank: median_ns(key.histogram) for rank, key in keys.items()}
    return Figures(
        FUNCS[key.func], key.size_class, "", ops, time_ns, bus_gbs, 0.0, 0.0, (), (), medians
    )


def _figures(members: dict[int, Member], nranks: int) -> tuple[Figures, ...]:
    """Return the figures of each kind of operation, the one that took longest first."""
    kinds: dict[tuple[int, int, str], dict[int, Key]] = defaultdict(dict)
    for rank, member in sorted(members.items()):
        for key in member.keys:
            if key.histogram and key.ops:
                algo_proto = "" if FUNCS[key.func] in P2P else key.algo_proto
                kinds[key.func, key.size_class, algo_proto].setdefault(rank, key)
    found = [
        _transfer(keys, nranks) if FUNCS[func] in P2P else _collective(keys, members, nranks)
        for (func, _, _), keys in kinds.items()
    ]
    return tuple(
        sorted(found, key=lambda one: (-one.time_ns * one.operations - one.waiting_ns, one.func))
    )


def _join(comm_id: int, found: list[Member]) -> Communicator:
    first = found[0].comm
    members: dict[int, Member] = {}
    notes = []
    for member in found:
        same = (member.comm.nranks, member.comm.nnodes) == (first.nranks, first.nnodes)
        if not same or member.comm.rank in members:
            notes.append(
                "two processes say that they are the same rank, or do not agree on the size"
            )
        else:
            members[member.comm.rank] = member
    if not first.nranks:
        notes.append("how many ranks there are is not known: NCCL before 2.27 does not tell")
    if len(members) < first.nranks:
        notes.append(f"{first.nranks - len(members)} of {first.nranks} ranks missing")
    figures = _figures(members, first.nranks)
    return Communicator(
        comm_id,
        first.name,
        first.nranks,
        first.nnodes,
        members,
        figures,
        tuple(dict.fromkeys(notes)),
    )


def _together(found: list[Member]) -> Communicator:
    """Return destroyed communicators of one shape, of which each rank kept the sum.

    Which of them a rank has in its sum is not known, so nobody is compared with anybody.
    """
    first = found[0].comm
    members = dict(enumerate(found))
    kinds: dict[tuple[int, int, str], list[Key]] = defaultdict(list)
    for member in found:
        for key in member.keys:
            if key.histogram and key.ops:
                kinds[key.func, key.size_class, key.algo_proto].append(key)
    figures = tuple(
        Figures(
            FUNCS[func], size, "" if FUNCS[func] in P2P else algo_proto,
            max(key.ops for key in keys), median_ns(merge(key.histogram for key in keys)),
            0.0, 0.0, 0.0, (), (), {},
        )
        for (func, size, algo_proto), keys in kinds.items()
    )  # fmt: skip
    count = max(member.comm.folded for member in found)
    notes = (f"{count} destroyed communicators taken together: times with waiting, not judged",)
    return Communicator(0, first.name, first.nranks, first.nnodes, members, figures, notes)


def join_communicators(
    processes: Iterable[tuple[str, Process]], names: Sequence[str] | None = None
) -> list[Communicator]:
    """Join processes, each with its node's name, by communicator; the largest come first.

    `names`: words for each process (analysis/naming.py); of one job's when not given.
    """
    listed = list(processes)
    if names is None:
        names = name_processes([(0, process) for _, process in listed])
    found: dict[int, list[Member]] = defaultdict(list)
    folded: dict[tuple[str, int, int], list[Member]] = defaultdict(list)
    for (node, process), name in zip(listed, names, strict=True):
        keys: dict[int, list[Key]] = defaultdict(list)
        for key in process.keys:
            keys[key.comm].append(key)
        places: dict[int | None, Place] = {}  # one for each GPU: they are compared all the time
        for comm in process.comms:
            if comm.gpu not in places:
                places[comm.gpu] = _place(node, process, comm, name)
            member = Member(places[comm.gpu], comm, tuple(keys[comm.index]))
            if comm.rank < 0 and comm.state != COMM_FOLDED:
                continue  # NCCL before 2.27 tells whose it is with the first operation
            if comm.state == COMM_FOLDED:
                folded[comm.name, comm.nranks, comm.nnodes].append(member)
            else:
                found[comm.id].append(member)
    joined = [_join(comm_id, members) for comm_id, members in found.items()]
    joined += [_together(members) for members in folded.values()]
    return sorted(joined, key=lambda comm: (-comm.nranks, -comm.nnodes, comm.name, comm.id))
