# SPDX-License-Identifier: Apache-2.0
"""What the tests of publishing share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from tests.support.boxes import line, metrics_text

GAUGE = "nccl_collective_inflight_seconds"
OPS = "nccl_collective_operations_total"
STEM = "0_77"
PROM = f"nccl_inspector_metrics_GPU-1a2b_{STEM}.prom"
GOOD = metrics_text(line(GAUGE, "0.25", rank="3"))


@contextmanager
def publisher(
    run_dir: Path, tally: Tally | None = None, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Publisher]:
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Publisher(run_fd, "", tally or Tally(), AtWork(run_fd), clock)
    try:
        yield one
    finally:
        one.close()
        os.close(run_fd)


def published(run_dir: Path, job: int = 42) -> str:
    path = run_dir / "prom" / f"{job}.prom"
    return path.read_text() if path.exists() else ""


def one_pass(run_dir: Path) -> Tally:
    tally = Tally()
    with publisher(run_dir, tally) as one:
        one.run_pass()
    return tally


def labelled(pairs: str, value: str = "1") -> bytes:
    return metrics_text(f"{GAUGE}{{{pairs}}} {value}\n")


WHOLE = 'cluster="c",slurm_job_id="1",node="n",gpu="GPU0",rank="0",comm="0xc",comm_name="m"'


def config_of(run_dir: Path) -> Config:
    reports = run_dir.parent / "reports"
    reports.mkdir(exist_ok=True)
    return parse_config(f"run_dir = {run_dir}\nreport_dir = {reports}\n", "test")


def samples(path: Path) -> dict[str, float]:
    families = text_string_to_metric_families(path.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}
