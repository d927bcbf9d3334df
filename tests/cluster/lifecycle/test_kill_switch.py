"""The kill switch of one node, while a job runs on it."""

from collections.abc import Iterator

import pytest

from tests.sandbox import Cluster, Node, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, SHORT

SMALL = (*ONE_NODE, "--mem=1000")


@pytest.fixture
def node(healthy_cluster: Cluster) -> Iterator[Node]:
    """n1, enabled again afterwards."""
    one = healthy_cluster.node("n1")
    yield one
    assert one.run(["nccl-inspector", "enable"]).stdout == "enabled\n"


@pytest.mark.long
@pytest.mark.case("Lifecycle", "the kill switch on one node while a job runs")
def test_a_disabled_node_publishes_and_begins_nothing_and_harms_no_job(
    healthy_cluster: Cluster, node: Node
) -> None:
    cluster = healthy_cluster
    status = ["nccl-inspector", "status"]
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    running = jobs.submit(cluster, *SMALL, script=script)
    mark = f'slurm_job_id="{running}"'
    wait_until(lambda: mark in node.metrics(), 15, "the job's series", 0.1)
    assert node.run(status).returncode == 0

    done = node.run(["nccl-inspector", "disable", "--reason", "a test"])
    assert done.stdout.endswith(" UTC: a test\n")
    wait_until(lambda: mark not in node.metrics(), 10, "no series", 0.1)
    wait_until(
        lambda: 'agent_disabled{cluster="sandbox",node="n1"} 1' in node.metrics(), 5, "it says so"
    )
    assert node.run(status).returncode == 3
    assert cluster.job_state(running) == "RUNNING"

    other = jobs.submit(cluster, *SMALL, script=f"srun {jobs.standin(cluster, *SHORT)}")
    assert jobs.finish(cluster, other) == "COMPLETED"
    assert jobs.summaries(cluster, other) == {}

    assert node.run(["nccl-inspector", "enable"]).stdout == "enabled\n"
    wait_until(lambda: mark in node.metrics(), 10, "its series again", 0.1)
    cluster.run_as("root", ["scancel", str(running)])
    jobs.finish(cluster, running)
    assert jobs.summaries(cluster, running).keys() == {"n1"}
