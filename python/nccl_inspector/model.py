# SPDX-License-Identifier: Apache-2.0
"""What is known of one process: read from its box, carried by a node summary, judged by the report.

Tuples of words are indexed by the numbers of plugin/box.h.
"""

from dataclasses import dataclass

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
P2P = frozenset({"Send", "Recv", "SendRecv"})

COMM_LIVE, COMM_DESTROYED, COMM_FOLDED = 1, 2, 3

# How a process ended, or that it has not.
RUNNING, FINALIZED, EXITED, KILLED = "running", "finalized", "exited", "killed"


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
    enqueued: int
    started: int
    completed: int
    last_sequence: int
    last_progress_ns: int  # Unix time of the latest completion, 0 before the first
    folded: int
    name: str


@dataclass(frozen=True, slots=True)
class Key:
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
    histogram: tuple[tuple[int, int], ...]  # (bucket, count), rising, no zero counts

    @property
    def algo_proto(self) -> str:
        """The value of the label `algo_proto`."""
        alone = not self.proto and ALGOS[self.algo] in ("GROUP", "CE")  # they have no protocol
        return ALGOS[self.algo] if alone else f"{ALGOS[self.algo]}_{PROTOS[self.proto]}"


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
    age_ns: int  # since it was enqueued, up to the writer thread's last round
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
    beat_ns: int  # Unix time of the writer thread's last round
    series_dropped: int
    self_ns: int
    comms_created: int
    comms_destroyed: int

    @property
    def array_task(self) -> str:
        """`810_3`, Slurm's way to write a task of an array; empty when it is none."""
        if self.array_job_id is None or self.array_task_id is None:
            return ""
        return f"{self.array_job_id}_{self.array_task_id}"


@dataclass(frozen=True, slots=True)
class Process:
    """Everything that the box of one process says."""

    facts: Facts
    dropped: tuple[int, ...]  # by DROP_REASONS
    gpus: tuple[Gpu, ...]
    comms: tuple[Comm, ...]
    keys: tuple[Key, ...]
    operations: tuple[Operation, ...]
    flags: tuple[str, ...]  # what makes these figures less than whole, in words
