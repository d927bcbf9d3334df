"""Runs the tasks of the stand-in without Slurm and reads what they and the recorder wrote."""

import json
import os
import resource
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.repository import BUILD

STANDIN = BUILD / "nccl-standin"
RECORDER = BUILD / "recorder.so"

COLL, P2P, KERNEL_CH, KERNEL_PHASE = 0x2, 0x4, 0x40, 0x8000
EVERYTHING = 0x8FFF
TYPES = {
    0x1: "Group",
    0x2: "Coll",
    0x4: "P2p",
    0x40: "KernelCh",
    0x100: "GroupApi",
    0x200: "CollApi",
    0x400: "P2pApi",
    0x800: "KernelLaunch",
    0x1000: "CeColl",
    0x2000: "CeSync",
    0x4000: "CeBatch",
    0x8000: "KernelPhase",
}

Record = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One call into the recorder; `type` is filled for stop and record, too."""

    kind: str
    type: str
    data: Record

    @property
    def words(self) -> str:
        """As `Coll start`, `GroupApi 23`."""
        return f"{self.type} {self.data['state'] if self.kind == 'record' else self.kind}".strip()

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


@dataclass
class Run:
    """What a run of the stand-in left: by rank, where there is one of each."""

    directory: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stdout: dict[int, str] = field(default_factory=dict)
    stderr: dict[int, str] = field(default_factory=dict)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    foreign: float = 0.0  # share of the processors' time that others had, hypervisor included

    @property
    def codes(self) -> list[int | None]:
        return [process.returncode for process in self.processes]

    def log(self, rank: int) -> list[Record]:
        """The stand-in's own records, as far as they are written."""
        path = self.directory / "log" / f"{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def calls(self, rank: int) -> list[Call]:
        """What the profiler of that rank was told, in order."""
        path = self.directory / f"calls.{self.processes[rank].pid}"
        return read_calls(path)

    def durations_ms(self) -> dict[tuple[str, str, int, int], dict[int, float]]:
        """Per operation (communicator, function, bytes, number) and rank."""
        table: dict[tuple[str, str, int, int], dict[int, float]] = defaultdict(dict)
        for rank in range(len(self.processes)):
            for op in self.log(rank):
                key = op["comm_name"], op["func"], op["bytes"], op["seq"]
                table[key][rank] = (op["stop_ns"] - op["start_ns"]) / 1e6
        return table

    def median_spread_ms(self) -> float:
        """Middle of max - min over the ranks of an operation."""
        return median(max(op.values()) - min(op.values()) for op in self.durations_ms().values())


def read_calls(path: Path) -> list[Call]:
    calls: list[Call] = []
    types: dict[int, str] = {}
    for line in path.read_text().splitlines():
        data = json.loads(line)
        if data["call"] == "start":
            types[data["handle"]] = TYPES[data["type"]]
            calls.append(Call("start", TYPES[data["type"]], data))
        else:
            calls.append(Call(data["call"], types.get(data.get("handle", 0), ""), data))
    return calls


def task_environment(rank: int, ranks: int, per_node: int) -> dict[str, str]:
    """What Slurm would tell this task."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NCCL"))}
    return inherited | {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(ranks),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURMD_NODENAME": f"n{rank // per_node + 1}",
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
    }


@contextmanager
def started(
    directory: Path,
    args: list[str],
    *,
    ranks: int,
    per_node: int = 2,
    only: list[int] | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Run]:
    """Starts the tasks (of `only`, when given); at the end none of them is alive."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory)
    recorder = {
        "NCCL_PROFILER_PLUGIN": str(RECORDER),
        "RECORDER_FILE": str(directory / "calls"),
    }
    try:
        for rank in range(ranks) if only is None else only:
            run.processes.append(
                subprocess.Popen(
                    [STANDIN, "--log", directory / "log", *args],
                    cwd=directory,
                    env=task_environment(rank, ranks, per_node) | recorder | (env or {}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield run
    finally:
        for process in run.processes:
            process.kill()
            process.communicate()


def collect(run: Run, limit_s: float = 30) -> Run:
    """Waits for the end of all tasks and takes what they said."""
    for rank, process in enumerate(run.processes):
        run.stdout[rank], run.stderr[rank] = process.communicate(timeout=limit_s)
    return run


def finished(
    directory: Path,
    *args: str,
    ranks: int = 2,
    per_node: int = 2,
    only: list[int] | None = None,
    env: dict[str, str] | None = None,
) -> Run:
    """A whole run with its cost. `only` leaves the other tasks out."""
    before, begin = own_cpu_s(), time.monotonic()
    busy_before, total_before = machine_s()
    with started(directory, list(args), ranks=ranks, per_node=per_node, only=only, env=env) as run:
        collect(run)
    busy, total = machine_s()
    run.wall_s = time.monotonic() - begin
    run.cpu_s = own_cpu_s() - before
    if total > total_before:
        run.foreign = max(0.0, busy - busy_before - run.cpu_s) / (total - total_before)
    return run


def own_cpu_s() -> float:
    """Processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine_s() -> tuple[float, float]:
    """Processor seconds since boot that were not idle, time stolen included, and all of them."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    idle, iowait = ticks[3:5]
    return sum(ticks) - idle - iowait, sum(ticks)


def until(fact: Callable[[], bool], what: str, limit_s: float = 15) -> None:
    """Waits for a fact, looking often."""
    end = time.monotonic() + limit_s
    while not fact():
        if time.monotonic() > end:
            raise AssertionError(f"not in {limit_s} s: {what}")
        time.sleep(0.02)
