# SPDX-License-Identifier: Apache-2.0
"""The report of a large job from generated node summaries: how long it takes, and its memory.

Tensor, data and expert parallel groups over all nodes, eight ranks each; every rank has twelve
kinds of operation, eight time lines of as many windows as a box has, its unions and as many samples
as collection keeps (sampled.py). Every node has the counters of its ports, GPUs and NVLinks
(counted.py).

`python -m tests.bench.card NODES`: these figures alone, for a job of so many nodes. 12,500 take a
quarter of an hour, and 4 GB in TMPDIR.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.box.layout import LINE_WINDOWS
from nccl_inspector.box.sample_table import SampleTable
from nccl_inspector.model.process import (
    COMM_LIVE,
    FUNCS,
    Comm,
    Facts,
    Gpu,
    Histogram,
    Key,
    Line,
    Process,
    Union,
    Window,
)
from nccl_inspector.summary.codec import Head, encode, encode_process
from tests.bench.counted import counters_of
from tests.bench.figure import Figure, table
from tests.bench.sampled import LOCAL, Bursts, Played, play, samples_of

JOB = 77
NODES = 1024
_SECONDS, _MEMORY_MIB = 5.0, 1024.0
_START_S = 1_785_679_200
# Communicator, function, bytes, time in us.
_KINDS = (
    ("tp", "AllReduce", 1 << 25, 140), ("tp", "AllGather", 1 << 24, 70),
    ("tp", "ReduceScatter", 1 << 24, 75), ("dp", "ReduceScatter", 1 << 27, 12_100),
    ("dp", "AllGather", 1 << 27, 12_000), ("dp", "AllReduce", 1 << 22, 310),
    ("ep", "AllReduce", 1 << 20, 90), ("ep", "AllGather", 1 << 21, 160),
    ("world", "AllReduce", 1 << 3, 60), ("world", "AllGather", 1 << 12, 95),
    ("dp", "Send", 1 << 22, 200), ("dp", "Recv", 1 << 22, 200),
)  # fmt: skip
_COMMS = ("world", "tp", "dp", "ep")
_WALL_S = 3840
# What the plugin's rule leaves of such a job: as many samples as a summary has of each of 8,192
# processes, and of each of 32.
MANY = Bursts(_START_S, _WALL_S, 29, 38)
FULL = Bursts(_START_S, _WALL_S, 34, 37)
FULL_NODES = 4


@cache
def _histograms() -> tuple[Histogram, ...]:
    chance = random.Random(1)  # noqa: S311 - no secret
    found = []
    for *_, us in _KINDS:
        times = (max(1, int(chance.gauss(us * 1000, us * 60))) for _ in range(4000))
        found.append(Histogram.of(Counter(map(bucket_of, times)).items()))
    return tuple(found)


@cache
def _windows(kind: int) -> tuple[Window, ...]:
    chance = random.Random(kind)  # noqa: S311 - no secret
    size, ns = _KINDS[kind][2], _KINDS[kind][3] * 1000
    found, index = [], 1
    for at in range(LINE_WINDOWS):
        ops = chance.randrange(90, 110)
        median = int(ns * chance.gauss(1, 0.02))
        found.append(
            Window(_START_S + 10 * at, chance.randrange(900), ops, ops * size, ops * median,
                   int(median * 0.9), median, index, index + ops - 1)
        )  # fmt: skip
        index += ops + 5
    return tuple(found)


def _comm(name: str, node: int, local: int, nodes: int) -> Comm:
    rank, group = node * LOCAL + local, min(8, nodes)
    shape = {
        "world": (1, nodes * LOCAL, nodes, rank),
        "tp": (1000 + node, LOCAL, 1, local),
        "dp": (100_000 + local, nodes, nodes, node),
        "ep": (200_000 + node // group, group * LOCAL, group, node % group * LOCAL + local),
    }
    identity, nranks, nnodes, own = shape[name]
    ns = _START_S * 10**9
    return Comm(
        _COMMS.index(name), identity, COMM_LIVE, nranks, nnodes, own, 0, ns, 0, 4000, 0, 0, 4000,
        4000, 4000, ns + 3840 * 10**9, 0, name,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Job:
    nodes: int
    bursts: Bursts
    played: Played
    counted: bool

    def samples(self, node: int, local: int) -> tuple[SampleTable, tuple[Union, ...]]:
        ids = 1000 + node, 100_000 + local
        return samples_of(self.played, self.bursts, node, local, ids)


def _process(node: int, local: int, job: _Job) -> Process:
    nodes = job.nodes
    comms = {name: _comm(name, node, local, nodes) for name in _COMMS}
    keys = tuple(
        Key(_COMMS.index(name), FUNCS.index(func), size.bit_length() - 1, 2, 3, 4000, 4000 * size,
            4000 * us * 1000, us * 900, us * 1300, 0, 1, 48_000, 0, 0, 0, 0, histogram)
        for (name, func, size, us), histogram in zip(_KINDS, _histograms(), strict=True)
    )  # fmt: skip
    lines = tuple(
        Line(comms[name].id, comms[name].rank, FUNCS.index(func), size.bit_length() - 1, 10,
             _START_S, _windows(kind))
        for kind, (name, func, size, _) in enumerate(_KINDS[:8])
    )  # fmt: skip
    rank = node * LOCAL + local
    facts = Facts(
        f"0_{1000 + local}", "finalized", 1000 + local, 0, rank, local, None, None, 6, 23007,
        "0.1.0", f"n{node + 1}", (_START_S + 3840) * 10**9, "gpu", "", 0, 1, 0, 0, 0, 0, 0, 0, 4, 0,
    )  # fmt: skip
    gpu = Gpu(f"GPU-{rank:032x}", f"0000:{local:02x}:00.0", local, f"GPU{local}")
    table = (facts, (0,) * 9, (gpu,), tuple(comms.values()), keys, (), lines, (), (), ())
    return Process(*table, *job.samples(node, local))


_job: _Job  # of the processes that write it, which are forked


def _write_node(directory: Path, node: int) -> None:
    """Write the summary of one node."""
    nodes = _job.nodes
    head = Head(
        JOB, os.getuid(), "amy", "phys", "gpu", "c1", f"n{node + 1}", f"n[1-{nodes}]", nodes, 0,
        _START_S, _START_S, _START_S + 3840, "", (),
    )  # fmt: skip
    blocks = [encode_process(_process(node, local, _job)) for local in range(LOCAL)]
    counters = counters_of(node, nodes, _START_S, _WALL_S) if _job.counted else None
    (directory / f"n{node + 1}.0.nodesummary").write_bytes(encode(head, blocks, counters))


def write_job(reports: Path, nodes: int, bursts: Bursts, *, counted: bool = True) -> None:
    """Write the summaries of all nodes, with counters if `counted`; one rank is late."""
    global _job
    directory = reports / str(JOB)
    directory.mkdir(parents=True)
    _job = _Job(nodes, bursts, play(nodes, bursts, (nodes // 2, 3)), counted)
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        list(pool.map(_write_node, repeat(directory), range(nodes), chunksize=8))


def _report(reports: Path) -> tuple[float, float, bytes]:
    """Return how long the command ran, its memory (MiB), and what it printed.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    command = [
        sys.executable, "-c", _CHILD, "report", str(JOB), "--report-dir", str(reports), "--json",
    ]  # fmt: skip
    with tempfile.TemporaryFile() as out:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=out)
        _, ended, used = os.wait4(child.pid, 0)  # with those that it has waited for
        seconds = time.perf_counter() - begin
        child.returncode = status = os.waitstatus_to_exitcode(ended)
        if status not in (0, 1, 2):
            raise subprocess.CalledProcessError(status, command)
        out.seek(0)
        return seconds, used.ru_maxrss / 1024, out.read()


def measure(folder: Path, nodes: int) -> list[Figure]:
    """Run the command over such jobs; `folder` is left empty.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    found = []
    some = min(nodes, FULL_NODES)
    for many, bursts, words in ((nodes, MANY, ""), (some, FULL, ", full tables of samples")):
        reports = folder / f"reports{many}{bursts.period_bits}"
        write_job(reports, many, bursts)
        seconds, mib, _ = _report(reports)
        shutil.rmtree(reports)
        what = f"report --json of {many} nodes x {LOCAL} ranks{words}"
        found += [
            Figure(f"{what}: wall", "s", seconds, _SECONDS),
            Figure(f"{what}: peak RSS", "MiB", mib, _MEMORY_MIB),
        ]
    return found


def main(words: list[str]) -> None:
    """Measure a job of so many nodes."""
    with tempfile.TemporaryDirectory() as name:
        print(table(measure(Path(name), int(words[0]))))


_CHILD = """
from nccl_inspector.cli import main
main()
"""

if __name__ == "__main__":
    main(sys.argv[1:])
