# SPDX-License-Identifier: Apache-2.0
"""A simulated job as its ranks saw it: what the simulation makes and the player plays.

All times are nanoseconds of true time since the job's start. What a rank's own clocks said follows
from its node's `Clock`.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.counters.node_counters import NodeCounters

FUNCS: Final = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send", "Recv",
)  # fmt: skip
NEVER: Final = -1  # a time of something that did not happen

# One row for each operation of a rank, in the order in which the rank called them.
# `bytes`: as NCCL reports it (of AllGather and ReduceScatter the share of a rank; of AlltoAll what
# is sent to one peer). `peer`: the other rank in the communicator, -1 of a collective. `group`:
# Sends and Recvs of one group call have the same number (from 1, per rank); 0: called alone.
# `begin_ns` NEVER: its kernel never began; `end_ns` NEVER: it never ended.
OPERATIONS: Final = np.dtype(
    [
        ("comm", "u2"),
        ("func", "u1"),
        ("channels", "u1"),
        ("group", "i4"),
        ("peer", "i4"),
        ("bytes", "i8"),
        ("call_ns", "i8"),
        ("begin_ns", "i8"),
        ("end_ns", "i8"),
    ]
)


@dataclass(frozen=True)
class Comm:
    """A communicator as one rank has it."""

    id: int
    name: str
    nranks: int
    nnodes: int
    rank: int
    created_ns: int = 0
    destroyed_ns: int = NEVER  # NEVER: it lives until the process ends
    algo: str = "RING"
    proto: str = "SIMPLE"


@dataclass(frozen=True)
class Clock:
    """What a node's clock shows beside true time: `offset_ns` ahead, and `drift_ppm` faster."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(frozen=True)
class Rank:
    """One process of the job with one GPU."""

    procid: int
    node: str
    local: int  # its place on the node, and the minor number of its GPU
    comms: tuple[Comm, ...]
    operations: NDArray[np.void]  # of OPERATIONS
    end_ns: int  # when the process ended
    state: str = "finalized"  # or "exited" (without destroying), "killed", "running" (a hung job)
    status: int = 0  # of its task, as wait(2) tells it


@dataclass(frozen=True)
class Job:
    """Everything that happened in a job."""

    ranks: tuple[Rank, ...]
    start_unix_s: int
    wall_ns: int  # until nothing of it runs any more
    nodes: tuple[str, ...]  # of the allocation; some may have no rank
    clocks: dict[str, Clock] = field(default_factory=dict)  # by node; absent: right
    counters: dict[str, NodeCounters] = field(default_factory=dict)  # by node
    silent_nodes: tuple[str, ...] = ()  # whose summaries never arrived
    state: str = "COMPLETED"  # Slurm's word
    # Of a job that Slurm ended, when it began to: its end in Slurm's records (_job_timed_out() and
    # job_signal() of slurmctld). 0: the end of all.
    slurm_end_ns: int = 0
    throughput: tuple[tuple[float, float], ...] = ()  # (true s, value) as the job printed it
    nccl_api: int = 7
