# SPDX-License-Identifier: Apache-2.0
"""What the built plugin writes into."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def raw() -> Iterator[Path]:
    """A directory like a job's raw/: on tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)
