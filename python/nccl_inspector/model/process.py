# SPDX-License-Identifier: Apache-2.0
"""What is known of one process: read from its box, carried by a node summary, judged by the report.

Tuples of words are indexed by the numbers of plugin/box/box.h. Types of which a large job has
hundreds of thousands of values are named tuples, which are made in a third of the time of a frozen
dataclass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from nccl_inspector.model.jobid import task_name
from nccl_inspector.model.net import Net
from nccl_inspector.model.operation_label import Label

if TYPE_CHECKING:
    from nccl_inspector.model.sample_columns import SampleColumns  # needs numpy

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
# Dropped for these reasons, an operation is measured; it is only missing from some tables.
DROPS_IN_PART = frozenset({"no_peer", "no_group", "json"})
P2P = frozenset({"Send", "Recv", "SendRecv"})
P2P_FUNCS = frozenset(map(FUNCS.index, P2P))
GROUP = ALGOS.index("GROUP")
OPERATIONS_MAX = 64  # in flight, kept for one process

COMM_LIVE, COMM_DESTROYED, COMM_FOLDED = 1, 2, 3

NS_PER_S = 10**9

# Bits of a sample's flags: a group of Sends and Recvs as one operation; timed by the CPU's clock.
SAMPLE_GROUP, SAMPLE_CPU_TIMED = 1, 2
# Four bits of them: how well the time in the queue is known (plugin/box/box.h).
SAMPLE_WITHIN_SHIFT, SAMPLE_WITHIN_MASK, SAMPLE_AT_LEAST = 2, 15, 15
# The peer of a sample. PEER_NONE: a collective or a group has none. PEER_BEYOND: the record cannot
# hold a rank that large.
PEER_NONE, PEER_BEYOND = -1, 65534

# How a process ended; RUNNING: it has not ended.
RUNNING, FINALIZED, EXITED, KILLED = "running", "finalized", "exited", "killed"

# Whose clock timed the operations of a process; UNTIMED: they were only counted.
TIMINGS = UNTIMED, GPU_TIMED, CPU_TIMED = "none", "gpu", "cpu"

# Why nothing was measured at the end; MEASURING: it was measured. DISABLED: the kill switch.
# DENIED: the site's list of NCCL versions. RCCL: AMD's library.
SILENCES = MEASURING, DISABLED, DENIED, RCCL = "", "disabled", "denied", "rccl"
# These reasons hold from the process's first communicator to its end.
NEVER_MEASURED = frozenset({DENIED, RCCL})


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU that the process used; unknown texts are empty, an unknown `minor` is -1."""

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
    looks: int = 0  # how often the plugin looked at the number of queued operations
    # Of the collectives whose channels were looked at (box/channels.py): their number, their time,
    # a bit for each of their channels, a bit for each channel that ends late, and how much later
    # than the middle channel these end, summed.
    looked_ops: int = 0
    looked_ns: int = 0
    channels: int = 0
    late_channels: int = 0
    late_ns: int = 0
    # From this operation's index on, NCCL gives operations the times of others (mixed_clocks.py).
    mixed_since: int = 0  # 0: none
    mixed_why: int = 0


class Histogram(NamedTuple):
    """Counts of times by bucket (analysis/histogram.py), in columns: a job has millions of them."""

    buckets: tuple[int, ...] = ()  # ascending
    counts: tuple[int, ...] = ()  # all above 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """Return the histogram of (bucket, count) pairs in any order; each bucket is there once."""
        found = sorted(pairs)
        return cls(tuple(bucket for bucket, _ in found), tuple(count for _, count in found))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (bucket, count), by ascending bucket."""
        return zip(self.buckets, self.counts, strict=True)

    def __bool__(self) -> bool:
        """Tell whether it has any times."""
        return bool(self.counts)


@cache
def _algo_proto(algo: int, proto: int) -> str:
    alone = not proto and ALGOS[algo] in ("GROUP", "CE")  # these have no protocol
    return ALGOS[algo] if alone else f"{ALGOS[algo]}_{PROTOS[proto]}"


# Function, size class, algorithm and protocol: Sends and Recvs are alike whatever these are.
OpKind = tuple[str, int, str]


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
    untimed_ops: int  # without a time, not in `ops` and `bytes`
    untimed_bytes: int
    phased_ops: int  # those of `ops` that told how long they waited for their peers
    wait_ns: int  # sum of that waiting
    histogram: Histogram
    queued_ns: int = 0  # estimated wait of `ops` in the GPU's queue, summed (Comm.looks)
    queued_looks: int = 0  # looks that found at least one of them queued

    @property
    def algo_proto(self) -> str:
        """The value of the label `algo_proto`."""
        return _algo_proto(self.algo, self.proto)

    @property
    def kind(self) -> OpKind:
        """What is compared between the ranks of a communicator."""
        func = FUNCS[self.func]
        return func, self.size_class, "" if func in P2P else self.algo_proto


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
        """Tell whether there are operations and 64-bit sizes and times can give this sum."""
        return self.ops > 0 and abs(self.log2_rate_q20) <= self.ops * (64 << 20)


class Window(NamedTuple):
    """The operations that ended in one window of a time line."""

    start_s: int  # Unix time, a multiple of Line.window_s
    late_ms: int  # operations that ended up to this much after it are in it too
    ops: int
    bytes: int
    busy_ns: int
    min_ns: int
    median_ns: int  # of merged windows: the mean of their medians
    first_index: int  # as Key.first_index; last_index is lower: no operation
    last_index: int


@dataclass(frozen=True, slots=True)
class Line:
    """The time line of a function and size class of a communicator, which may no longer exist."""

    comm_id: int
    rank: int
    func: int
    size_class: int
    window_s: int
    since_s: int  # Unix time; earlier operations may be missing
    windows: tuple[Window, ...]  # ascending; windows without operations are left out

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
    age_ns: int  # from its enqueueing to the beat thread's last round
    started: int  # 1: its kernel has started


@dataclass(frozen=True, slots=True)
class Facts:
    """Single values of a process; None and 0 mean not known."""

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
    silent_ns: int  # for how long in all nothing was measured
    sampling: int  # last value: one operation in this many has kernel events
    sampled_ns: int  # for how long in all it was more than 1
    series_dropped: int
    json_lines: int
    net_ns: int  # for how long network detail was taken
    self_ns: int  # CPU time of the plugin's own threads
    hot_ns: int  # time of the plugin inside NCCL's calls, from samples
    comms_created: int
    comms_destroyed: int
    # Operations of the network proxy that network detail lacks; about, where it follows only some.
    net_missed: int = 0
    # With the setting `host_time`: calls of NCCL (from the begin of ncclGroupEnd to its end) and
    # launches of its kernels: their number, their total time on the host and the longest one.
    calls: int = 0
    call_ns: int = 0
    call_max_ns: int = 0
    launches: int = 0
    launch_ns: int = 0
    launch_max_ns: int = 0

    @property
    def nccl(self) -> str:
        """The library and its version, as `NCCL 2.30.7`; RCCL has version numbers of NCCL."""
        library = "RCCL" if self.silent == RCCL else "NCCL"
        if not self.nccl_version:
            return f"an {library} of unknown version"
        major, rest = divmod(self.nccl_version, 10000)
        return f"{library} {major}.{rest // 100}.{rest % 100}"

    @property
    def array_task(self) -> str:
        """The task in Slurm's form, as `810_3`; empty if the job is no array task."""
        return task_name(self.array_job_id, self.array_task_id)


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
    incarnation: int  # how many communicators with this id the process had before
    name: str


