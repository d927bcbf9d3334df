# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.helpers import Node, running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node without jobs."""
    with running(tmp_path) as one:
        yield one
