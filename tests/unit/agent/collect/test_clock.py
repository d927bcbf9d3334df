# SPDX-License-Identifier: Apache-2.0
"""A clock that is set between hooks and passes: nothing goes early, nothing stays for ever."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent import ended_job as endedjob
from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.report.joined_job import build_report
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.system.clock import Clock
from tests.support.boxes import BoxOf, lock_held, make_job, make_run_dir, names, write_box
from tests.support.clocks import SteppedClock
from tests.support.ended_jobs import BOX

WAIT_S = 10
STEPS_S = [-(10**6), 10**6]
BOX_ALIVE = BoxOf(BOX.comms, BOX.keys, state=1)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    run_dir = make_run_dir(tmp_path / "run")
    (tmp_path / "reports").mkdir()
    return parse_config(
        f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\nreport_user = root\n", "test"
    )


@pytest.fixture
def collector(config: Config, clock: SteppedClock) -> Iterator[Collector]:
    """The agent's, which watches."""
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Collector(run_fd, config, Tally(), AtWork(run_fd), watching=True, clock=clock)
    yield one
    one.close()
    os.close(run_fd)


def end_job(config: Config, clock: Clock, start: int = 1_700_000_000) -> Path:
    """What the epilog does now; the raw directory."""
    name = f"42.{clock.unix_ns()}"
    return make_job(config.run_dir / "ended" / name, start=start)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_processes_of_an_ended_job_have_their_minute_and_no_more(
    config: Config, collector: Collector, clock: SteppedClock, step_s: float
) -> None:
    box = write_box(end_job(config, clock), "0_1", BOX_ALIVE)
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1
        clock.set_s += step_s
        clock.ahead_s += endedjob.LINGER_S - 10
        assert collector.run_pass(WAIT_S) == 1
        clock.ahead_s += 20
        assert collector.run_pass(WAIT_S) == 0
    assert names(config.report_dir) == ["42"]


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_torn_manifest_has_its_hour_and_no_more(
    config: Config, collector: Collector, clock: SteppedClock, step_s: float
) -> None:
    (end_job(config, clock).parent / "manifest").write_text("format=1\n")
    assert collector.run_pass(WAIT_S) == 1
    clock.set_s += step_s
    clock.ahead_s += 3500
    assert collector.run_pass(WAIT_S) == 1
    clock.ahead_s += 200
    assert collector.run_pass(WAIT_S) == 0


@pytest.mark.parametrize("step_s", STEPS_S)
def test_an_ended_job_is_collected_whatever_the_time_in_its_name(
    config: Config, collector: Collector, clock: SteppedClock, step_s: float
) -> None:
    write_box(end_job(config, clock), "0_1", BOX)
    clock.set_s += step_s
    assert collector.run_pass(WAIT_S) == 0
    assert names(config.run_dir / "ended") == []
    assert names(config.report_dir) == ["42"]


def test_a_job_that_ends_before_it_began_has_no_negative_duration_and_says_so(
    config: Config, collector: Collector, clock: SteppedClock
) -> None:
    write_box(end_job(config, clock, start=int(clock.unix_s()) + 5000), "0_1", BOX)
    assert collector.run_pass(WAIT_S) == 0
    loaded = load_summaries(42, config.report_dir, None)
    assert loaded.head.end == loaded.head.start
    assert build_report(loaded).problems == (
        "n1: the clock was set back while the job ran: its end is not known",
    )


def test_a_fresh_agent_waits_anew(
    config: Config, collector: Collector, clock: SteppedClock
) -> None:
    clock.set_s -= 10**5
    box = write_box(end_job(config, clock), "0_1", BOX_ALIVE)
    clock.set_s += 10**5
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1
