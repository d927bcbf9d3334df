# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector analyze --slurm` with the tasks of a real Slurm, which are killed once."""

import json
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nccl_inspector.cli import cli
from tests.sandbox import Cluster, wait_until
from tests.support.command_line import MAIN, USERS_PATHS
from tests.support.json_lines import write_job

pytestmark = pytest.mark.long
RANKS, OPERATIONS, LATE_RANK = 4, 20_000, 2
ANALYZE = ("env", f"PYTHONPATH={USERS_PATHS}", "/usr/bin/python3", "-c", MAIN, "analyze")
TASK = b"nccl_inspector.capture.task"


@pytest.fixture
def capture(cluster: Cluster) -> Path:
    folder, rng = cluster.home() / "capture", random.Random(7)  # noqa: S311
    folder.mkdir()
    times: list[list[int]] = [[] for _ in range(RANKS)]
    for _ in range(OPERATIONS):
        late = [rng.randrange(400) + 8000 * (rank == LATE_RANK) for rank in range(RANKS)]
        for rank, own in enumerate(times):
            own.append(100 + max(late) - late[rank])
    write_job(folder, times, 200_000)
    return folder


def tasks() -> list[int]:
    """The processes of tasks that read, but for srun and its like."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if TASK in words and words[0].endswith(b"python3"):
            found.append(int(place.name))
    return found


def said(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found | {"generated_at": ""}


def test_a_capture_is_read_by_tasks_and_those_that_are_killed_cost_nothing(
    healthy_cluster: Cluster, capture: Path
) -> None:
    cluster, home = healthy_cluster, healthy_cluster.home()
    words = (*ANALYZE, str(capture), "--json", "--slurm", "4", "--shared", str(home))
    command = " ".join(f"'{word}'" for word in words)
    script = f"#!/bin/sh\n{command} >{home}/card.json 2>{home}/said\necho status $? >>{home}/said\n"
    job_id = cluster.sbatch("-N2", "--ntasks=4", f"--output={home}/out", script=script)
    taken = partial(home.glob, ".nccl-inspector-analyze.*/*.taken")
    wait_until(lambda: any(taken()), 60, "a task reads")
    for task in tasks():
        os.kill(task, signal.SIGKILL)
    cluster.wait_for_job(job_id, 180)
    words_said = (home / "said").read_text()
    assert "not read by the step's 4 tasks" in words_said
    assert "is read here" not in words_said, "the second step has read it"
    assert words_said.endswith("status 1\n")
    here = CliRunner().invoke(cli, ["analyze", str(capture), "--json"])
    assert said((home / "card.json").read_text()) == said(here.stdout)
    assert f"rank {LATE_RANK}" in here.stdout
    assert not list(home.glob(".nccl-inspector-*"))
