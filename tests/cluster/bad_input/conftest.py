# SPDX-License-Identifier: Apache-2.0
"""A file that nobody may write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import Cluster, wait_until
from tests.support.sandbox import jobs


@pytest.fixture
def canary(healthy_cluster: Cluster) -> Iterator[Path]:
    """A file that appears only when somebody runs a text; around it nothing may change."""
    cluster = healthy_cluster
    empty = lambda: jobs.run_dirs_are_empty(cluster)  # noqa: E731
    wait_until(empty, 20, "agents at work, nothing of earlier jobs", 0.1)
    path = cluster.layout.root / "log" / "canary"
    yield path
    assert not path.exists(), "a text was run"
    assert not list(cluster.layout.root.glob("log/*canary*"))
    cluster.wait_idle()
    wait_until(empty, 15, "nothing is left in the run directories", 0.1)
