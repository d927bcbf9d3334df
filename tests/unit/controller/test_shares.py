# SPDX-License-Identifier: Apache-2.0
"""No user's reports keep the service from those of another."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nccl_inspector.controller import passes
from nccl_inspector.controller.children import Children
from nccl_inspector.controller.due_reports import Due
from nccl_inspector.controller.outcome import DONE, FAILED, Outcome
from nccl_inspector.controller.passes import Controller
from nccl_inspector.controller.queue import Entry, Queue
from nccl_inspector.controller.report_child import make_report
from nccl_inspector.controller.shares import JOB_S, PERIOD_S, USER_S, Shares, in_turns
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.model.card import Card
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import RequestedInputs
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.attempts import Loaded
from tests.support.queued_jobs import ended_job, enqueue, summarize

HOSTILE, HONEST = 1002, 1001


def test_a_users_time_is_counted_over_all_jobs_and_tries_and_forgotten_in_time() -> None:
    shares = Shares()
    for job in range(40):
        shares.add(HOSTILE, job, USER_S / 40, 0.0)
    assert shares.left_s(HOSTILE, 99, 0.0) == 0.0
    assert shares.left_s(HONEST, 100, 0.0) == JOB_S
    assert shares.used_s(HOSTILE, PERIOD_S / 2) == pytest.approx(USER_S / 2)
    assert shares.left_s(HOSTILE, 99, PERIOD_S) == JOB_S


def test_the_tries_of_one_job_have_a_share_of_their_own() -> None:
    shares = Shares()
    shares.add(HONEST, 7, JOB_S - 10, 0.0)
    assert shares.left_s(HONEST, 7, 0.0) == pytest.approx(10)
    assert shares.left_s(HONEST, 8, 0.0) == JOB_S
    shares.keep([8], 0.0)
    assert shares.left_s(HONEST, 7, 0.0) == JOB_S


def test_who_has_used_nothing_is_forgotten() -> None:
    shares = Shares()
    for user in range(1000):
        shares.add(user, user, 1.0, 0.0)
    shares.keep([], PERIOD_S)
    assert shares == Shares()


def test_users_take_turns_and_who_has_used_least_is_first() -> None:
    jobs = {1: HOSTILE, 2: HOSTILE, 3: HOSTILE, 4: HONEST, 5: HONEST, 6: 7}
    used_s = {HOSTILE: 100.0, HONEST: 1.0, 7: 50.0}
    assert in_turns(jobs, used_s.__getitem__) == [4, 6, 1, 5, 2, 3]
    assert in_turns({}, used_s.__getitem__) == []


class Log:
    """What the service makes, written down in place of making it."""

    def __init__(self) -> None:
        self.made: list[Due] = []

    def run(self, work: Callable[[], Outcome]) -> Outcome:
        assert isinstance(work, partial)
        self.made.append(work.args[0])
        time.sleep(0.01)  # time is what is shared: work that takes none has no share
        return Outcome(FAILED, "as it is")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Due]:
    found = Log()
    monkeypatch.setattr(Children, "begin", lambda _self, work, _about: found.run(work))
    monkeypatch.setattr(Children, "run", lambda *_: Outcome(DONE))  # old reports are looked for
    return found.made


@pytest.fixture
def controller(config: Config) -> Iterator[Controller]:
    queue = Queue(config.controller_dir)
    yield Controller(config, queue, lambda _due: Outcome(DONE))
    queue.close()


def test_a_user_with_many_jobs_does_not_come_before_one_with_a_single_job(
    config: Config, tmp_path: Path, controller: Controller, log: list[Due]
) -> None:
    for job in range(40, 50):
        enqueue(config, job, f"uid={HOSTILE}\n")
        summarize(config, tmp_path / str(job), job)
    enqueue(config, 60, f"uid={HONEST}\n")
    summarize(config, tmp_path / "60", 60)
    controller.one_pass(at_once=True)
    assert 60 in [due.leader for due in log][:2]
    assert len(log) == 11


def test_the_outputs_of_who_has_used_up_a_share_are_not_read_and_others_are(
    config: Config, tmp_path: Path, controller: Controller, log: list[Due]
) -> None:
    for job, uid in ((41, HOSTILE), (42, HONEST)):
        enqueue(config, job, f"uid={uid}\n")
        summarize(config, tmp_path / str(job), job)
    controller._shares.add(HOSTILE, 1, 2 * USER_S, time.monotonic())
    controller.one_pass(at_once=True)
    assert {due.leader: due.output_s for due in log} == {41: 0.0, 42: None}


def test_a_pass_ends_in_time_for_those_who_came_meanwhile(
    config: Config,
    tmp_path: Path,
    controller: Controller,
    log: list[Due],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "PASS_MAX_S", 0.0)
    for job in (41, 42, 43):
        enqueue(config, job, f"uid={HOSTILE}\n")
        summarize(config, tmp_path / str(job), job)
    controller.one_pass()
    assert controller.is_behind
    assert len(log) == 1


def test_the_time_that_is_left_for_an_output_reaches_who_reads_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job(config, tmp_path, 42)
    asked = list[RequestedInputs | None]()

    def make(loaded: Loaded, _config: Config, wish: RequestedInputs | None = None) -> Card:
        asked.append(wish)
        return build_card(loaded)

    monkeypatch.setattr("nccl_inspector.controller.wiring.make_card", make)
    makers = usual_makers(config)
    for output_s in (None, 3.5):
        due = Due(42, 0, tuple(_entries(config)), True, output_s)
        assert make_report(due, config, makers).word == DONE
    assert asked == [None, RequestedInputs(output_cpu_s=3.5)]


def _entries(config: Config) -> list[Entry]:
    queue = Queue(config.controller_dir)
    try:
        return queue.scan()[0]
    finally:
        queue.close()
