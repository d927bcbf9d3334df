# SPDX-License-Identifier: Apache-2.0
"""What one rank of a simulated job does, in the form that tests/simulator/play/script.h says."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from tests.simulator.job import FUNCS, NEVER, OPERATIONS, Clock, Comm, Job, Rank

MAGIC: Final = b"NCCLPLAY"
VERSION: Final = 1
# A hung rank's process is killed when its job is.
ENDS: Final = {"finalized": 0, "exited": 1, "killed": 2, "running": 2}

_HEAD = struct.Struct("<8sIIqqdQQqiiiiQQQ64s")
_COMM = struct.Struct("<Qiiiiqq128s24s24s")
_DAY_NS = 86_400 * 10**9
_PID_FIRST, _PIDS_APART = 4001, 7


@dataclass(frozen=True)
class World:
    """What a rank cannot say of itself."""

    start_unix_s: int
    clock: Clock
    nccl_api: int
    environment: Mapping[str, str]


def fixed(*words: object) -> int:
    """Return 64 bits that are always the same for the same words."""
    text = "\0".join(map(str, words)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def pid_of(rank: Rank) -> int:
    """Return the process id that the rank sees; no two ranks of a job have the same."""
    return _PID_FIRST + _PIDS_APART * rank.procid


def check(rank: Rank) -> None:
    """Check that a rank's operations are possible.

    Raises:
        ValueError: one is not; the message says which and why.
    """
    rows = rank.operations
    if rows.dtype != OPERATIONS:
        raise ValueError(f"rank {rank.procid}: its operations have other columns")
    begun, ended = rows["begin_ns"] != NEVER, rows["end_ns"] != NEVER
    wrong = {
        "calls are not in the order of time": np.diff(rows["call_ns"], prepend=0) < 0,
        "a kernel begins before its call": begun & (rows["begin_ns"] < rows["call_ns"]),
        "a kernel does not end after its begin": ended
        & (~begun | (rows["end_ns"] <= rows["begin_ns"])),
        "no such communicator": rows["comm"] >= len(rank.comms),
        "no such function": rows["func"] >= len(FUNCS),
    }
    for why, places in wrong.items():
        if places.any():
            raise ValueError(f"rank {rank.procid}, operation {int(np.argmax(places))}: {why}")


def _comm(comm: Comm) -> bytes:
    return _COMM.pack(
        comm.id, comm.nranks, comm.nnodes, comm.rank, 0, comm.created_ns, comm.destroyed_ns,
        comm.name.encode()[:127], comm.algo.encode(), comm.proto.encode(),
    )  # fmt: skip


def write_script(path: Path, rank: Rank, world: World) -> None:
    """Write the script of a rank.

    Raises:
        ValueError: one of its operations is not possible.
    """
    check(rank)
    environment = b"".join(f"{k}={v}\0".encode() for k, v in world.environment.items())
    clock = world.clock
    head = _HEAD.pack(
        MAGIC, VERSION, world.nccl_api,
        world.start_unix_s * 10**9 + clock.offset_ns,
        _DAY_NS + fixed("boot", rank.node) % _DAY_NS,
        clock.drift_ppm * 1e-6,
        _DAY_NS + fixed("gpu", rank.node, rank.local) % (100 * _DAY_NS),
        fixed("heard", rank.procid),
        rank.end_ns, ENDS[rank.state], pid_of(rank), rank.local, rank.procid,
        len(rank.comms), len(rank.operations), len(environment), rank.node.encode(),
    )  # fmt: skip
    with path.open("wb") as file:
        file.write(head)
        file.writelines(map(_comm, rank.comms))
        file.write(np.ascontiguousarray(rank.operations).data)
        file.write(environment)


def calls_of(job: Job) -> int:
    """Return how many operations a job has, of all ranks."""
    return sum(len(rank.operations) for rank in job.ranks)
