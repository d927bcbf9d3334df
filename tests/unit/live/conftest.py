# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_node import Node, running


@pytest.fixture
def node(open_path: Path) -> Iterator[Node]:
    """A node without jobs."""
    with running(open_path) as one:
        yield one