class GpuClock(NamedTuple):
    """Unix time minus the clock of a GPU, which drifts: see Union.clock.

    `ahead_ns[n]` is for times from `since_ns[n]` of the GPU's clock on; the first is also for
    earlier times.
    """

    gpu: int  # index of Process.gpus
    since_ns: tuple[int, ...]  # never descending
    ahead_ns: tuple[int, ...]


class Samples(Protocol):
    """Exact records of operations in bursts: the same periods of Unix time on all ranks.

    A record was kept if the operation's end, in ns of Unix time modulo 2^period_bits, was below
    2^length_bits.
    """

    @property
    def kinds(self) -> tuple[SampleKind, ...]:
        """The kinds of operation; `columns().kind` is an index into them."""

    @property
    def clocks(self) -> tuple[GpuClock, ...]:
        """The clocks that convert GPU times into Unix time."""

    @property
    def length_bits(self) -> int:
        """The length of a burst is 2^length_bits ns."""

    @property
    def period_bits(self) -> int:
        """From one burst to the next it is 2^period_bits ns."""

    @property
    def lost(self) -> int:
        """The number of operations that have no record because there was no room for it in time."""

    def __len__(self) -> int:
        """Return the number of records."""

    def columns(self) -> "SampleColumns":
        """Return the records as numpy arrays.

        Raises:
            RefusedError: the table in the node summary is invalid; the reason is `bad_summary`.
        """


class UnionWindow(NamedTuple):
    """What a GPU did in one window of Unix time."""

    start_s: int  # a multiple of Union.window_s
    operations: int  # that ended in it; 0: one ran all through it
    lost: int  # operations that ended in it but are not in busy_ns
    busy_ns: int  # time in which the GPU was in at least one operation
    ahead_ns: int  # Unix time minus the GPU's clock, at the last look in this window


@dataclass(frozen=True, slots=True)
class Union:
    """How long a GPU was in at least one operation, over the life of the process."""

    gpu: int  # index of Process.gpus
    window_s: int
    windows: tuple[UnionWindow, ...]  # ascending; windows in which it did nothing may be missing

    @property
    def busy_share(self) -> float:
        """The share of the time, from first to last window, that the GPU was in operations."""
        if not self.windows:
            return 0.0
        span_s = self.windows[-1].start_s - self.windows[0].start_s + self.window_s
        return min(sum(window.busy_ns for window in self.windows) / (span_s * NS_PER_S), 1.0)

    @property
    def clock(self) -> GpuClock:
        """The clock that converts times of this GPU into Unix time."""
        begins = [window.start_s * NS_PER_S - window.ahead_ns for window in self.windows]
        aheads = tuple(window.ahead_ns for window in self.windows)
        return GpuClock(self.gpu, tuple(accumulate(begins, max)), aheads)


def clocks_of(unions: Iterable[Union]) -> tuple[GpuClock, ...]:
    """Return the clocks of the GPUs that were in any operation."""
    return tuple(union.clock for union in unions if union.windows)


@dataclass(frozen=True, slots=True)
class Process:
    """Everything that the box of one process says."""

    facts: Facts
    dropped: tuple[int, ...]  # by DROP_REASONS
    gpus: tuple[Gpu, ...]
    comms: tuple[Comm, ...]
    keys: Sequence[Key]  # from the summary of a large job: packed_tables.PackedKeys
    peers: tuple[Peer, ...]
    lines: Sequence[Line]  # from a summary: packed_tables.PackedLines
    nets: tuple[Net, ...]
    operations: tuple[Operation, ...]
    flags: tuple[str, ...]  # why these figures are incomplete, as text
    samples: Samples | None = None  # None: none was taken
    unions: Sequence[Union] = ()  # from a summary: samples.PackedUnions
    # The highest busy_share of the unions if it was computed already (in a summary: by its writer),
    # or None.
    busy_share: float | None = field(default=None, compare=False)
    labels: tuple[Label, ...] = ()
