# SPDX-License-Identifier: Apache-2.0
"""Join the data of a communicator's ranks: how long its operations take, and the waiting in them.

A collective ends on all ranks at about the same time, so its time on a rank is the transfer plus
the waiting for the last rank (NCCL waits inside the kernel). T is the transfer: the time of the
rank that came last and did not wait. Histograms do not tell which rank that was. But of n ranks one
is last each time. So one in n of all ranks' times has no waiting in it, and the median of those is
the quantile 0.5 / n of all times. If the ranks hardly wait, this is too short, by about the spread
of T itself. Exact records (analysis/transport/transfers.py) are better.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_inspector.analysis.histogram import (
    HistogramSum,
    median_ns,
    quantile_error_ns,
    quantile_ns,
)
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING, comparable
from nccl_inspector.analysis.transport.late_channels import late_channels_note
from nccl_inspector.analysis.transport.mixed_clocks import mixed_clocks_note
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.process import (
    COMM_FOLDED,
    FUNCS,
    P2P,
    Comm,
    Histogram,
    Key,
    OpKind,
    Process,
)
from nccl_inspector.summary.packed_tables import PackedKeys

_TELLS_RANKS = 22700  # the first NCCL that tells the number of ranks


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A process of the job by its name (analysis/process_names.py), and where it ran."""

    node: str
    process: str
    gpu: str
    name: str

    def __hash__(self) -> int:
        """Return the hash of the name, which is unique; it is needed a million times."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator."""

    place: Place
    comm: Comm
    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Figures:
    """One kind of operation of one communicator, over its ranks. Times are ns."""

    func: str
    size_class: int
    algo_proto: str
    operations: int  # of the busiest rank
    time_ns: float  # T; for Sends and Recvs without exact records, the median with waiting
    error_ns: float | None  # standard error of T; None: not known
    bus_gbs: float  # GB/s (1e9 bytes), 0: not defined
    busy_ns: int  # of all ranks together
    ranks_operations: int  # of all ranks together
    compared: bool  # at least two ranks counted the same operations, and all wait for all in these
    notes: tuple[str, ...]
    medians: Mapping[int, float]  # by rank
    exact: bool = False  # T is from exact records

    @property
    def kind(self) -> OpKind:
        """What the keys of its ranks have in common."""
        return self.func, self.size_class, self.algo_proto

    @property
    def waits(self) -> bool:
        """Whether the waiting for the last rank can be told apart from the transfer."""
        told = self.func in SYNCHRONISING or (self.exact and self.func not in P2P)
        return told and bool(self.medians)

    @property
    def waiting_ns(self) -> float:
        """The time that all ranks together waited for the last one, in ns."""
        return max(0.0, self.busy_ns - self.ranks_operations * self.time_ns) if self.waits else 0.0

    @property
    def waiting(self) -> float:
        """The waiting as a share of the ranks' time."""
        return self.waiting_ns / self.busy_ns if self.busy_ns else 0.0

    def timed(self, time_ns: float, error_ns: float) -> "Figures":
        """Return the figures with T from exact records."""
        bus_gbs = self.bus_gbs * self.time_ns / time_ns if time_ns > 0 else 0.0
        return replace(self, time_ns=time_ns, error_ns=error_ns, bus_gbs=bus_gbs, exact=True)


@dataclass(frozen=True, slots=True)
class JoinedComm:
    """A communicator, from the data of all its ranks."""

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


class _Sums:
    """One kind of operation of a communicator, summed up rank by rank.

    Nothing of a rank is kept but some numbers, because a communicator may have 100,000 ranks.
    """

    def __init__(self, some: Key) -> None:
        """Take a key of this kind, which is not counted."""
        self.some = some
        self.ops: dict[int, int] = {}  # by rank
        self.medians: dict[int, float] = {}  # by rank
        self.bytes = self.busy_ns = self.untimed_most = 0
        self._ranges: set[tuple[int, int]] = set()
        self._histogram = HistogramSum()

    def add(self, rank: int, key: Key) -> None:
        """Count a rank's operations."""
        self.ops[rank] = key.ops
        self.medians[rank] = median_ns(key.histogram)
        self.bytes += key.bytes
        self.busy_ns += key.busy_ns
        self.untimed_most = max(self.untimed_most, key.untimed_ops)
        self._ranges.add((key.first_index, key.last_index))
        self._histogram.add(key.histogram)

    @property
    def histogram(self) -> Histogram:
        """The times of all ranks."""
        return self._histogram.total()

    @property
    def func(self) -> str:
        """The function's name."""
        return FUNCS[self.some.func]

    @property
    def algo_proto(self) -> str:
        """Algorithm and protocol; empty for Sends and Recvs."""
        return "" if self.func in P2P else self.some.algo_proto

    def range_notes(self, nranks: int) -> tuple[str, ...]:
        """Return texts about ranks whose medians are not of the same operations."""
        notes = []
        if len(self.ops) < nranks:
            notes.append(f"{nranks - len(self.ops)} of {nranks} ranks missing")
        low, high = min(self.ops.values()), max(self.ops.values())
        if low != high:
            notes.append(f"ranks have {low} to {high} operations")
        elif len(self._ranges) > 1:
            notes.append("ranks counted different operations")
        if self.untimed_most:
            notes.append(f"and up to {self.untimed_most} without a time")
        return tuple(notes)

    def figures(self, nranks: int | None) -> Figures:
        """Return the figures in a communicator of so many ranks; None: ranks are not compared."""
        func, everything = self.func, self.histogram
        # Either of a Send and its Recv may be the one that waits.
        told = nranks is not None and func not in P2P
        share = 0.5 / max(nranks or 0, len(self.ops)) if told else 0.5
        time_ns = quantile_ns(everything, share)
        total = sum(self.ops.values())
        factor = 0.0 if nranks is None else bus_factor(func, nranks)
        return Figures(
            func=func,
            size_class=self.some.size_class,
            algo_proto=self.algo_proto,
            operations=max(self.ops.values()),
            time_ns=time_ns,
            error_ns=quantile_error_ns(everything, share) if told else None,
            bus_gbs=self.bytes / total * factor / time_ns if time_ns else 0.0,
            busy_ns=self.busy_ns,
            ranks_operations=total,
            compared=told and func in SYNCHRONISING and bool(comparable(self.ops, nranks or 0)),
            notes=self.range_notes(nranks or 0) if told else (),
            medians={} if nranks is None else self.medians,
        )


