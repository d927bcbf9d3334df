# SPDX-License-Identifier: Apache-2.0
"""A clock that is set between hooks and passes: nothing goes early, nothing stays for ever."""

import os
import time
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
from tests.support.boxes import BoxOf, lock_held, make_job, make_run_dir, names, write_box
from tests.support.ended_jobs import BOX

WAIT_S = 10
STEPS_S = [-(10**6), 10**6]
BOX_ALIVE = BoxOf(BOX.comms, BOX.keys, state=1)


class Clocks:
    """time.time and time.monotonic, as far on or back as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wall, even = time.time, time.monotonic
        self.wall_s, self.even_s = 0.0, 0.0
        monkeypatch.setattr(time, "time", lambda: wall() + self.wall_s + self.even_s)
        monkeypatch.setattr(time, "monotonic", lambda: even() + self.even_s)

    def wait(self, seconds: float) -> None:
        self.even_s += seconds

    def step(self, seconds: float) -> None:
        self.wall_s += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    run_dir = make_run_dir(tmp_path / "run")
    (tmp_path / "reports").mkdir()
    return parse_config(
        f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\nreport_user = root\n", "test"
    )


@pytest.fixture
def collector(config: Config) -> Iterator[Collector]:
    """The agent's, which watches."""
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Collector(run_fd, config, Tally(), AtWork(run_fd), watching=True)
    yield one
    one.close()
    os.close(run_fd)


def end_job(config: Config, start: int = 1_700_000_000) -> Path:
    """What the epilog does now; the raw directory."""
    name = f"42.{int(time.time())}000000000"
    return make_job(config.run_dir / "ended" / name, start=start)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_processes_of_an_ended_job_have_their_minute_and_no_more(
    config: Config, collector: Collector, clocks: Clocks, step_s: float
) -> None:
    box = write_box(end_job(config), "0_1", BOX_ALIVE)
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1
        clocks.step(step_s)
        clocks.wait(endedjob.LINGER_S - 10)
        assert collector.run_pass(WAIT_S) == 1
        clocks.wait(20)
        assert collector.run_pass(WAIT_S) == 0
    assert names(config.report_dir) == ["42"]


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_torn_manifest_has_its_hour_and_no_more(
    config: Config, collector: Collector, clocks: Clocks, step_s: float
) -> None:
    (end_job(config).parent / "manifest").write_text("format=1\n")
    assert collector.run_pass(WAIT_S) == 1
    clocks.step(step_s)
    clocks.wait(3500)
    assert collector.run_pass(WAIT_S) == 1
    clocks.wait(200)
    assert collector.run_pass(WAIT_S) == 0


@pytest.mark.parametrize("step_s", STEPS_S)
def test_an_ended_job_is_collected_whatever_the_time_in_its_name(
    config: Config, collector: Collector, clocks: Clocks, step_s: float
) -> None:
    write_box(end_job(config), "0_1", BOX)
    clocks.step(step_s)
    assert collector.run_pass(WAIT_S) == 0
    assert names(config.run_dir / "ended") == []
    assert names(config.report_dir) == ["42"]


def test_a_job_that_ends_before_it_began_has_no_negative_duration_and_says_so(
    config: Config, collector: Collector
) -> None:
    write_box(end_job(config, start=int(time.time()) + 5000), "0_1", BOX)
    assert collector.run_pass(WAIT_S) == 0
    loaded = load_summaries(42, config.report_dir, None)
    assert loaded.head.end == loaded.head.start
    assert build_report(loaded).problems == (
        "n1: the clock was set back while the job ran: its end is not known",
    )


def test_a_fresh_agent_waits_anew(config: Config, collector: Collector, clocks: Clocks) -> None:
    clocks.step(-(10**5))
    box = write_box(end_job(config), "0_1", BOX_ALIVE)
    clocks.step(10**5)
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1
