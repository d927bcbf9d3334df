# SPDX-License-Identifier: Apache-2.0
"""What a publish pass of the agent costs the node."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.agent.signals import LiveSignals
from tests.bench.sample import Sample
from tests.support.boxes import (
    BOX_BYTES,
    HEADER_BYTES,
    JOB_UID,
    BoxOf,
    box_bytes,
    line,
    lock_held,
    make_job,
    make_run_dir,
    metrics_text,
    write_user_file,
)

PROCESSES, SERIES = 8, 250
_SIZE = f"{PROCESSES} processes of {SERIES} series"
_LIMIT_MS = {f"publish pass, 1 job, {_SIZE}, {what} changed": 25.0 for what in ("all", "one")}
_NAME = "nccl_collective_operations_total"


def write_series(raw: Path, process: int, value: int) -> None:
    """Replace a process's file as the plugin does."""
    lines = [
        line(_NAME, str(value), rank=str(process), comm=f"0x{i:x}", message_size="1-2MB")
        for i in range(SERIES)
    ]
    beside = write_user_file(raw / ".beside", metrics_text(*lines))
    beside.rename(raw / f"nccl_inspector_metrics_unknown_0_{process}.prom")


def start_job(run_dir: Path, job: int, alive: ExitStack) -> Path:
    """Make a job whose processes live; return its raw directory."""
    raw = make_job(run_dir / "jobs" / str(job), job)
    header = bytes(box_bytes(BoxOf(state=1))[:HEADER_BYTES])
    for process in range(PROCESSES):
        box = write_user_file(raw / f"nccl_inspector_0_{process}.box", header)
        os.truncate(box, BOX_BYTES)
        alive.enter_context(lock_held(box))
        write_series(raw, process, 0)
    return raw


class _Bench:
    """A publisher, and its passes' times."""

    def __init__(self, run_dir: Path) -> None:
        run_fd = os.open(run_dir, os.O_RDONLY)  # until the bench ends
        self._live = LiveSignals(run_fd, "")
        self._publisher = Publisher(run_fd, "", Tally(), AtWork(run_fd))
        self._times: dict[str, tuple[list[float], list[float]]] = {}

    def run_pass(self, what: str = "") -> None:
        """Publish; count the pass unless it has no name."""
        self._count(f"publish pass, {what}" if what else "", self._publisher.run_pass)

    def look(self, what: str) -> None:
        """Look at the boxes of the first job, for its live signals."""
        self._count(what, lambda: self._live.run_pass({1: JOB_UID}))

    def _count(self, what: str, act: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        spent = (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3
        if what:
            for times, ms in zip(self._times.setdefault(what, ([], [])), spent, strict=True):
                times.append(ms)

    def samples(self) -> list[Sample]:
        """Return what was counted, and end."""
        self._publisher.close()
        self._live.close()
        return [
            Sample(f"{what}: {kind}", times, limit_ms=_LIMIT_MS.get(what))
            for what, both in self._times.items()
            for kind, times in zip(("wall", "CPU"), both, strict=True)
        ]


def measure(folder: Path, rounds: int) -> list[Sample]:
    """Measure passes over one job and over sixteen."""
    run_dir = make_run_dir(folder / "run")
    with ExitStack() as alive:
        raw = start_job(run_dir, 1, alive)
        bench = _Bench(run_dir)
        for number in range(rounds):
            for process in range(PROCESSES):
                write_series(raw, process, number + 1)
            bench.run_pass(f"1 job, {_SIZE}, all changed")
            published = (run_dir / "prom" / "1.prom").read_text()
            if published.count(f"}} {number + 1}\n") < PROCESSES * SERIES:
                raise AssertionError("not everything was published")
            write_series(raw, number % PROCESSES, number + 2)
            bench.run_pass(f"1 job, {_SIZE}, one changed")
            bench.run_pass(f"1 job, {_SIZE}, idle")
            bench.look(f"look at the boxes of {PROCESSES} processes")
        for job in range(2, 17):
            start_job(run_dir, job, alive)
        for _ in range(8):  # the first passes read what is new
            bench.run_pass()
        for _ in range(rounds):
            bench.run_pass(f"16 jobs, {_SIZE}, idle")
        return bench.samples()
