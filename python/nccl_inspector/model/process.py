# SPDX-License-Identifier: Apache-2.0
"""What is known of one process: read from its box, carried by a node summary, judged by the report.

Tuples of words are indexed by the numbers of plugin/box/box.h. Of what a large job has hundreds of
thousands there are named tuples: they are made in a third of the time of a frozen dataclass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from nccl_inspector.model.labels import Label
from nccl_inspector.model.network import Net

if TYPE_CHECKING:
    from nccl_inspector.summary.sample_columns import (
        SampleColumns,
    )  # of numpy, which no agent imports

FUNCS = (
    "Unknown", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce",
    "AlltoAll", "Gather", "Scatter", "Send", "Recv", "SendRecv",
)  # fmt: skip
ALGOS = (
    "Unknown", "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT",
    "GROUP", "CE", "SYM",
)  # fmt: skip
PROTOS = ("Unknown", "LL", "LL128", "SIMPLE")
DROP_REASONS = (
    "no_slot",
    "no_communicator",
    "no_key",
    "expired",
    "implausible",
    "stale",
    "no_peer",
    "no_group",
    "json",
)
# Reasons that leave nothing unmeasured: what they count is only not in every table.
DROPS_IN_PART = frozenset({"no_peer", "no_group", "json"})
P2P = frozenset({"Send", "Recv", "SendRecv"})
OPERATIONS_MAX = 64  # in flight, that are kept of a process

COMM_LIVE, COMM_DESTROYED, COMM_FOLDED = 1, 2, 3

NS_PER_S = 10**9

# Bits of a sample's flags: a group of Sends and Recvs as one operation; timed by the CPU's clock.
SAMPLE_GROUP, SAMPLE_CPU_TIMED = 1, 2
# The peer of a sample: a collective or a group has none; one whose rank the record could not hold.
PEER_NONE, PEER_BEYOND = -1, 65534

# How a process ended, or that it has not.
RUNNING, FINALIZED, EXITED, KILLED = "running", "finalized", "exited", "killed"

# Whose clock timed the operations of a process: nobody's, then they were counted only.
TIMINGS = UNTIMED, GPU_TIMED, CPU_TIMED = "none", "gpu", "cpu"

# Why nothing was measured at the end: it was; the kill switch; the site's list of NCCL versions;
# AMD's library.
SILENCES = MEASURING, DISABLED, DENIED, RCCL = "", "disabled", "denied", "rccl"
# From its first communicator to its end.
NEVER_MEASURED = frozenset({DENIED, RCCL})


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU that the process used; `minor` is -1 and texts are empty where not known."""

    uuid: str
    pci_bus_id: str
    minor: int
    label: str


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator, or several folded into one record, as this process saw it."""

    index: int
    id: int
    state: int
    nranks: int
    nnodes: int
    rank: int
    gpu: int | None  # index of Process.gpus
    created_ns: int  # Unix time
    destroyed_ns: int  # 0 while live
    enqueued: int  # completed + untimed + lost + in flight
    untimed: int
    lost: int
    started: int
    completed: int
    last_sequence: int
    last_progress_ns: int  # Unix time of the latest completion, 0 before the first
    folded: int
    name: str
    looks: int = 0  # how often the plugin looked how many operations were queued
    # Of some collectives (box/channels.py) how many they were, their time, and a bit for each of
    # their channels; which of these end late, and how much later than the middle one, summed.
    looked_ops: int = 0
    looked_ns: int = 0
    channels: int = 0
    late_channels: int = 0
    late_ns: int = 0
    # From this index on NCCL gives operations the times of other ones (mixed_clocks.py).
    mixed_since: int = 0  # 0: none
    mixed_why: int = 0


class Histogram(NamedTuple):
    """Times by bucket (analysis/histogram.py). In columns: a job has millions of them."""

    buckets: tuple[int, ...] = ()  # rising
    counts: tuple[int, ...] = ()  # none is 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return that of (bucket, count) pairs in any order, each bucket once."""
        found = sorted(pairs)
        return cls(tuple(bucket for bucket, _ in found), tuple(count for _, count in found))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Give (bucket, count), rising."""
        return zip(self.buckets, self.counts, strict=True)

    def __bool__(self) -> bool:
        """Whether it has any time."""
        return bool(self.counts)


@cache
def _algo_proto(algo: int, proto: int) -> str:
    alone = not proto and ALGOS[algo] in ("GROUP", "CE")  # they have no protocol
    return ALGOS[algo] if alone else f"{ALGOS[algo]}_{PROTOS[proto]}"


class Key(NamedTuple):
    """One kind of operation of one communicator; `comm` is Comm.index."""

    comm: int
    func: int
    size_class: int
    algo: int
    proto: int
    ops: int
    bytes: int
    busy_ns: int
    min_ns: int
    max_ns: int
    log2_rate_q20: int
    first_index: int
    last_index: int
    untimed_ops: int  # without a time, not among `ops` and `bytes`
    untimed_bytes: int
    phased_ops: int  # of `ops`, those that told how long they waited for their peers
    wait_ns: int  # that time, summed
    histogram: Histogram
    queued_ns: int = 0  # about what `ops` waited in the GPU's queue, summed (Comm.looks)
    queued_looks: int = 0  # that found any of them there

    @property
    def algo_proto(self) -> str:
        """The value of the label `algo_proto`."""
        return _algo_proto(self.algo, self.proto)


@dataclass(frozen=True, slots=True)
class Peer:
    """Sends, or Recvs, of one communicator with one other rank; `comm` is Comm.index."""

    comm: int
    func: int
    peer: int  # rank
    ops: int
    bytes: int
    busy_ns: int
    log2_rate_q20: int  # sum over operations of log2(bytes / ns), in 2^-20
    best_rate_q20: int  # the highest of them

    def has_possible_rate(self) -> bool:
        """Tell whether sizes and times of 64 bits can give this sum, and there are any."""
        return self.ops > 0 and abs(self.log2_rate_q20) <= self.ops * (64 << 20)


class Window(NamedTuple):
    """What ended in one window of a time line."""

    start_s: int  # Unix time, a multiple of Line.window_s
    late_ms: int  # operations that ended up to so much after its end are in it too
    ops: int
    bytes: int
    busy_ns: int
    min_ns: int
    median_ns: int  # of merged windows the mean of their medians
    first_index: int  # of operations, as Key.first_index; no operation when last_index is lower
    last_index: int


@dataclass(frozen=True, slots=True)
class Line:
    """The time line of one function and size class of one communicator, which may be gone."""

    comm_id: int
    rank: int
    func: int
    size_class: int
    window_s: int
    since_s: int  # Unix time: operations before may not be in it
    windows: tuple[Window, ...]  # rising; those without operations are not there

    @property
    def busy_ns(self) -> int:
        """The time of all its operations."""
        return sum(window.busy_ns for window in self.windows)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that had not completed when the box was read."""

    comm: int
    func: int
    algo: int
    proto: int
    index: int
    sequence: int
    bytes: int
    peer: int  # -1: a collective
    age_ns: int  # since it was enqueued, up to the beat thread's last round
    started: int  # 1: its kernel began


