"""The output of a job: read for its throughput, then in its report."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.analysis.slow_times.throughput import read_lines, read_throughput
from nccl_inspector.model.card import Input, Period
from tests.fuzzers import mutation, seeds
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Budget, Run, Target

_CHUNK = 1 << 16
_LINES = 600
_MARKS = (b":", b"GPU", b"GPU:", b"(", b" ", b".", b"-", b"~")  # a run comes behind one
_SHAPES = (
    "[{at}] -> throughput per GPU: ~{value} TFLOP/s/GPU",
    " [{at}] iteration {n}/ 500000 | elapsed time per iteration (ms): {value}.0 | "
    "throughput per GPU (TFLOP/s/GPU): {value}.3 | learning rate: 1.0E-04 |",
    "{at}Z n1: rank 0: elapsed time per iteration (ms): {value}.5",
)


@cache
def _seeds() -> list[bytes]:
    # The long one says what a byte of an output may cost.
    return [_output(shape, 12) for shape in _SHAPES] + [_output(_SHAPES[0], _LINES)]


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

    def run(data: bytes) -> str:
        chunks = (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))
        found = read_throughput(read_lines(chunks), UTC, period)
        words = f"{len(found.found)} {found.unit} {sorted(found.refused)} {len(found.notes)}"
        if not found.found:
            return words
        inputs = (*given.inputs, Input("throughput", "present", "; ".join(found.notes)))
        return f"{words} {report.said(replace(given, readings=found, inputs=inputs))}"

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
    "output", _seeds, mutate, prepare, Budget(cpu_s=0.1, cpu_times=6.0), most_bytes=1 << 20
)
