# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import (
    BoxOf,
    lock_held,
    make_job,
    make_run_dir,
    write_box,
)
from tests.publish.helpers import STEM


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run_dir(tmp_path / "run")


@pytest.fixture
def raw(run_dir: Path) -> Iterator[Path]:
    """The raw directory of job 42, in which one process lives."""
    raw = make_job(run_dir / "jobs" / "42")
    with lock_held(write_box(raw, STEM, BoxOf(state=1))):
        yield raw
