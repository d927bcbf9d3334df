# SPDX-License-Identifier: Apache-2.0
"""Children of the controller service that hang: the service goes on, and remembers whose path."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from nccl_inspector.controller import children, passes
from nccl_inspector.controller.avoided_paths import AVOID_S, MOUNT_USERS_MIN, Avoided, mount_of
from nccl_inspector.controller.children import Children, LeftChild, NoAnswerError
from nccl_inspector.controller.job_survey import look_at
from nccl_inspector.controller.outcome import DONE, FAILED, LATER, Outcome
from nccl_inspector.controller.passes import Controller
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.report_child import Makers, make_report
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.model.card import Card
from nccl_inspector.report.announced_paths import AvoidedError, visiting
from nccl_inspector.report.announced_paths import hangs as hangs_on_path
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.system.child_process import start_child
from tests.sandbox import wait_until
from tests.support.queued_jobs import ended_job, left, stored
from tests.support.summaries import HEAD

PTRACE_SEIZE, PR_SET_PTRACER, ANYBODY = 0x4206, 0x59616D61, ctypes.c_ulong(-1)
OTHER_UID = HEAD.uid + 1
DEAD = Path("/dead/slurm.out")


def be_unkillable(folder: Path) -> None:
    """Become a process whose parent cannot take note of its end: somebody traces it.

    As a process that hangs in a file system it has no end that its parent could wait for.
    """
    libc, mine = ctypes.CDLL(None), os.getpid()
    libc.prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
    reading, writing = os.pipe()
    if not os.fork():
        if libc.ptrace(PTRACE_SEIZE, mine, 0, 0) == 0:
            (folder / f"tracer.{mine}").write_text(str(os.getpid()))
        os.write(writing, b"x")
        while True:
            signal.pause()
    os.read(reading, 1)
    while True:
        signal.pause()


@pytest.fixture
def tracers(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What lets the unkillable go at last."""

    def end() -> None:
        for path in tmp_path.glob("tracer.*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
            path.unlink()

    yield end
    end()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are over soon."""
    monkeypatch.setattr(children, "VISIT_S", 0.5)
    monkeypatch.setattr(children, "REAP_S", 0.2)


def hangs(folder: Path) -> Outcome:
    with visiting(HEAD.uid, DEAD):
        be_unkillable(folder)
    return Outcome(DONE)


def opens(uid: int = HEAD.uid, path: Path = DEAD) -> Outcome:
    try:
        with visiting(uid, path):
            return Outcome(DONE, "opened")
    except AvoidedError as err:
        return Outcome(DONE, str(err))


def remaining(started: Children) -> tuple[LeftChild, ...]:
    started.collect()
    return started.left


@pytest.mark.usefixtures("short")
def test_a_child_that_does_not_die_is_left_behind_and_counted(
    tmp_path: Path, tracers: Callable[[], None]
) -> None:
    started = Children()
    outcome = started.run(lambda: hangs(tmp_path), "makes a report")
    if not list(tmp_path.glob("tracer.*")):
        pytest.skip("no process may trace another here")
    assert (outcome.word, "/dead/slurm.out: no answer" in outcome.detail) == (LATER, True)
    (child,) = started.left
    assert (child.uid, child.about) == (HEAD.uid, "makes a report")
    assert started.run(lambda: Outcome(DONE, "others go on"), "x").detail == "others go on"
    tracers()

    wait_until(lambda: not remaining(started), 10, "it has ended")
    assert started.left_in_all == 1


def test_a_path_of_a_user_moves_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "VISIT_S", 0.1)

    def hangs_on_odd_path() -> Outcome:
        with visiting(HEAD.uid, Path("/x\x1b[31m\nroot: all is lost")):
            signal.pause()
        return Outcome(DONE)

    detail = Children().run(hangs_on_odd_path, "x").detail
    assert detail.startswith("/x?[31m?root: all is lost: no answer in ")


def test_a_process_that_hangs_on_an_output_is_counted_and_its_user_not_asked_again() -> None:
    """The process that makes the report goes on without the output, and ends."""
    started = Children()

    def left_one() -> Outcome:
        with visiting(HEAD.uid, DEAD):
            hangs_on_path(start_child(signal.pause, ()))
        return Outcome(DONE)

    outcome = started.run(left_one, "makes a report")
    (child,) = started.left
    assert (outcome.word, child.uid) == (DONE, HEAD.uid)
    assert "did not answer" in started.run(opens, "x").detail
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not remaining(started), 10, "it has ended")


@pytest.mark.usefixtures("short")
def test_the_user_whose_path_hung_is_not_asked_again_for_a_while(
    tmp_path: Path, tracers: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Children()
    started.run(lambda: hangs(tmp_path), "makes a report")
    assert "did not answer" in started.run(opens, "x").detail
    assert started.run(lambda: opens(OTHER_UID), "x").detail == "opened"
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + AVOID_S + 1)
    assert started.run(opens, "x").detail == "opened"
    tracers()


def test_a_waiter_that_never_sees_the_end_holds_up_nobody() -> None:
    started = Children(reap=lambda _pid, _seconds: None)
    assert started.run(lambda: Outcome(DONE, "fine"), "x").detail == "fine"
    (child,) = started.left
    wait_until(lambda: not remaining(started), 10, "it has ended")
    assert child.uid is None


def test_what_the_children_say_of_their_end_is_told() -> None:
    started = Children()

    def dies() -> Outcome:
        os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(DONE)

    outcome = started.run(dies, "x")
    assert (outcome.word, "ended by SIGKILL" in outcome.detail) == (FAILED, True)
    with pytest.raises(NoAnswerError, match="ended by SIGKILL"):
        started.ask(dies, "x")
    assert started.ask(lambda: {"a": [1, 2]}, "x") == {"a": [1, 2]}
    assert started.left == ()


def test_too_many_that_hang_are_no_more_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Children(reap=lambda _pid, _seconds: None)
    monkeypatch.setattr(started, "collect", lambda: None)
    monkeypatch.setattr(children, "LEFT_VISITS_MAX", 1)
    monkeypatch.setattr(children, "LEFT_MAX", 2)
    for _ in range(2):
        started.run(lambda: Outcome(DONE), "x")
    outcome = started.run(lambda: Outcome(DONE), "x")
    assert (outcome.word, outcome.detail) == (LATER, "2 processes hang in a file system")
    for child in started.left:
        os.waitpid(child.pid, 0)


def test_a_mount_is_avoided_for_all_once_several_users_hung_on_it() -> None:
    avoided = Avoided()
    for uid in range(MOUNT_USERS_MIN - 1):
        avoided.add(uid, Path("/x"), 0.0)
    assert avoided.why_not(99, Path("/y"), 1.0) == ""
    avoided.add(98, Path("/x"), 0.0)
    assert "/ did not answer" in avoided.why_not(99, Path("/y"), 1.0)
    assert avoided.why_not(99, Path("/y"), AVOID_S + 1) == ""


def test_the_mount_of_a_path_is_told_by_its_name() -> None:
    mounts = ["/", "/home", "/home/amy/data", "/homework"]
    assert mount_of(Path("/home/amy/out"), mounts) == "/home"
    assert mount_of(Path("/home/amy/data/out"), mounts) == "/home/amy/data"
    assert mount_of(Path("/var/out"), mounts) == "/"


@pytest.mark.usefixtures("short")
def test_a_dead_file_system_of_one_user_costs_the_others_no_report_and_him_only_the_output(
    config: Config, tmp_path: Path, tracers: Callable[[], None]
) -> None:
    for number in (41, 42, 43):
        ended_job(config, tmp_path, number)

    def card(loaded: Loaded) -> Card:
        with suppress(AvoidedError), visiting(loaded.head.uid, DEAD):
            if loaded.head.job_id == 42:
                be_unkillable(tmp_path)
        return usual_makers(config).card(loaded)

    makers: Makers = replace(usual_makers(config), card=card)
    queue = Queue(config.controller_dir)
    controller = Controller(config, queue, lambda one: make_report(one, config, makers))
    assert controller.one_pass(at_once=True) == 1
    assert stored(config) == [41, 43]
    assert ".try" not in left(config)[0], "it is no fault of the job"
    assert controller.one_pass(at_once=True) == 0
    assert stored(config) == [41, 42, 43]
    queue.close()
    tracers()


def test_the_service_itself_looks_at_no_summary(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job(config, tmp_path, 42)
    seen = tmp_path / "looked"

    def look(*words: object) -> object:
        seen.write_text(str(os.getpid()))
        return look_at(*words)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(passes, "look_at", look)
    queue = Queue(config.controller_dir)
    makers = usual_makers(config)
    controller = Controller(config, queue, lambda one: make_report(one, config, makers))
    assert controller.one_pass(at_once=True) == 0
    queue.close()
    assert int(seen.read_text()) != os.getpid()


def test_storage_that_does_not_answer_is_not_asked_for_each_job(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(41, 44):
        ended_job(config, tmp_path, number)
    asked = []

    def ask(_work: object, about: str) -> object:
        asked.append(about)
        raise NoAnswerError("it hangs", is_stuck=True)

    monkeypatch.setattr(passes, "LOOK_JOBS", 1)
    queue, makers = Queue(config.controller_dir), usual_makers(config)
    controller = Controller(config, queue, lambda one: make_report(one, config, makers))
    monkeypatch.setattr(controller.children, "ask", ask)
    assert controller.one_pass(at_once=True) == 3
    assert controller.one_pass(at_once=True) == 3
    assert asked.count("looks at summaries") == 1
    queue.close()


def test_the_service_beats_while_a_child_works_and_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "BEAT_S", 0.05)
    beats: list[float] = []
    started = Children(beat=lambda: beats.append(time.monotonic()))

    def slow() -> Outcome:
        time.sleep(0.6)
        return Outcome(DONE)

    assert started.run(slow, "x").word == DONE
    assert 5 <= len(beats) <= 30
    gaps = [after - before for before, after in pairwise(beats)]
    assert max(gaps) < 0.4


def test_beats_do_not_prolong_a_childs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "BEAT_S", 0.05)
    monkeypatch.setattr(children, "CHILD_S", -9.5)  # ten seconds are added
    begun_s, beats = time.monotonic(), [0.0]

    def endless() -> Outcome:
        time.sleep(60)
        return Outcome(DONE)

    outcome = Children(beat=lambda: beats.append(time.monotonic())).run(endless, "x")
    assert outcome.word == FAILED
    assert time.monotonic() - begun_s < 5
    assert len(beats) > 3