@dataclass(frozen=True, slots=True)
class Facts:
    """The single values of a process. None and 0 mean not known."""

    name: str  # `<step>_<pid>[.<n>]`
    state: str
    pid: int
    step: int | None
    procid: int | None
    localid: int | None
    array_job_id: int | None  # of a task of an array, as in 810_3
    array_task_id: int | None
    api_version: int
    nccl_version: int
    plugin_version: str
    node: str
    beat_ns: int  # Unix time of the beat thread's last round
    timing: str  # of TIMINGS
    silent: str  # of SILENCES
    silent_ns: int  # how long nothing was measured, in all
    sampling: int  # the last word: kernel events of one operation in so many
    sampled_ns: int  # how long it was more than one, in all
    series_dropped: int
    json_lines: int
    net_ns: int  # how long network detail was taken
    self_ns: int  # CPU time of the plugin's own threads
    hot_ns: int  # time of the plugin inside NCCL's calls, from samples
    comms_created: int
    comms_destroyed: int
    net_missed: int = 0  # operations of the network proxy that network detail lacks
    # With the setting `host_time`: calls of NCCL, from the begin of ncclGroupEnd to its end, and
    # launches of its kernels; how many, and how long they took on the host in all and at most.
    calls: int = 0
    call_ns: int = 0
    call_max_ns: int = 0
    launches: int = 0
    launch_ns: int = 0
    launch_max_ns: int = 0

    @property
    def nccl(self) -> str:
        """`NCCL 2.30.7`, as far as it is known. RCCL has NCCL's numbers."""
        library = "RCCL" if self.silent == RCCL else "NCCL"
        if not self.nccl_version:
            return f"an {library} of unknown version"
        major, rest = divmod(self.nccl_version, 10000)
        return f"{library} {major}.{rest // 100}.{rest % 100}"

    @property
    def array_task(self) -> str:
        """`810_3`, Slurm's way to write a task of an array; empty when it is none."""
        if self.array_job_id is None or self.array_task_id is None:
            return ""
        return f"{self.array_job_id}_{self.array_task_id}"


