# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector logs` on logs of some hundred MB: bytes a second of one core, and memory.

`python -m tests.bench.logs MIB`: a log of so many MiB of each kind.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.figure import Figure, table

MIB = 64
RANKS = 64
_MB_S, _MEMORY_MIB = 40.0, 256.0


def _start_up(rank: int) -> Iterator[str]:
    """Yield what a rank writes at level INFO while it sets a communicator up."""
    node, gpu = divmod(rank, 8)
    head = f"gpu-node-{node:03d}:{41000 + rank}:{41900 + rank} [{gpu}] NCCL INFO "
    yield f"{head}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.{node}<0>"
    yield f"{head}Using network IB"
    comm = f"comm 0x55d0{rank:04x}a0 rank {rank}"
    yield f"{head}{comm} nRanks {RANKS} nNodes 8 localRanks 8 localRank {gpu} MNNVL 0"
    for channel in range(16):
        there = (rank + 1) % RANKS
        via = "P2P/CUMEM" if there // 8 == node else f"[send] via NET/IB/{channel % 8}/GDRDMA"
        way = via if "via" in via else f"via {via}"
        yield f"{head}Channel {channel:02d}/0 : {rank}[{gpu}] -> {there}[{there % 8}] {way}"
        yield f"{head}Ring {channel:02d} : {rank - 1} -> {rank} -> {there}"
    yield f"{head}Connected all rings, use ring PXN 0 GDR 1"


def _calls(rank: int) -> Iterator[str]:
    """Yield what a rank writes of its collectives with the subsystems COLL and TUNING."""
    node, gpu = divmod(rank, 8)
    head = f"gpu-node-{node:03d}:{41000 + rank}:{41000 + rank} [{gpu}] NCCL INFO "
    for at in range(32):
        yield (
            f"{head}AllReduce: opCount {at:x} sendbuff 0x7f00{at:06x} recvbuff 0x7f00{at:06x} "
            "count 1048576 datatype 7 op 0 root 0 comm 0x55d0a0 [nranks=64] stream 0x55d0"
        )
        yield (
            f"{head}AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
        )


def _training(rank: int) -> Iterator[str]:
    """Yield what else is in the output of a job."""
    for at in range(64):
        yield (
            f"[2026-11-25 10:11:{at % 60:02d}] iteration {at}/500000 | rank {rank} | throughput "
            f"per GPU (TFLOP/s/GPU): {300 + at % 9}.5 | lm loss: 1.25E+00 | grad norm: 0.4 |"
        )


def _warnings(rank: int) -> Iterator[str]:
    """Yield what a rank writes that retries for ever."""
    node, gpu = divmod(rank, 8)
    head = f"gpu-node-{node:03d}:{41000 + rank}:{41900 + rank} [{gpu}] misc/socket.cc:512 (connect)"
    for at in range(32):
        yield (
            f"[2026-11-25 10:11:{at % 60:02d}.250] {head} NCCL WARN socketPollConnect: connect to "
            f"10.1.0.{at}<40{at:03d}> returned Connection refused, exceeded error retry count (35)"
        )


_KINDS = {
    "start-up (INFO)": (_start_up,),
    "calls (COLL, TUNING)": (_calls,),
    "warnings only": (_warnings,),
    "a job's output": (_training,),
    "all of them": (_start_up, _calls, _training, _training),
}


def write_log(path: Path, kind: str, mib: int) -> None:
    """Write a log of about so many MiB."""
    makers = _KINDS[kind]
    lines = [line for rank in range(RANKS) for make in makers for line in make(rank)]
    block = "".join(f"{line}\n" for line in lines).encode()
    with path.open("wb") as file:
        for _ in range(max(1, (mib << 20) // len(block))):
            file.write(block)


def _run(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.logs", str(path)], capture_output=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(folder: Path, mib: int) -> list[Figure]:
    """Measure each kind of log.

    Raises:
        subprocess.CalledProcessError: one failed.
    """
    figures = []
    memory = 0.0
    for kind in _KINDS:
        path = folder / "job.out"
        write_log(path, kind, mib)
        found = _run(path)
        memory = max(memory, found["rss_mib"])
        limit = None if kind == "warnings only" else _MB_S
        figures.append(
            Figure(f"logs, {kind}, of one core", "MB/s", found["mb_per_cpu_s"], limit, True)
        )
        path.unlink()
    return [*figures, Figure("logs: memory", "MiB", memory, _MEMORY_MIB)]


def _measure_one(path: Path) -> None:
    import resource
    import time

    from nccl_inspector.nccl_log.files import read_logs

    begin = time.process_time()
    report = read_logs([path])
    seconds = time.process_time() - begin
    print(json.dumps({
        "mb_per_cpu_s": path.stat().st_size / 1e6 / seconds,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "processes": report.processes,
    }))  # fmt: skip


def main(words: list[str]) -> None:
    """Read one log, or measure all kinds."""
    if not words[0].isdigit():
        _measure_one(Path(words[0]))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        print(table(measure(Path(name), int(words[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
