"""The output of a job: read for its throughput and for what launchers wrote, then in its report."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.analysis.slow_times.throughput import read_lines, read_throughput
from nccl_inspector.model.card import Input, Period
from nccl_inspector.nccl_log.launcher_lines import LauncherLines, read_launchers
from tests.fuzzers import mutation, seeds
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Budget, Read, Run, Target

_CHUNK = 1 << 16
_LINES = 150
_MARKS = (b":", b"GPU", b"GPU:", b"(", b" ", b".", b"-", b"~")  # a run comes behind one
_SHAPES = (
    "[{at}] -> throughput per GPU: ~{value} TFLOP/s/GPU",
    " [{at}] iteration {n}/ 500000 | elapsed time per iteration (ms): {value}.0 | "
    "throughput per GPU (TFLOP/s/GPU): {value}.3 | learning rate: 1.0E-04 |",
    "{at}Z n1: rank 0: elapsed time per iteration (ms): {value}.5",
)


_ENDS = b"""
srun: error: n1: tasks 0-2: Exited with exit code 1
srun: error: n2: task 3: Segmentation fault (core dumped)
slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have been OOM Killed.
slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-09-21T10:00:00 DUE TO TIME LIMIT ***
[1]:
  time      : 2026-11-27_12:03:44
  host      : n1.example.org
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 2)
mpirun noticed that process rank 1 with PID 2 on node n1 exited on signal 9 (Killed).
=   RANK 1 PID 2 RUNNING AT n1
=   KILLED BY SIGNAL: 9 (Killed)
"""  # noqa: E501


@cache
def _seeds() -> list[bytes]:
    # The long one says what a byte of an output may cost.
    played = [_output(shape, 12) for shape in _SHAPES]
    return [*played, played[0] + _ENDS, _output(_SHAPES[0], _LINES)]


def _output(shape: str, steps: int) -> bytes:
    lines = []
    for at in range(steps):
        when = datetime.fromtimestamp(seeds.START_S + 2 + at % 20, UTC)
        lines.append(shape.format(at=f"{when:%Y-%m-%d %H:%M:%S.%f}", n=at, value=300 + at % 5))
        lines.append("loss 1.25 \x1b[32mok\x1b[0m\r 99%|#####| 3/4")
    return "\n".join(lines).encode()


def prepare(place: Path) -> Run:
    """Return what reads an output, and makes the report with what it found."""
    report = Report(place, lean=True)
    given = report.given
    period = Period(seeds.START_S, seeds.START_S + 30)

    def run(data: bytes) -> str | Read:
        chunks = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]
        ends = read_launchers(chunks)
        found = read_throughput(read_lines(iter(chunks)), UTC, period)
        words = f"{len(found.found)} {found.unit} {sorted(found.refused)} {len(found.notes)}"
        words += f" {len(ends.ends)} {len(ends.out_of_memory)} {len(ends.notes)}"
        if not found.found and ends == LauncherLines():
            return words
        inputs = (*given.inputs, Input("throughput", "present", "; ".join(found.notes)))
        more = replace(given, readings=found, inputs=inputs, launchers=ends)
        return Read(words, lambda: report.said(more))

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another output; often with long runs in its lines, as a matcher hates them."""
    found = mutation.several(chance, data, corpus, mutation.TEXT)
    if chance.random() < 0.4:
        rows = found.split(b"\n")
        run = chance.choice((b" ", b" ", b" ", b"\t", b"1", b"a", b": ", b"1.", b"~ ", b"(")) * 4000
        mark = chance.choice(_MARKS)
        for _ in range(chance.choice((1, 1, 40))):
            at = chance.randrange(len(rows))
            places = [one.end() for one in re.finditer(re.escape(mark), rows[at][:500])]
            place = chance.choice(places or [0])
            rows[at] = rows[at][:place] + run + rows[at][place:]
        found = b"\n".join(rows)
    return found


TARGET = Target(
    "output",
    _seeds,
    mutate,
    prepare,
    Budget(cpu_s=0.1, cpu_times=6.0),
    most_bytes=1 << 20,
    rest_of=32,
)
