# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.gpu.run`: every check on this machine's GPU, and the file of results."""

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from nccl_inspector import __version__
from tests.gpu import nvml
from tests.gpu.checks import (
    Check,
    Figures,
    check_api,
    check_counts,
    check_lines,
    check_metrics,
    check_times,
)
from tests.gpu.cuda import Cuda, find_driver
from tests.gpu.late import check_late
from tests.gpu.launch import PLUGIN, Ran, profiler_env, run
from tests.gpu.libnccl import NAMED_SINCE, Nccl, find_libraries, spell
from tests.gpu.overhead import Turn, check_overhead, order_of_turns
from tests.gpu.plan import MIXED, PLAIN, WORLD, Op, Plan
from tests.support import nvidia_json_reader

FORMAT = "nccl-inspector-gpu-results/1"
RESULTS = Path(__file__).parent / "results"
NO_GPU = 2  # exit code; 1: a check failed

RANKS = 4
PAIR = 2
ROUNDS = 20
LATE_RANK, LATE_S, LATE_ROUNDS = 2, 0.06, 600  # a job of a few seconds is not judged
TURN_S = 6.0  # how long the loop of one turn shall take
BUCKETS = 8
TRIAL_STEPS, STEPS_MIN, STEPS_MAX = 5, 10, 500
API_ROUNDS = 20
DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass
class Bench:
    """This machine, and the checks made on it so far."""

    cuda: Cuda
    libraries: list[str]
    folder: Path  # new, and in memory where the machine has such a place
    limit_s: float  # of one run
    turns: int
    checks: list[Check] = field(default_factory=list)
    number: int = 0

    def plan(self, nranks: int, rounds: int, ops: tuple[Op, ...], library: str = "") -> Plan:
        """Return a plan for this machine."""
        return Plan(library or self.libraries[0], self.cuda.path, nranks, rounds, ops)

    def run(self, plan: Plan, more: dict[str, str] | None = None) -> Ran:
        """Do a plan in a folder of its own."""
        self.number += 1
        say(f"  {plan.nranks} ranks, {plan.rounds} rounds")
        return run(self.folder / f"run{self.number}", plan, more or {}, self.limit_s)

    def raw(self) -> Path:
        """Make a directory as the prolog makes it for a job."""
        path = self.folder / f"raw{self.number + 1}"
        path.mkdir(mode=0o700)
        return path

    def add(self, *checks: Check) -> None:
        """Keep checks and print their verdicts."""
        for check in checks:
            self.checks.append(check)
            say(f"{check.verdict.upper():5} {check.name}: {check.skipped or check.asks}")
            for problem in check.problems[:5]:
                say(f"      {problem}")


def say(line: str) -> None:
    """Print a line at once: a machine may end the command before its buffer is full."""
    print(line, flush=True)


def _broken(name: str, asks: str, why: str) -> Check:
    return Check(name, asks, problems=[why])


def truth_checks(bench: Bench) -> None:
    """Every kind of operation, against what the ranks issued: box, metrics and JSON lines."""
    raw = bench.raw()
    lines = bench.folder / "lines"
    plan = replace(bench.plan(RANKS, ROUNDS, MIXED), prom_dir=str(raw))
    ran = bench.run(plan, profiler_env(raw, lines))
    if ran.failed:
        bench.add(_broken("counts", "Do real ranks work with the plugin at all?", ran.failed))
        return
    right = Check("sums", "Is the result of an AllReduce right with the plugin?")
    for rank, said in ran.said.items():
        right.demand(said["sums_right"], f"rank {rank} has a wrong sum")
    nccl = ran.said[0]["nccl"]
    bench.add(
        right,
        check_counts(ran.boxes, ran.logs),
        check_times(ran.boxes, ran.logs),
        check_metrics(ran.proms, ran.boxes),
        check_lines(nvidia_json_reader.read(lines), ran.logs, nccl),
    )
    nvml_checks(bench, ran)


def nvml_checks(bench: Bench, ran: Ran) -> None:
    """What NVML says, besides what the boxes say of the GPU."""
    library = nvml.load()
    if library is None:
        bench.add(Check("gpu", "", skipped="no module pynvml (nvidia-ml-py) here, or no NVML"))
        return
    facts = nvml.ask_all(library)
    check = nvml.check_identity(facts, nvml.proc_gpus(nvml.PROC_GPUS), ran.boxes.values())
    check.figures["nvml"] = facts
    bench.add(check)


def late_checks(bench: Bench) -> None:
    """A planted late rank."""
    raw = bench.raw()
    plan = bench.plan(RANKS, LATE_ROUNDS, PLAIN)
    ran = bench.run(replace(plan, late_rank=LATE_RANK, late_s=LATE_S), profiler_env(raw, None))
    if ran.failed:
        bench.add(_broken("late", "Does the late rank have the shortest times?", ran.failed))
        return
    bench.add(check_late(ran.boxes, LATE_RANK, LATE_S))


