# SPDX-License-Identifier: Apache-2.0
"""The probe's busbw and the plugin's, of the very same transfers: real rings over TCP on loopback.

The plugin times the stand-in's operations from inside, by the events that it is given. Here they
are timed from outside, as the probe does it: the median over the operations of the time to the end
on all ranks. It begins before the barrier, because from outside nobody sees the barrier's end.
"""

import os
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from nccl_inspector.model.bandwidth import bus_gbs
from nccl_inspector.report.assemble import build_card
from nccl_inspector.run.launch import measured
from nccl_inspector.run.user_summaries import job_head, read_boxes, write_summaries
from nccl_inspector.summary.attempts import load_summaries
from tests.support.repository import BUILD
from tests.support.standin import Run, collect, started

RANKS, STEPS, SIZE_BYTES = 4, 11, 4 << 20
# A slow pace: what a rank does between two operations, such as filling its buffer, takes 1 % then.
RATE = "10"
PROFILER = BUILD / "libnccl-profiler-inspector.so"


def operation_s(run: Run) -> float:
    """Watch the logs, which get a line when an operation has ended on a rank."""
    logs = [run.directory / "log" / f"{rank}.jsonl" for rank in range(RANKS)]
    ends_s: list[float] = []
    until_s = time.monotonic() + 60
    while len(ends_s) < STEPS and time.monotonic() < until_s:
        ended = min(log.read_bytes().count(b"\n") if log.exists() else 0 for log in logs)
        ends_s += [time.perf_counter()] * (ended - len(ends_s))
        time.sleep(0.002)
    return median(after - before for before, after in pairwise(ends_s))


def plugins_gbs(boxes: Path, func: str) -> float:
    """What the report of the job says of the one kind of operation in it."""
    head = job_head({"SLURM_JOB_ID": "4711"}, 0)
    write_summaries(read_boxes(boxes), head, boxes)
    card = build_card(load_summaries(4711, boxes, None))
    (gbs,) = [one.bus_gbs for one in card.operations if one.func == func]
    assert gbs
    return gbs


@pytest.mark.long
@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter"])
def test_the_bus_bandwidth_agrees_with_the_plugins_within_5_percent(
    tmp_path: Path, func: str, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    env = {k: v for k, v in measured({}, PROFILER, boxes).items() if k not in os.environ}
    args = ["--comms", "world", "--ops", func.lower(), "--sizes", f"{SIZE_BYTES >> 20}M"]
    args += ["--steps", str(STEPS), "--rate", RATE, "--compute-ms", "0"]
    with started(tmp_path, args, ranks=RANKS, env=env) as run:
        outside = bus_gbs(func, SIZE_BYTES, RANKS, operation_s(run))
        collect(run)
    assert run.codes == [0] * RANKS, run.stderr
    inside = plugins_gbs(boxes, func)
    with capsys.disabled():
        print(f"\n{func}: {outside:.4g} GB/s outside, {inside:.4g} GB/s by the plugin, "
              f"ratio {outside / inside:.4f}")  # fmt: skip
    assert outside / inside == pytest.approx(1, abs=0.05)
