# SPDX-License-Identifier: Apache-2.0
"""A part of a computation in a child beside its caller."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nccl_inspector.report import assemble as build
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.system.forked import Forked
from tests.bench.card import JOB, MANY, write_job
from tests.support.processes import nothing_left
from tests.support.standin import until

OWN = os.getpid()
Found = TypeVar("Found")


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def done(work: Callable[[], Found], *, worthwhile: bool = True) -> Found:
    with Forked(work, worthwhile=worthwhile) as forked:
        return forked.result()


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_part_is_done_in_another_process_which_is_gone_afterwards() -> None:
    with nothing_left():
        pid = done(os.getpid)
    assert pid != OWN
    assert_gone(pid)


def test_more_than_a_pipe_holds_comes_over() -> None:
    pid, numbers = done(lambda: (os.getpid(), list(range(300_000))))
    assert pid != OWN
    assert numbers == list(range(300_000))


@pytest.mark.parametrize("worthwhile", [True, False])
def test_what_it_raises_is_raised_to_who_asks(worthwhile: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        done(lambda: 1 // 0, worthwhile=worthwhile)


def test_when_the_child_is_killed_the_caller_does_it() -> None:
    def work() -> int:
        if os.getpid() != OWN:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert done(work) == OWN


def test_a_child_that_nobody_asks_ends_with_the_block(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "pid")
        signal.pause()

    def run_out_of_memory() -> None:
        with Forked(work):
            until((tmp_path / "pid").exists, "the child is at work")
            raise MemoryError

    with nothing_left(), pytest.raises(MemoryError):
        run_out_of_memory()
    assert_gone(int((tmp_path / "pid").read_text()))


def test_where_nobody_is_told_of_a_childs_end_the_caller_does_it() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert done(os.getpid) == OWN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_when_no_process_can_be_had_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    with nothing_left():
        assert done(os.getpid) == OWN


def test_with_one_processor_or_little_to_do_there_is_no_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert done(os.getpid, worthwhile=False) == OWN
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert done(os.getpid) == OWN


def test_a_large_jobs_card_is_the_same_from_children_and_nothing_is_done_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_job(tmp_path / "reports", 2, MANY, counted=False)
    loaded = load_summaries(JOB, tmp_path / "reports", None)
    alone = build.build_card(loaded)
    assert alone.timeline.series
    assert alone.stragglers

    def only_in_a_child(work: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: object) -> Any:
            assert os.getpid() != OWN
            return work(*given)

        return checked

    for name in ("_judge_samples", "_over_time"):
        monkeypatch.setattr(build, name, only_in_a_child(getattr(build, name)))
    monkeypatch.setattr(build, "_MANY_PROCESSES", 1)
    assert build.build_card(loaded, second_process=True) == alone
    with pytest.raises(AssertionError):
        build.build_card(loaded)
