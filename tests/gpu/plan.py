# SPDX-License-Identifier: Apache-2.0
"""What the ranks of one run do; goes to them as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORLD, HALF = "gpu_world", "gpu_half"
# For Broadcasts alone: from NCCL 2.31 on what is called after one has no times: see
# plugin/hot/clockmix.h.
APART = "gpu_apart"
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Op:
    """One call, or for SendRecv a Send to the next rank and a Recv from the one before."""

    func: str
    comm: str
    count: int  # elements; of AllGather and ReduceScatter one rank's share
    dtype: str = "float32"


# Each kind and each communicator, sizes in different classes; NCCL has no name for uint8.
MIXED = (
    Op("AllReduce", WORLD, 16 * KIB),
    Op("AllReduce", WORLD, 256 * KIB),
    Op("AllReduce", WORLD, 9000, "uint8"),
    Op("AllGather", WORLD, 64 * KIB),
    Op("ReduceScatter", WORLD, 64 * KIB),
    Op("Reduce", WORLD, 32 * KIB),
    Op("Broadcast", APART, 128 * KIB),
    Op("SendRecv", WORLD, 50_000),
    Op("AllReduce", HALF, 32 * KIB),
)
PLAIN = (Op("AllReduce", WORLD, 64 * KIB),)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of some ranks."""

    libnccl: str
    libcuda: str
    nranks: int
    rounds: int
    ops: tuple[Op, ...]  # of a round, each awaited by the host
    late_rank: int = -1
    late_s: float = 0.0  # how long it sleeps before each operation
    buckets: int = 0  # a training-like step: so many AllReduces behind so much computing
    bucket_floats: int = MIB
    compute_floats: int = 16 * MIB  # written to memory before each bucket
    prom_dir: str = ""  # wait there for metrics that are newer than the last operation

    def uses(self, comm: str) -> bool:
        """Whether something is called of that communicator."""
        return any(op.comm == comm for op in self.ops)

    @property
    def buffer_bytes(self) -> int:
        """How much each of the two buffers must hold."""
        share = max((op.count for op in self.ops), default=0) * 4
        return max(share * self.nranks, self.bucket_floats * 4)

    def write(self, directory: Path) -> None:
        """Put it where the ranks look."""
        (directory / "plan.json").write_text(json.dumps(asdict(self)))


def read_plan(directory: Path) -> Plan:
    """Return what `write` wrote."""
    words: dict[str, Any] = json.loads((directory / "plan.json").read_text())
    return Plan(**{**words, "ops": tuple(Op(**op) for op in words["ops"])})
