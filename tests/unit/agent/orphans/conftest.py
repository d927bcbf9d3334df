# SPDX-License-Identifier: Apache-2.0
"""A run directory, a scontrol of our own, and what asks it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent import orphans
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.orphans import Sweeper
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.attempt import Question
from tests.support.clocks import SteppedClock
from tests.support.fake_scontrol import Scontrol, answers, configured


@pytest.fixture
def slurm(tmp_path: Path) -> Scontrol:
    return Scontrol(tmp_path)


@pytest.fixture
def config(tmp_path: Path, slurm: Scontrol) -> Config:
    return configured(tmp_path, slurm)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def sweeper(config: Config, tally: Tally, clock: SteppedClock) -> Iterator[Sweeper]:
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Sweeper(run_fd, config, tally, clock)
    yield one
    one.close()
    os.close(run_fd)


@pytest.fixture
def waited(sweeper: Sweeper, tally: Tally, clock: SteppedClock) -> Callable[[], None]:
    """One answer more, about a directory in which nothing has lived for long."""

    def wait() -> None:
        sweeper.run_pass()
        clock.ahead_s += 7200
        answers(sweeper, tally, sum(tally.answers.values()) + 1)

    return wait


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that questions were begun about; scontrol itself may note one later."""
    found: list[int] = []

    def question(*words: object) -> Question:
        one = Question(*words)  # type: ignore[arg-type]  # as it was called
        found.append(one.attempt.job_id)
        return one

    monkeypatch.setattr(orphans, "Question", question)
    return found
