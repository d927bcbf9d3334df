# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.large_capture OPERATIONS DIRECTORY`: make a large capture, and analyse it.

It makes the capture if the directory is not there (some 30 bytes an operation, compressed), and
analyses it in one process, then with eight tasks of Slurm on a sandbox cluster. It prints the time,
the CPU time of the whole machine, the most memory of a process, and whether the two reports are
equal. Run it as root on an idle machine. 100 million operations take half an hour, and some 5 GB
beside the capture.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.sandbox import Options, wait_until
from tests.support.command_line import MAIN, USERS_PATHS
from tests.support.json_lines import START_US, ours, text, write_end
from tests.support.sandbox.own_cluster import brought_up

RANKS, LATE_RANK, LATE_NS = 8, 5, 400_000
TASKS = 8
_PAIR = 2  # ranks of each of the small communicators
_CHUNK = 250_000  # operations of a rank in a file, as a long job rotates them
# Function, bytes, ns without waiting, and whether the small communicator is called.
_STEP = (
    ("AllReduce", 26_214_400, 530_000, False),
    ("AllReduce", 1_310_720, 41_000, True),
    ("ReduceScatter", 8_388_608, 170_000, False),
    ("AllGather", 524_288, 21_000, True),
    ("AllGather", 524_288, 22_000, False),
)
_DUMP_US = 10_000_000
_WIDTH = 20  # of a number; spaces before it are JSON, too
_HOLES = ("dump", "sn", "us", "ns", "start", "end", "gpu")
_STANDS_FOR = {name: 811_000_001 + at for at, name in enumerate(_HOLES)}
_COMPRESSION = 1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Form:
    """A line as bytes, and where the numbers that differ between lines begin."""

    line: NDArray[np.uint8]
    places: dict[str, int]


def _form(rank: int, func: str, size: int, is_pair: bool) -> _Form:
    line = ours(_STANDS_FOR["sn"], rank, 1000, START_US)
    pair = rank // _PAIR
    line["header"] |= {
        "id": f"0xabc00000{pair if is_pair else 9:04x}", "comm_name": "tp" if is_pair else "dp",
        "rank": rank % _PAIR if is_pair else rank, "n_ranks": _PAIR if is_pair else RANKS,
        "nnodes": 1 if is_pair else RANKS // 2,
    }  # fmt: skip
    line["metadata"]["dump_timestamp_us"] = _STANDS_FOR["dump"]
    line["coll_perf"] |= {
        "coll": func, "coll_msg_size_bytes": size, "coll_exec_time_us": _STANDS_FOR["us"],
        "coll_exec_time_ns": _STANDS_FOR["ns"], "coll_start_us": _STANDS_FOR["start"],
        "coll_end_us": _STANDS_FOR["end"], "coll_gpu_start_ns": _STANDS_FOR["gpu"],
    }  # fmt: skip
    found = text([line])
    for hole in _STANDS_FOR.values():
        found = found.replace(str(hole).encode(), str(hole).rjust(_WIDTH).encode())
    places = {
        name: found.index(str(hole).rjust(_WIDTH).encode()) for name, hole in _STANDS_FOR.items()
    }
    return _Form(np.frombuffer(found, np.uint8), places)


def _put(lines: NDArray[np.uint8], at: int, values: Ints) -> None:
    """Write numbers into their places, aligned to the right."""
    left = values.copy()
    lines[:, at : at + _WIDTH] = ord(" ")
    for place in range(at + _WIDTH - 1, at - 1, -1):
        digits = (left % 10 + ord("0")).astype(np.uint8)
        if place != at + _WIDTH - 1:
            digits[left == 0] = ord(" ")
        lines[:, place] = digits
        left //= 10
        if not left.any():
            break


