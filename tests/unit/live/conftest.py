# SPDX-License-Identifier: Apache-2.0
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nccl_inspector.agent.beat_age import Now
from tests.support import live_node
from tests.support.live_node import Node, running


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between the beat of a box and a look at it, however busy the machine is."""
    at_ns = time.time_ns()
    monkeypatch.setattr("nccl_inspector.live.node_look.now", lambda: Now(at_ns, 100.0))
    monkeypatch.setattr(live_node, "time", SimpleNamespace(time_ns=lambda: at_ns))


@pytest.fixture
def node(open_path: Path) -> Iterator[Node]:
    """A node without jobs."""
    with running(open_path) as one:
        yield one
