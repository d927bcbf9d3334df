# SPDX-License-Identifier: Apache-2.0
"""A task of `analyze --slurm` takes what Slurm gives it, and leaves the rest to others."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from nccl_inspector.capture import task
from nccl_inspector.capture.capture_files import find_files
from nccl_inspector.capture.pieces import divide
from tests.support.command_line import environment
from tests.support.json_lines import write_job

TASK = "import sys; from nccl_inspector.capture.task import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """What tasks share, with one file to be read."""
    folder, made = tmp_path / "capture", tmp_path / "work"
    folder.mkdir()
    made.mkdir()
    write_job(folder, [[100] * 10])
    files = find_files(folder, Counter())
    pieces = divide(files, 4)
    plan = {
        "items": len(pieces), "directory": str(folder), "everything": False, "shares": 2,
        "files": [asdict(one) for one in files], "pieces": [asdict(one) for one in pieces],
    }  # fmt: skip
    task.put(task.plan_path(made, task.READ), plan)
    return made


def started(work: Path, step: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", TASK, str(work), task.READ, step]
    return subprocess.Popen(words, env=environment())


def test_a_task_waits_while_other_tasks_of_its_step_use_all_of_its_cpus(work: Path) -> None:
    beside = Path(shutil.copytree(work, work.with_name("beside")))
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with ExitStack() as others:
        for cpu in os.sched_getaffinity(0):
            held = others.enter_context((work / f"step0.{host}.cpu{cpu}").open("wb"))
            fcntl.flock(held, fcntl.LOCK_EX)
        waiting = started(work, "step0")
        assert started(beside, "step1").wait(30) == 0, "one that begins later has ended"
        assert waiting.poll() is None
        assert not list(work.glob("*.taken"))
    assert waiting.wait(30) == 0
    assert task.notes(work, task.READ, 0)["parts"]


@pytest.mark.parametrize(("said_by_slurm", "cpus"), [(None, 1), ("4", 4), ("", 1), ("many", 1)])
def test_a_task_takes_no_more_cpus_than_slurm_gives_it(
    monkeypatch: pytest.MonkeyPatch, said_by_slurm: str | None, cpus: int
) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if said_by_slurm is not None:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", said_by_slurm)
    assert task.cpus() == cpus


def give_away(work: Path) -> None:
    os.chown(work, 64123, 64123)


def open_to_all(work: Path) -> None:
    work.chmod(0o777)


def open_above(work: Path) -> None:
    work.parent.chmod(0o777)


@pytest.mark.parametrize("spoil", [give_away, open_to_all, open_above])
def test_a_plan_that_others_could_have_put_there_is_not_followed(
    work: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    if spoil is give_away and os.geteuid():
        pytest.skip("only root can give a directory away")
    spoil(work)
    before = {path.name for path in work.iterdir()}
    assert task.main([str(work), task.READ, "step0"]) == 1
    assert {path.name for path in work.iterdir()} == before
    assert capfd.readouterr().err.startswith(f"nccl-inspector: {work}: ")


def test_a_directory_of_ours_below_one_that_all_may_write_to_is_used(work: Path) -> None:
    work.parent.chmod(0o1777)
    assert task.main([str(work), task.READ, "step0"]) == 0
    assert task.notes(work, task.READ, 0)["parts"]
