# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import Publisher
from tests.support.boxes import BoxOf, lock_held, make_job, make_run_dir, write_box
from tests.support.clocks import StillClock
from tests.support.nvidia_files import FILE, Writer
from tests.support.publishing import STEM, publisher


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run_dir(tmp_path / "run")


@pytest.fixture
def raw(run_dir: Path) -> Iterator[Path]:
    """The raw directory of job 42, in which one process lives."""
    raw = make_job(run_dir / "jobs" / "42")
    with lock_held(write_box(raw, STEM, BoxOf(state=1))):
        yield raw


@pytest.fixture
def vendor_raw(run_dir: Path) -> Path:
    """The raw directory of job 42, in which no process has a box."""
    return make_job(run_dir / "jobs" / "42")


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def writer(vendor_raw: Path) -> Iterator[Writer]:
    one = Writer(vendor_raw / FILE)
    yield one
    one.close()


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def agent(run_dir: Path, tally: Tally, clock: StillClock) -> Iterator[Publisher]:
    with publisher(run_dir, tally, clock) as one:
        yield one
