# SPDX-License-Identifier: Apache-2.0
"""What several chapters need of the cluster."""

from collections.abc import Iterator

import pytest

from tests.sandbox import Cluster


def restart_agents(cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        cluster.node(name).restart_agent()


@pytest.fixture
def soon(healthy_cluster: Cluster) -> Iterator[Cluster]:
    """The agents of n1 and n2 ask Slurm a second after the last process."""
    healthy_cluster.set_conf(sweep_after="1s")
    restart_agents(healthy_cluster)
    yield healthy_cluster
    healthy_cluster.set_conf()
    restart_agents(healthy_cluster)