def _times(chunk: int, call: int, steps: int) -> tuple[Ints, Ints]:
    """Return for each step when the operation ended and, by rank, how long it took, ns.

    All ranks end together, and those that came before the last one waited for it.
    """
    _, _, ns, is_pair = _STEP[call]
    rng = np.random.default_rng((chunk, call))
    came = rng.integers(0, 60_000, (steps, RANKS))
    came[:, LATE_RANK] += np.where(rng.random(steps) < 0.5, LATE_NS, 0)
    if is_pair:
        last = came.reshape(steps, RANKS // _PAIR, _PAIR).max(axis=2).repeat(_PAIR, axis=1)
    else:
        last = came.max(axis=1, keepdims=True)
    took = last - came + (ns * rng.uniform(1, 1.2, (steps, 1))).astype(np.int64)
    step = np.arange(steps, dtype=np.int64) + chunk * steps
    ended = START_US * 1000 + (step * len(_STEP) + call + 1) * 2_000_000
    return ended, took


def _write_chunk(directory: Path, chunk: int, calls: int) -> None:
    """Write a file of each rank."""
    steps = calls // len(_STEP)
    numbers: dict[tuple[str, bool], list[int]] = {}
    for at, (func, _, _, is_pair) in enumerate(_STEP):
        numbers.setdefault((func, is_pair), []).append(at)
    step = np.arange(steps, dtype=np.int64) + chunk * steps
    made = [_times(chunk, call, steps) for call in range(len(_STEP))]
    for rank in range(RANKS):
        parts: list[NDArray[np.uint8]] = []
        for call, (func, size, _, is_pair) in enumerate(_STEP):
            form = _form(rank, func, size, is_pair)
            alike = numbers[func, is_pair]
            ended, took = made[call][0], made[call][1][:, rank]
            lines = np.tile(form.line, (steps, 1))
            end_us = ended // 1000
            values = {
                "dump": (end_us // _DUMP_US + 1) * _DUMP_US,
                "sn": step * len(alike) + alike.index(call),
                "us": np.maximum(took // 1000, 1), "ns": took, "start": (ended - took) // 1000,
                "end": end_us, "gpu": ended - took,
            }  # fmt: skip
            for name, at in form.places.items():
                _put(lines, at, values[name])
            parts.append(lines)
        name = f"node{rank // 2}-pid{1000 + rank}" + (f".{chunk}" if chunk else "") + ".log.gz"
        squeeze = zlib.compressobj(_COMPRESSION, wbits=31)
        with (directory / name).open("wb") as file:
            for first in range(0, steps, 1000):
                own = [part[first : first + 1000] for part in parts]
                # Steps of calls, in the order in which they are made.
                rows = np.concatenate(own, axis=1)
                file.write(squeeze.compress(rows.tobytes()))
            file.write(squeeze.flush())


def write_lines(directory: Path, operations: int) -> None:
    """Write so many lines of eight ranks on four nodes; one comes late every other time."""
    directory.mkdir(parents=True)
    calls = operations // RANKS
    chunks = max(1, calls // _CHUNK)
    with ProcessPoolExecutor() as pool:
        made = [
            pool.submit(_write_chunk, directory, chunk, calls // chunks) for chunk in range(chunks)
        ]
        for one in made:
            one.result()
    end_us = START_US + calls * 2000 + 1000
    for rank in range(RANKS):
        newest = f".{chunks - 1}" if chunks > 1 else ""
        write_end(directory, f"node{rank // 2}-pid{1000 + rank}{newest}.log.gz", end_us)


@dataclass
class Took:
    """What an analysis took."""

    wall_s: float
    cpu_s: float  # of the whole machine
    memory_mib: float  # the most that one process had


def _busy_s() -> float:
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(word: bytes) -> float:
    most = 0.0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if word in (place / "cmdline").read_bytes():
                status = (place / "status").read_text()
                most = max(most, float(status.partition("VmHWM:")[2].split()[0]) / 1024)
        except (OSError, IndexError):
            continue
    return most


class _Watch:
    """Measures what is done until it is told to stop."""

    def __init__(self, word: bytes) -> None:
        self._word, self._most, self._ended = word, 0.0, threading.Event()
        self._wall, self._cpu = time.monotonic(), _busy_s()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            self._most = max(self._most, _memory_mib(self._word))

    def stop(self) -> Took:
        took = Took(time.monotonic() - self._wall, _busy_s() - self._cpu, 0.0)
        self._ended.set()
        self._thread.join()
        took.memory_mib = self._most
        return took


def _card(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said)
    return found | {"generated_at": ""}


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two cards differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from _differences(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{where}[{at}]")
    elif one != other:
        yield f"{where}: {str(one)[:60]} and {str(other)[:60]}"


def _in_one_process(directory: Path, folder: Path) -> tuple[dict[str, Any], Took]:
    watch = _Watch(b"analyze")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "analyze", str(directory), "--json"],
        stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    took = watch.stop()
    return _card(done.stdout), took


def _with_tasks(directory: Path) -> tuple[dict[str, Any], Took]:
    place = Path(tempfile.gettempdir()) / "beside"
    with brought_up(place, Options(agents=False, monitoring=False)) as cluster:
        home = cluster.home()
        words = ["env", f"PYTHONPATH={USERS_PATHS}", f"TMPDIR={home}", "/usr/bin/python3", "-c",
                 MAIN, "analyze", str(directory), "--json", "--slurm", str(TASKS), "--shared",
                 str(home)]  # fmt: skip
        command = " ".join(f"'{word}'" for word in words)
        script = f"#!/bin/sh\n{command} >{home}/card.json 2>{home}/said\n: >{home}/ended\n"
        watch = _Watch(b"analyze")
        job_id = cluster.sbatch(
            "-N2", f"--ntasks={TASKS}", "--overcommit", f"--output={home}/out", script=script
        )
        # Asking Slurm ten times a second would cost a tenth of a CPU.
        wait_until(lambda: (home / "ended").exists(), 3600, "the analysis has ended", 1.0)
        took = watch.stop()
        cluster.wait_for_job(job_id)
        print((home / "said").read_text()[-2000:], file=sys.stderr)
        return _card((home / "card.json").read_text()), took


def main(words: list[str]) -> None:
    """Make the capture if it is not there, and measure."""
    operations, directory = int(words[0]), Path(words[1]).absolute()
    if not directory.exists():
        begun = time.monotonic()
        write_lines(directory, operations)
        print(f"made in {time.monotonic() - begun:.0f} s")
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{operations:,} operations, {size / 1e9:.2f} GB compressed", flush=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as name:
        one, took = _in_one_process(directory, Path(name))
    print(f"one process:  {took}", flush=True)
    many, by_tasks = _with_tasks(directory)
    print(f"{TASKS} tasks:      {by_tasks}, {by_tasks.cpu_s / took.cpu_s:.2f} times the CPU")
    differences = list(_differences(one, many))
    print("the reports are equal" if not differences else f"DIFFERENT: {differences[:10]}")
    print(json.dumps(one["verdict"])[:2000])


if __name__ == "__main__":
    main(sys.argv[1:])
