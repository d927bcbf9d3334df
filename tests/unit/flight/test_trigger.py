# SPDX-License-Identifier: Apache-2.0
"""Asking a job's processes for dumps: only their own pipes, and nothing waits."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from nccl_inspector.flight.trigger import ask_for_dumps

JOB = 4711


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The directory of the job's processes."""
    found = tmp_path / "jobs" / str(JOB) / "raw"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def read_end(raw: Path) -> Iterator[int]:
    """A pipe as PyTorch makes it: the process reads without waiting."""
    yield from reading(raw / "fr_nccl_0_rank_3.pipe")


def reading(path: Path) -> Iterator[int]:
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def asked(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["flight", "--dump", "--run-dir", str(tmp_path), *words])


def test_each_process_that_reads_gets_a_byte(tmp_path: Path, raw: Path, read_end: int) -> None:
    for other in reading(raw / "fr_batch_rank_0.pipe"):
        assert ask_for_dumps(tmp_path, JOB) == 2
        assert (os.read(read_end, 9), os.read(other, 9)) == (b"1", b"1")


def test_a_pipe_that_nobody_reads_or_that_is_full_is_not_waited_for(
    tmp_path: Path, raw: Path, read_end: int
) -> None:
    os.mkfifo(raw / "fr_0_rank_1.pipe")
    writing = os.open(raw / "fr_nccl_0_rank_3.pipe", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    begin_s = time.monotonic()
    assert ask_for_dumps(tmp_path, JOB) == 1
    assert time.monotonic() - begin_s < 2
    os.close(writing)
    assert os.read(read_end, 1) == b"\0"


def test_nothing_else_in_the_directory_is_written_to(tmp_path: Path, raw: Path) -> None:
    target = tmp_path / "target"
    target.write_text("before")
    (raw / "fr_0_rank_1.pipe").write_text("file")
    (raw / "fr_0_rank_2.pipe").symlink_to(target)
    (raw / "fr_0_rank_3.pipe").mkdir()
    (raw / "fr_0_rank_4.pipe").symlink_to("/dev/full")
    assert ask_for_dumps(tmp_path, JOB) == 0
    assert target.read_text() == "before"
    assert (raw / "fr_0_rank_1.pipe").read_text() == "file"


def test_a_pipe_of_another_name_or_owner_is_left_alone(
    tmp_path: Path, raw: Path, read_end: int
) -> None:
    os.chown(raw / "fr_nccl_0_rank_3.pipe", 1234, 1234)
    for other in reading(raw / "other.pipe"):
        assert ask_for_dumps(tmp_path, JOB) == 0
        assert (os.read(read_end, 9), os.read(other, 9)) == (b"", b"")


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path, raw: Path) -> None:
    raw.rmdir()
    raw.symlink_to("/tmp")
    with pytest.raises(InspectorError, match="its directory is refused"):
        ask_for_dumps(tmp_path, JOB)


@pytest.mark.usefixtures("read_end")
def test_the_command_asks_the_job_that_it_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", str(JOB))
    assert asked(tmp_path).stdout == "asked 1 process of this node; a dump takes some seconds\n"


@pytest.mark.parametrize(
    ("words", "status"), [((), 2), (("--job", "x"), 2), (("--job", "1"), 1), (("--job", "4711"), 1)]
)
@pytest.mark.usefixtures("raw")
def test_where_nobody_can_be_asked_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    result = asked(tmp_path, *words)
    assert result.exit_code == status
    assert result.exception


def test_dumps_and_the_wish_for_dumps_exclude_each_other(tmp_path: Path) -> None:
    assert asked(tmp_path, str(tmp_path)).exit_code == 2
    assert CliRunner().invoke(cli, ["flight"]).exit_code == 2
