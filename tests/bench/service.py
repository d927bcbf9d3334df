# SPDX-License-Identifier: Apache-2.0
"""What the agent costs as a service, and what node_exporter pays for the files that it writes."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.agent import PROCESSES, SERIES, start_job, write_series
from tests.bench.figure import Figure
from tests.bench.sample import Sample
from tests.support.boxes import make_run_dir
from tests.support.command_line import COMMAND
from tests.support.repository import REPO

# The plugin's interval, in which each file changes once, and the agent's.
INTERVAL_S, AGENT_INTERVAL_S = 30, 5
_PASSES = INTERVAL_S // AGENT_INTERVAL_S


def _until(done: Callable[[], bool], what: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"no {what}")
        time.sleep(0.002)


@contextmanager
def _daemon(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    env = os.environ | {"PYTHONPATH": str(REPO / "python")}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, env=env, stdout=quiet, stderr=quiet) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(10)


def _cpu_s(pid: int) -> float:
    """The agent has one thread; the scheduler counts it in nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _peak_mib(pid: int) -> float:
    (line,) = (
        one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in one
    )
    return int(line.split()[1]) / 1024


@contextmanager
def _agent(folder: Path, conf: str) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """A running agent with one job; give it, the job's raw directory and the run directory."""
    run_dir = make_run_dir(folder / "run")
    (folder / "x.conf").write_text(
        f"run_dir = {run_dir}\nreport_dir = {folder}\nscontrol = /bin/false\n{conf}"
    )
    with ExitStack() as alive:
        raw = start_job(run_dir, 1, alive)
        argv = [*COMMAND, "agent", "--conf", str(folder / "x.conf")]
        process = alive.enter_context(_daemon(argv))
        _until((run_dir / "prom" / "1.prom").exists, "published file", process)
        yield process, raw, run_dir


def measure(folder: Path, cycles: int) -> list[Figure]:
    """Let an agent live `cycles` intervals of the plugin in short: as many passes, no waiting."""
    pause_s = 0.1
    with _agent(folder, f"agent_interval = {pause_s}\n") as (process, raw, run_dir):
        own = run_dir / "prom" / "nccl_inspector_agent.prom"
        _until(own.exists, "the agent's own file", process)
        begun_s, passes = _cpu_s(process.pid), 0
        for cycle in range(cycles):
            for number in range(PROCESSES):
                write_series(raw, number, cycle + 1)
            for _ in range(_PASSES):
                inode = own.stat().st_ino
                _until(lambda old=inode: own.stat().st_ino != old, "pass", process)  # type: ignore[misc]
                passes += 1
        spent_s, mib = _cpu_s(process.pid) - begun_s, _peak_mib(process.pid)
    what = f"agent, {PROCESSES} processes of {SERIES} series"
    share = 100 * spent_s / (cycles * INTERVAL_S)
    return [
        Figure(f"{what}: CPU at {INTERVAL_S} s", "% of a core", share, 0.2, count=passes),
        Figure(f"{what}: peak RSS", "MiB", mib, 50),
    ]


@contextmanager
def _exporter(directory: Path) -> Iterator[str]:
    """A node_exporter that reads this directory only; give its URL."""
    address = _free_address()
    argv = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile"]
    argv += [f"--collector.textfile.directory={directory}", f"--web.listen-address={address}"]
    with _daemon(argv) as process:
        url = f"http://{address}/metrics"

        def answers() -> bool:
            try:
                return bool(_scrape_ms(url))
            except OSError:
                return False

        _until(answers, "answer of node_exporter", process)
        yield url


def _free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def _scrape_ms(url: str) -> float:
    begun = time.perf_counter()
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310  # our own
        answer.read()
    return (time.perf_counter() - begun) * 1e3


def measure_scrape(folder: Path, rounds: int) -> list[Sample]:
    """Scrape what a working agent writes, and in turns the same bytes written by hand."""
    by_hand = folder / "by-hand"
    by_hand.mkdir()
    ours: list[float] = []
    base: list[float] = []
    with _agent(folder, "agent_interval = 1s\n") as (_, raw, run_dir):
        for path in (run_dir / "prom").glob("*.prom"):
            shutil.copy(path, by_hand)
        with _exporter(run_dir / "prom") as url, _exporter(by_hand) as base_url:
            for number in range(rounds):
                write_series(raw, number % PROCESSES, number)
                ours.append(_scrape_ms(url))
                base.append(_scrape_ms(base_url))
    base_ms = Sample("", base).median_ms
    what = f"node_exporter's scrape, {PROCESSES} processes of {SERIES} series"
    return [Sample(what, ours, limit_ms=0.2 * base_ms, base_ms=base_ms)]
