# SPDX-License-Identifier: Apache-2.0
"""The service on directories of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.settings.config import Config, parse_config


@pytest.fixture
def config(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A controller's directories, with a wait that is over at once, and no user known by number."""
    for module in ("owner", "sqlite_file"):
        monkeypatch.setattr(f"nccl_inspector.store.{module}.current_name", lambda _uid: None)
    for name in ("ctl/queue", "reports", "store"):
        (open_path / name).mkdir(parents=True)
    return replace(
        parse_config("", "none"), controller_dir=open_path / "ctl",
        report_dir=open_path / "reports", store_dir=open_path / "store", controller_wait_s=0.0,
    )  # fmt: skip