def _turn(ran: Ran, plugin: bool) -> Turn:
    return Turn(
        plugin,
        step_ns=median(median(said["step_ns"]) for said in ran.said.values()),
        call_ns=median(median(said["call_ns"]) for said in ran.said.values()),
    )


def overhead_checks(bench: Bench) -> None:
    """A training-like loop, with and without the plugin, in turns."""
    plan = replace(bench.plan(PAIR, TRIAL_STEPS, ()), buckets=BUCKETS)
    trial = bench.run(plan)
    asks = "Does a training-like loop take as long with the plugin as without?"
    if trial.failed:
        bench.add(_broken("overhead", asks, trial.failed))
        return
    steps = round(TURN_S * 1e9 / _turn(trial, False).step_ns)
    plan = replace(plan, rounds=min(max(steps, STEPS_MIN), STEPS_MAX))
    turns = []
    for plugin in order_of_turns(bench.turns):
        ran = bench.run(plan, profiler_env(bench.raw(), None) if plugin else None)
        if ran.failed:
            bench.add(_broken("overhead", asks, ran.failed))
            return
        turns.append(_turn(ran, plugin))
    shares = bench.cuda.count() < PAIR
    bench.add(check_overhead(turns, plan.rounds * BUCKETS, shares))


def api_checks(bench: Bench) -> None:
    """Each library that is given: which interface it takes, and whether it is counted."""
    for library in bench.libraries:
        nccl = Nccl(library).version()
        raw = bench.raw()
        ran = bench.run(bench.plan(PAIR, API_ROUNDS, PLAIN, library), profiler_env(raw, None))
        if ran.failed:
            bench.add(_broken(f"api-{nccl}", f"Does NCCL {nccl} take the plugin?", ran.failed))
            continue
        issued = sum(op["comm_name"] == WORLD for op in ran.logs[0])
        bench.add(check_api(ran.boxes.get(0), nccl, ran.nccl_logs.get(0, ""), issued))


def driver_version(text: str) -> str:
    """Return `580.95.05` from /proc/driver/nvidia/version; `unknown` where it says none."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found[0] if found else "unknown"


def has_mps() -> bool:
    """Return whether an MPS daemon serves this user: then ranks on one GPU run side by side."""
    place = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return (Path(place) / "control").exists()


def machine(bench: Bench) -> Figures:
    """Return what the figures depend on."""
    text = DRIVER_FILE.read_text() if DRIVER_FILE.exists() else ""
    facts: Figures = next(
        (one.figures["nvml"] for one in bench.checks if "nvml" in one.figures), {}
    )
    return {
        "gpu": bench.cuda.name(0),
        "gpus": bench.cuda.count(),
        "driver": facts.get("driver") or driver_version(text),
        "cuda_of_driver": bench.cuda.version(),
        "mps": has_mps(),
        "nccl": spell(Nccl(bench.libraries[0]).version()),
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def file_name(facts: Figures) -> str:
    """Return `<gpu>-nccl<version>-driver<version>[-mps].json`, in letters that every tool takes."""
    gpu = re.sub(r"[^a-z0-9]+", "-", facts["gpu"].lower()).strip("-")
    mps = "-mps" if facts["mps"] else ""
    return f"{gpu}-nccl{facts['nccl']}-driver{facts['driver']}{mps}.json"


def write_results(bench: Bench, results: Path) -> Path:
    """Write the file of results and return its path."""
    facts = machine(bench)
    found = {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "plugin": __version__,
        "machine": facts,
        "checks": [check.as_json() for check in bench.checks],
    }
    results.mkdir(parents=True, exist_ok=True)
    path = results / file_name(facts)
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a new folder: on tmpfs, as a job's directory is, where there is one."""
    shm = Path("/dev/shm")
    place = shm if os.access(shm, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-gpu-", dir=place) as name:
        yield Path(name)


CHECKS = {
    "truth": truth_checks,
    "late": late_checks,
    "api": api_checks,
    "overhead": overhead_checks,
}


def main(arguments: list[str] | None = None) -> int:
    """Return 0: all passed; 1: a check failed; 2: there is no GPU, or no NCCL of 2.27 or later."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.run", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--turns", type=int, default=5, help="of the loop with, and as many without"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run")
    options = parser.parse_args(arguments)
    try:
        cuda, libraries = find_driver(), find_libraries(os.environ.get("NCCL_LIBS", ""))
        if not PLUGIN.exists():
            raise OSError(f"{PLUGIN} is not built: make test-gpu does it")
        if Nccl(libraries[0]).version() < NAMED_SINCE:
            raise OSError(f"{libraries[0]} is older than 2.27; name another one first in NCCL_LIBS")
    except (OSError, RuntimeError) as err:
        say(f"nothing was checked: {err}")
        return NO_GPU
    with work_folder() as folder:
        bench = Bench(cuda, libraries, folder, options.limit, options.turns)
        for name in options.only:
            CHECKS[name](bench)
        say(f"results in {write_results(bench, options.results)}")
    return int(any(check.problems for check in bench.checks))


if __name__ == "__main__":
    sys.exit(main())