class SampleKind(NamedTuple):
    """A kind of sampled operation: of one communicator, function, size class and algorithm."""

    comm_id: int
    nranks: int
    nnodes: int
    rank: int  # of this process
    gpu: int | None  # index of Process.gpus
    func: int
    size_class: int
    algo: int
    proto: int
    created_ns: int  # Unix time, of the communicator
    incarnation: int  # communicators with this id that the process had before
    name: str


class GpuClock(NamedTuple):
    """Unix time minus the clock of a GPU, which drifts: see Union.clock.

    `ahead_ns[n]` is of times from `since_ns[n]` of the GPU's clock on, the first also of earlier
    ones.
    """

    gpu: int  # index of Process.gpus
    since_ns: tuple[int, ...]  # never falling
    ahead_ns: tuple[int, ...]


class Samples(Protocol):
    """Exact records of operations in bursts of Unix time that all ranks chose alike.

    A record was kept if its end, in nanoseconds of Unix time, was below 2^length_bits modulo
    2^period_bits.
    """

    @property
    def kinds(self) -> tuple[SampleKind, ...]:
        """What `columns().kind` is an index of."""

    @property
    def clocks(self) -> tuple[GpuClock, ...]:
        """How to put times of the GPUs on Unix time."""

    @property
    def length_bits(self) -> int:
        """How long a burst is: 2^length_bits ns."""

    @property
    def period_bits(self) -> int:
        """How long it is from one burst to the next: 2^period_bits ns."""

    @property
    def lost(self) -> int:
        """Operations of which there is no record because there was no room for it in time."""

    def __len__(self) -> int:
        """Return how many records there are."""

    def columns(self) -> "SampleColumns":
        """Return the records as numpy arrays.

        Raises:
            RefusedError: what a node summary has is no such table; the reason is `bad_summary`.
        """


class UnionWindow(NamedTuple):
    """What a GPU did in one window of Unix time."""

    start_s: int  # a multiple of Union.window_s
    operations: int  # that ended in it; 0: one ran through it
    lost: int  # operations that ended and whose time is not in busy_ns
    busy_ns: int  # in which the GPU was inside at least one operation
    ahead_ns: int  # Unix time minus the GPU's clock, at the last look in this window


@dataclass(frozen=True, slots=True)
class Union:
    """How long a GPU was inside at least one operation, over the life of the process."""

    gpu: int  # index of Process.gpus
    window_s: int
    windows: tuple[UnionWindow, ...]  # rising; those in which it did nothing may be missing

    @property
    def busy_share(self) -> float:
        """The share of the time from its first window to its last in which the GPU was inside."""
        if not self.windows:
            return 0.0
        span_s = self.windows[-1].start_s - self.windows[0].start_s + self.window_s
        return min(sum(window.busy_ns for window in self.windows) / (span_s * NS_PER_S), 1.0)

    @property
    def clock(self) -> GpuClock:
        """How to put times of the GPU's clock on Unix time."""
        begins = [window.start_s * NS_PER_S - window.ahead_ns for window in self.windows]
        aheads = tuple(window.ahead_ns for window in self.windows)
        return GpuClock(self.gpu, tuple(accumulate(begins, max)), aheads)


def clocks_of(unions: Iterable[Union]) -> tuple[GpuClock, ...]:
    """Return the clocks of the GPUs that did anything."""
    return tuple(union.clock for union in unions if union.windows)


@dataclass(frozen=True, slots=True)
class Process:
    """Everything that the box of one process says."""

    facts: Facts
    dropped: tuple[int, ...]  # by DROP_REASONS
    gpus: tuple[Gpu, ...]
    comms: tuple[Comm, ...]
    keys: tuple[Key, ...]
    peers: tuple[Peer, ...]
    lines: Sequence[Line]  # of a summary: packedlines.PackedLines
    nets: tuple[Net, ...]
    operations: tuple[Operation, ...]
    flags: tuple[str, ...]  # what makes these figures less than whole, in words
    samples: Samples | None = None  # None: none was taken
    unions: Sequence[Union] = ()  # of a summary: packedsamples.PackedUnions
    # The highest busy_share of the unions, where somebody has looked already (of a summary: who
    # wrote it); None: look at them.
    busy_share: float | None = field(default=None, compare=False)
    labels: tuple[Label, ...] = ()