def _figures(members: dict[int, Member], nranks: int) -> tuple[Figures, ...]:
    """Return the figures of each kind of operation, the one that took longest first."""
    kinds: dict[OpKind, _Sums] = {}
    for rank, member in sorted(members.items()):
        for key in member.keys:
            if key.histogram and key.ops:
                sums = kinds.get(key.kind) or kinds.setdefault(key.kind, _Sums(key))
                if rank not in sums.ops:
                    sums.add(rank, key)
    found = [sums.figures(nranks) for sums in kinds.values()]
    return tuple(sorted(found, key=lambda one: (-one.busy_ns, one.func)))


def _join(comm_id: int, found: list[Member], *, is_told: bool) -> JoinedComm:
    """Return one communicator; `is_told`: its NCCL tells the number of ranks."""
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
        why = "" if is_told else ": NCCL before 2.27 does not tell"
        notes.append(f"how many ranks there are is not known{why}")
    if len(members) < first.nranks:
        notes.append(f"{first.nranks - len(members)} of {first.nranks} ranks missing")
    seen = [member.comm for member in members.values()]
    notes += mixed_clocks_note(seen) + late_channels_note(seen)
    figures = _figures(members, first.nranks)
    return JoinedComm(
        comm_id,
        first.name,
        first.nranks,
        first.nnodes,
        members,
        figures,
        tuple(dict.fromkeys(notes)),
    )


def _together(found: list[Member]) -> JoinedComm:
    """Return one communicator for figures that each rank kept only as a sum.

    These are destroyed communicators of one shape, or what live communicators did beyond the kinds
    that have a place of their own. Ranks may have different communicators in their sums, so ranks
    are not compared.
    """
    first = found[0].comm
    members = dict(enumerate(found))
    kinds: dict[tuple[int, int, str], _Sums] = {}
    for member in found:
        for key in member.keys:
            if key.histogram and key.ops:
                kind = key.func, key.size_class, key.algo_proto
                sums = kinds.get(kind) or kinds.setdefault(kind, _Sums(key))
                sums.add(len(sums.ops), key)
    figures = tuple(sums.figures(None) for sums in kinds.values())
    count = max(member.comm.folded for member in found)
    whose = f"{count} destroyed communicators" if count else "further kinds of all communicators"
    notes = (f"{whose} taken together: times with waiting, not judged",)
    return JoinedComm(0, first.name, first.nranks, first.nnodes, members, figures, notes)


def _keys_by_comm(process: Process) -> Callable[[int], Sequence[Key]]:
    """Return a function that gives the keys of a communicator, by its index in the process."""
    if isinstance(process.keys, PackedKeys):
        return process.keys.of_comm
    keys: dict[int, list[Key]] = defaultdict(list)
    for key in process.keys:
        keys[key.comm].append(key)
    return lambda comm: tuple(keys[comm])


def join_communicators(
    processes: Iterable[tuple[str, Process]], names: Sequence[str] | None = None
) -> list[JoinedComm]:
    """Join processes, each with its node's name, by communicator; the largest come first.

    `names`: the name of each process (analysis/process_names.py); None: names for one job.
    """
    listed = list(processes)
    if names is None:
        names = name_processes([(0, process) for _, process in listed])
    found: dict[int, list[Member]] = defaultdict(list)
    folded: dict[tuple[str, int, int], list[Member]] = defaultdict(list)
    told: set[int] = set()  # ids of communicators whose NCCL tells the number of ranks
    for (node, process), name in zip(listed, names, strict=True):
        keys = _keys_by_comm(process)
        places: dict[int | None, Place] = {}  # one object per GPU: compared very often
        for comm in process.comms:
            if comm.gpu not in places:
                places[comm.gpu] = _place(node, process, comm, name)
            member = Member(places[comm.gpu], comm, keys(comm.index))
            if comm.rank < 0 and comm.state != COMM_FOLDED:
                continue  # NCCL before 2.27 tells the communicator only with its first operation
            if comm.state == COMM_FOLDED:
                folded[comm.name, comm.nranks, comm.nnodes].append(member)
            else:
                found[comm.id].append(member)
                if process.facts.nccl_version >= _TELLS_RANKS:
                    told.add(comm.id)
    joined = [_join(one, members, is_told=one in told) for one, members in found.items()]
    joined += [_together(members) for members in folded.values()]
    return sorted(joined, key=lambda comm: (-comm.nranks, -comm.nnodes, comm.name, comm.id))
