# SPDX-License-Identifier: Apache-2.0
"""Dumps of PyTorch's flight recorder shortly before a job's time limit ends it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.dump_before_end import DumpsBeforeEnd, question_time_s
from nccl_inspector.agent.manifest import parse_manifest
from tests.support.boxes import JOB_UID, make_job, make_run_dir, manifest_text

START = 1_700_000_000
HOUR = 3600
BEFORE_S = 180.0
END = START + HOUR
USERS = {42: JOB_UID}


def question_after_s(limit_s: int, before_s: float = BEFORE_S, **words: int) -> float | None:
    """When a job of this limit is asked, in seconds since its start."""
    times: dict[str, object] = {"job_start": START, "start": START, "job_end": START + limit_s}
    text = manifest_text(42, **(times | words))
    found = question_time_s(parse_manifest(text.encode()), before_s)
    return None if found is None else found - START


def test_a_long_job_is_asked_three_minutes_before_its_end() -> None:
    assert question_after_s(HOUR) == HOUR - 180
    assert question_after_s(HOUR, 60) == HOUR - 60
    assert question_after_s(HOUR, job_start=0) == HOUR - 180


def test_a_short_job_is_asked_after_three_quarters_of_its_limit() -> None:
    assert question_after_s(720) == 540
    assert question_after_s(120) == 90
    assert question_after_s(60) == 45


@pytest.mark.parametrize("end", [0, START, START - 5, 1])
def test_a_job_whose_end_is_not_known_or_before_its_start_is_not_asked(end: int) -> None:
    assert question_after_s(0, job_end=end) is None


def test_a_manifest_of_an_older_prolog_has_no_end() -> None:
    assert parse_manifest(manifest_text().encode()).job_end == 0


class Asked:
    """A node with jobs that have a pipe each."""

    def __init__(self, path: Path, before_s: float = BEFORE_S) -> None:
        self.run_dir = make_run_dir(path / "run")
        run_fd = os.open(self.run_dir, os.O_RDONLY)
        self.dumps = DumpsBeforeEnd(run_fd, before_s)
        os.close(run_fd)
        self._pipes: list[int] = []

    def add(self, place: str = "42", job: int = 42, **words: object) -> int:
        """Add a job; return the end from which its rank reads."""
        given = {"job_start": START, "job_end": END} | words
        raw = make_job(self.run_dir / "jobs" / place, job, **given)
        path = raw / "fr_nccl_0_rank_0.pipe"
        os.mkfifo(path)
        os.chown(path, JOB_UID, JOB_UID)
        self._pipes.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return self._pipes[-1]

    def look(self, at_s: float) -> None:
        self.dumps.run_pass(USERS, at_s)

    def close(self) -> None:
        self.dumps.close()
        for fd in self._pipes:
            os.close(fd)


@pytest.fixture
def node(open_path: Path) -> Iterator[Asked]:
    one = Asked(open_path)
    yield one
    one.close()


def test_a_job_is_asked_once_when_its_time_has_come(node: Asked) -> None:
    fd = node.add()
    node.look(START + 10)
    node.look(END - 181)
    assert os.read(fd, 9) == b""
    for left_s in (180, 175, 5):
        node.look(END - left_s)
    assert os.read(fd, 9) == b"1"


def test_a_job_beyond_its_end_is_not_asked(node: Asked) -> None:
    fd = node.add()
    node.look(END)
    node.look(END + HOUR)
    assert os.read(fd, 9) == b""


@pytest.mark.parametrize("end", [0, 10**17, "", "-5", "9" * 30, "soon"])
def test_a_job_with_an_odd_end_is_not_asked_and_the_others_are(node: Asked, end: object) -> None:
    odd, other = node.add("43", 43, job_end=end), node.add()
    node.dumps.run_pass({43: JOB_UID, **USERS}, END - 100)
    assert os.read(odd, 9) == b""
    assert os.read(other, 9) == b"1"


def test_a_requeued_job_is_asked_again(node: Asked) -> None:
    first = node.add()
    node.look(END - 100)
    (node.run_dir / "jobs" / "42").rename(node.run_dir / "ended" / "42.1")
    second = node.add(restart=1)
    node.look(END - 50)
    assert (os.read(first, 9), os.read(second, 9)) == (b"1", b"1")


def test_a_directory_without_a_manifest_yet_is_read_in_the_next_pass(node: Asked) -> None:
    fd = node.add()
    manifest = node.run_dir / "jobs" / "42" / "manifest"
    text = manifest.read_text()
    manifest.write_text(text[:40])
    node.look(END - 100)
    manifest.write_text(text)
    node.look(END - 95)
    assert os.read(fd, 9) == b"1"


def test_a_manifest_of_another_job_is_not_believed(node: Asked) -> None:
    fd = node.add("42", 77)
    node.look(END - 100)
    assert os.read(fd, 9) == b""


def test_zero_switches_it_off(node: Asked) -> None:
    fd = node.add()
    node.dumps.configure(0)
    node.look(END - 100)
    assert os.read(fd, 9) == b""
    node.dumps.configure(BEFORE_S)
    node.look(END - 100)
    assert os.read(fd, 9) == b"1"
