# SPDX-License-Identifier: Apache-2.0
"""What tasks share is removed in the end, and by the next command if its own was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.capture.shared_work import shared_work
from tests.support.command_line import environment

HOLDS = """
import sys, time
from pathlib import Path
from nccl_inspector.capture.shared_work import shared_work
with shared_work(Path(sys.argv[1]), print) as work:
    (work / "data").write_bytes(bytes(4096))
    print(work, flush=True)
    time.sleep(600)
"""
DAY_S = 24 * 3600


@pytest.fixture
def living(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another command, and its directory."""
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def told_by_the_next(shared: Path) -> list[str]:
    said: list[str] = []
    with shared_work(shared, said.append):
        pass
    return said


def test_the_next_command_removes_what_a_killed_one_left(
    living: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    process, work = living
    assert not told_by_the_next(tmp_path)
    assert (work / "data").exists(), "it is alive"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not told_by_the_next(tmp_path)
    assert not list(tmp_path.iterdir())


def _of_another_host(note: dict[str, Any]) -> None:
    note["process"]["boot"], note["host"] = "another", "n7"


def _of_another_container(note: dict[str, Any]) -> None:
    note["process"]["space"] = "pid:[1]"


def _without_a_boot(note: dict[str, Any]) -> None:
    note["process"]["boot"] = ""


def _of_nobody(note: dict[str, Any]) -> None:
    note["process"] = "nobody"


@pytest.mark.parametrize(
    "changed", [_of_another_host, _of_another_container, _without_a_boot, _of_nobody]
)
def test_what_may_belong_to_a_living_command_stays_and_is_named_when_it_is_old(
    living: tuple[subprocess.Popen[str], Path],
    tmp_path: Path,
    changed: Callable[[dict[str, Any]], None],
) -> None:
    process, work = living
    process.send_signal(signal.SIGKILL)
    process.wait()
    note = json.loads((work / "owner").read_text())
    changed(note)
    (work / "owner").write_text(json.dumps(note))
    assert not told_by_the_next(tmp_path), "of today"
    os.utime(work, (0, time.time() - 2 * DAY_S))
    (said,) = told_by_the_next(tmp_path)
    assert said.startswith(f"{work}: of another run")
    assert said.endswith("remove it if that one has ended")
    assert ("on n7" in said) == (changed is _of_another_host)
    assert (work / "data").exists()


def test_a_link_and_a_file_are_no_directories_to_remove(tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    for folder in (shared, elsewhere):
        folder.mkdir()
    (elsewhere / "mine").touch()
    (shared / ".nccl-inspector-analyze.0").symlink_to(elsewhere)
    (shared / ".nccl-inspector-analyze.1").touch()
    assert not told_by_the_next(shared)
    assert (elsewhere / "mine").exists()
    assert len(list(shared.iterdir())) == 2
