# SPDX-License-Identifier: Apache-2.0
"""`analyze --slurm N` lets tasks read the lines, and says what one process says."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.cli import cli
from tests.support.fake_srun import make_srun
from tests.support.json_lines import write_job

LATE_US, STEP_US = 8_000, 200_000
# A task that dies as soon as it has taken a batch.
DIES = """
import os
real = os.open
def open(path, *words, **more):
    fd = real(path, *words, **more)
    if str(path).endswith(".taken"):
        os._exit(9)
    return fd
os.open = open
"""


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Files of four ranks, one of them late, one compressed, one that DuckDB cannot read."""
    folder, rng = tmp_path / "capture", random.Random(7)  # noqa: S311
    folder.mkdir()
    late = [[rng.randrange(400) + LATE_US * (rank == 2) for rank in range(4)] for _ in range(150)]
    times = [[100 + max(step) - step[rank] for step in late] for rank in range(4)]
    write_job(folder, times, STEP_US)
    plain = sorted(folder.glob("*.log"))
    (folder / f"{plain[3].name}.gz").write_bytes(gzip.compress(plain[3].read_bytes()))
    plain[3].unlink()
    with plain[1].open("ab") as file:
        file.write(b"x" * (300 << 10) + b"\n" + b"no record\n")
    return folder


def analyze(capture: Path, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["analyze", str(capture), "--json", *map(str, words)])


def said(result: Result) -> tuple[int, dict[str, Any]]:
    """What is reported, but for when."""
    return result.exit_code, json.loads(result.stdout) | {"generated_at": ""}


def test_tasks_say_what_one_process_says(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(make_srun(tmp_path)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert "rank 2" in here.stdout
    assert said(by_tasks) == said(here)
    assert not by_tasks.stderr
    assert not list(tmp_path.glob(".nccl-inspector-*")), "what the tasks shared is removed"


def test_what_a_task_that_died_had_taken_is_read_again(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(make_srun(tmp_path, ("n2",), DIES)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert said(by_tasks) == said(here)
    assert "3 tasks of a step left 1 piece of 4 unread (srun: status 9)" in by_tasks.stderr
    assert not list(tmp_path.glob(".nccl-inspector-*"))


def test_without_tasks_that_live_all_is_read_here(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = make_srun(tmp_path)
    (programs / "srun").write_text("#!/bin/sh\necho 'srun: error: no partition' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "2", "--shared", tmp_path)
    assert said(by_tasks) == said(here)
    assert "piece 4 of 4 is read here" in by_tasks.stderr


def test_what_keeps_tasks_from_starting_is_one_line(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = analyze(capture, "--slurm", "2", "--shared", tmp_path / "none")
    assert found.exit_code == 3
    assert found.stderr.endswith("none: No such file or directory\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    found = analyze(capture, "--slurm", "2", "--shared", tmp_path)
    assert found.exit_code == 3
    assert found.stderr.endswith("--slurm: there is no srun here\n")
    assert not list(tmp_path.glob(".nccl-inspector-*"))
