# SPDX-License-Identifier: Apache-2.0
"""Small operations on slow storage: many at once, results in order."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller.job_survey import look_at
from nccl_inspector.controller.queue import Entry
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.summary import directory as reportdir
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import encode
from nccl_inspector.system.parallel import in_parallel
from nccl_inspector.system.safe_files import read_at
from tests.support.summaries import HEAD

AT_ONCE = 4
PATIENCE_S = 20
SLOW_S = 0.005  # an operation on slow storage


class Meeting:
    """A place that is passed only where so many are in it at the same time."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(AT_ONCE, timeout=PATIENCE_S)

    def attend(self) -> None:
        self._barrier.wait()
        time.sleep(SLOW_S)


def many_summaries(folder: Path, count: int) -> None:
    place = folder / "42"
    place.mkdir()
    for number in range(count):
        head = replace(HEAD, job_id=42, node=f"n{number}", nodelist="n[0-63]", restart=0)
        (place / f"n{number}.0.nodesummary").write_bytes(encode(head, []))


def test_items_are_worked_on_at_once_and_come_in_order() -> None:
    meeting = Meeting()

    def work(number: int) -> int:
        meeting.attend()
        return 10 * number

    assert list(in_parallel(work, range(3 * AT_ONCE), AT_ONCE)) == [
        10 * number for number in range(3 * AT_ONCE)
    ]
    assert list(in_parallel(str, [7])) == ["7"]
    assert list(in_parallel(str, [])) == []


def test_what_hardly_waits_is_worked_on_by_the_caller() -> None:
    """Threads that take the interpreter's lock from it cost a large report a fifth of its time."""
    found = list(in_parallel(lambda _: threading.get_ident(), range(10 * AT_ONCE), AT_ONCE))
    assert threading.get_ident() not in found[:AT_ONCE]
    assert set(found[AT_ONCE:]) == {threading.get_ident()}


def test_storage_that_becomes_slow_is_asked_at_once_again() -> None:
    meeting = Meeting()

    def work(number: int) -> int:
        if number >= 6 * AT_ONCE:
            meeting.attend()
        elif number >= 4 * AT_ONCE:
            time.sleep(SLOW_S)
        return number

    assert list(in_parallel(work, range(10 * AT_ONCE), AT_ONCE)) == list(range(10 * AT_ONCE))


def test_what_one_item_raises_is_raised_in_its_turn() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise KeyError(number)
        return number

    found = in_parallel(work, range(10), AT_ONCE)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(found)


def test_summaries_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On storage with 5 ms an operation 1,024 of them took 18 s one after the other."""
    many_summaries(tmp_path, 4 * AT_ONCE)
    meeting = Meeting()

    def slow(fd: int, count: int, offset: int) -> bytes:
        meeting.attend()
        return read_at(fd, count, offset)

    monkeypatch.setattr(reportdir, "read_at", slow)
    loaded = load_summaries(42, tmp_path, None)
    assert [one.head.node for one in loaded.summaries] == sorted(
        f"n{number}" for number in range(4 * AT_ONCE)
    )


def site(folder: Path, wait: str) -> Config:
    text = f"report_dir = {folder}\nstore_dir = {folder}\ncontroller_wait = {wait}"
    return parse_config(text, "test")


def test_times_of_summaries_are_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_summaries(tmp_path, 4 * AT_ONCE)
    meeting, time_of = Meeting(), reportdir._time_of

    def slow(file: reportdir.SummaryFile, report_dir: Path) -> int:
        meeting.attend()
        return time_of(file, report_dir)

    monkeypatch.setattr(reportdir, "_time_of", slow)
    entry = Entry("42.1", 0, 42, 0, 0.0, nodelist="n[0-15]")
    found = look_at({42: [entry]}, site(tmp_path, "1h"), 1e9)[42]
    assert not isinstance(found, str)
    assert found.due is not None
    assert found.due.complete


def test_what_cannot_be_read_of_one_job_is_said_and_holds_no_other(tmp_path: Path) -> None:
    many_summaries(tmp_path, 1)
    (tmp_path / "43").touch()
    entries = {number: [Entry(f"{number}.1", 0, number, 0, 0.0)] for number in (42, 43)}
    found = look_at(entries, site(tmp_path, "1s"), 1e9)
    assert not isinstance(found[42], str)
    assert "43: Not a directory" in str(found[43])


@pytest.mark.parametrize("started", [0, 2])
def test_without_threads_left_the_work_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    begin, count = threading.Thread.start, 0

    def few(thread: threading.Thread) -> None:
        nonlocal count
        count += 1
        if count > started:
            raise RuntimeError("can't start new thread")
        begin(thread)

    def double(number: int) -> int:
        time.sleep(SLOW_S)
        return 2 * number

    monkeypatch.setattr(threading.Thread, "start", few)
    assert list(in_parallel(double, range(50), AT_ONCE)) == list(range(0, 100, 2))
    assert count > started, "threads were refused"
    failing = in_parallel(lambda one: 1 // one, (1, 0, 1), AT_ONCE)
    assert next(failing) == 1
    with pytest.raises(ZeroDivisionError):
        next(failing)
