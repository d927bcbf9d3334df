"""Jobs that the real plugin measured in virtual time: the fuzzers begin with what it left."""

import re
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.report.job_context import JobContext
from tests.simulator import hardware
from tests.simulator.job import FUNCS, NEVER, OPERATIONS, Comm, Job, Rank
from tests.simulator.machine import Machine
from tests.simulator.play import given_of, play

MS, S = 10**6, 10**9
START_S = 1_790_000_000
RANKS, NODES = 4, ("n1", "n2")
STEP_NS = 250 * MS
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, SEND, RECV = (
    FUNCS.index(name) for name in ("AllReduce", "AllGather", "AlltoAll", "Send", "Recv")
)


@dataclass(frozen=True, slots=True)
class Played:
    """What a job left: summaries by their file's name, files in raw/ by node and name, lines."""

    given: JobContext
    summaries: dict[str, bytes]
    raw: dict[str, dict[str, bytes]]
    lines: dict[str, bytes]

    def boxes(self) -> list[bytes]:
        """Its boxes."""
        return self._files(".box")

    def pages(self) -> list[bytes]:
        """What of its metrics was there at the end."""
        return self._files(".prom")

    def _files(self, end: str) -> list[bytes]:
        return [data for files in self.raw.values() for name, data in files.items()
                if name.endswith(end) and not name.startswith(".")]  # fmt: skip


def _operations(rank: int, seconds: float, late_ns: int) -> NDArray[np.void]:
    """Steps: an AllReduce, a Send and a Recv along the ring in one group, an AlltoAll."""
    kinds = (ALL_REDUCE, SEND, RECV, ALL_TO_ALL, ALL_GATHER)
    steps = int(seconds * S / STEP_NS)
    rows = np.zeros(len(kinds) * steps, OPERATIONS)
    step, each = np.arange(len(rows)) // len(kinds), len(kinds)
    chance, shared = np.random.default_rng(rank), np.random.default_rng(99)
    rows["func"] = np.tile(kinds, steps)
    rows["peer"] = np.tile([-1, (rank + 1) % RANKS, (rank - 1) % RANKS, -1, -1], steps)
    rows["comm"] = np.tile([0, 0, 0, 1, 0], steps)
    rows["group"] = np.tile([0, 1, 1, 0, 0], steps) * (step + 1)
    rows["channels"] = np.tile([4, 1, 2, 1, 2], steps)
    rows["bytes"] = np.tile([64 << 20, 1 << 20, (1 << 20) + 1, 256 << 10, 3 << 20], steps)
    rows["call_ns"] = S + step * STEP_NS + np.tile([0, 1, 1, 2, 3], steps) * 50 * MS
    rows["begin_ns"] = rows["call_ns"] + chance.integers(10_000, 3 * MS, len(rows)) + late_ns
    ends = (
        np.repeat(S + np.arange(steps) * STEP_NS, each) + np.tile([0, 1, 1, 2, 3], steps) * 50 * MS
    )
    rows["end_ns"] = ends + 8 * MS + shared.integers(0, 10 * MS, len(rows)) + late_ns
    return rows


def _job(seconds: float, states: tuple[str, ...], late_ns: int = 0, **changes: object) -> Job:
    ranks = []
    for rank in range(RANKS):
        comms = (
            Comm(0xABC, "world", RANKS, 2, rank),
            Comm(0xDEF, "ep", RANKS, 2, rank, created_ns=S // 2, algo="NVLS", proto="LL"),
        )
        state = states[rank % len(states)]
        rows = _operations(rank, seconds, late_ns if rank == 2 else 0)
        end_ns = int((seconds + 2) * S)
        if "running" in states:  # the last one of a rank never ends, and one rank never calls it
            rows = rows[: len(rows) - (rank == 1)]
            rows["end_ns"][-1:] = NEVER
            end_ns += 150 * S
        ranks.append(Rank(rank, NODES[rank // 2], rank % 2, comms, rows, end_ns, state))
    wall_ns = max(rank.end_ns for rank in ranks) + S
    counters = hardware.counters_of(
        Machine(nodes=2, gpus=2, nics=2), list(NODES), [], START_S, wall_ns / S
    )
    job = Job(tuple(ranks), START_S, wall_ns, NODES, counters=counters)
    return replace(job, **changes)  # type: ignore[arg-type]  # its fields


# By the second of their start they are told apart.
JOBS = {
    "healthy": _job(8, ("finalized",)),
    "late": _job(30, ("finalized", "exited"), 9 * MS, start_unix_s=START_S + 1),
    "hung": _job(8, ("running",), state="TIMEOUT", start_unix_s=START_S + 2),
    "killed": _job(
        6, ("killed", "finalized"), state="FAILED", nccl_api=4, start_unix_s=START_S + 3
    ),
}


@cache
def played(name: str) -> Played:
    """Return a job of JOBS after it was played."""
    job = JOBS[name]
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-seed-", dir="/dev/shm") as place:
        folder = Path(place)
        play(job, folder, json=True, environment={"NCCL_INSPECTOR_NET": "on"}, raw=folder / "raw")
        return Played(
            given_of(job),
            {path.name: path.read_bytes() for path in sorted(folder.glob("reports/*/*"))},
            {
                node.name: {path.name: path.read_bytes() for path in sorted(node.iterdir())}
                for node in sorted((folder / "raw").iterdir())
            },
            {path.name: path.read_bytes() for path in sorted((folder / "lines").iterdir())},
        )


def job_of(data: bytes) -> str:
    """Return the name of the job that a summary speaks of, as far as one can tell."""
    found = re.search(rb'"job_start": (\d+)', data[:4096])
    at = int(found[1]) - START_S if found else 0
    return [*JOBS][at] if 0 <= at < len(JOBS) else "healthy"


def all_played() -> list[Played]:
    """Return all of them."""
    return [played(name) for name in JOBS]
