# SPDX-License-Identifier: Apache-2.0
"""The agent's directories, and reports that belong to an account without rights elsewhere."""

from pathlib import Path

import pytest

from nccl_inspector.settings.config import Config, parse_config
from tests.support.boxes import make_reports, make_run_dir


@pytest.fixture
def run_dir(open_path: Path) -> Path:
    return make_run_dir(open_path / "run")


@pytest.fixture
def config(open_path: Path, run_dir: Path) -> Config:
    """A configuration whose report directory belongs to an account that has no rights elsewhere."""
    return parse_config(f"run_dir = {run_dir}\n{make_reports(open_path)}", "test")
