"""Running processes that are told to be silent: by the node's kill switch, and for their NCCL."""

import re
from collections.abc import Iterator

import pytest

from tests.sandbox import Cluster, Node, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import raw_files
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, SHORT

pytestmark = pytest.mark.long  # all of them together

SMALL = (*ONE_NODE, "--mem=1000")
RANKS = 2
SILENT_OPERATIONS = 30


@pytest.fixture
def node(healthy_cluster: Cluster) -> Iterator[Node]:
    """n1, enabled again afterwards."""
    one = healthy_cluster.node("n1")
    yield one
    assert one.run(["nccl-inspector", "enable"]).stdout == "enabled\n"


def logged(cluster: Cluster, job_id: int) -> int:
    """Operations that the application has logged so far, of all ranks."""
    paths = (jobs.oplog(cluster, job_id) / f"{rank}.jsonl" for rank in range(RANKS))
    return sum(path.read_text().count("\n") for path in paths)


def measured(cluster: Cluster, job_id: int) -> int:
    """Operations in the node summaries, timed or not."""
    return sum(
        comm.completed + comm.untimed
        for summary in jobs.summaries(cluster, job_id).values()
        for process in summary.processes
        for comm in process.comms
    )


@pytest.mark.case("Lifecycle", "the kill switch stops measuring in running processes, which go on")
def test_processes_that_run_are_silent_while_their_node_is_disabled(
    healthy_cluster: Cluster, node: Node
) -> None:
    cluster = healthy_cluster
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    job_id = jobs.submit(cluster, "--nccl-inspector=prom,interval=100ms", *SMALL[1:], script=script)
    wait_until(lambda: len(raw_files(cluster, job_id, ".prom")) == RANKS, 15, "files", 0.1)

    node.run(["nccl-inspector", "disable", "--reason", "a test"])
    wait_until(lambda: not raw_files(cluster, job_id, ".prom"), 10, "no .prom file", 0.1)
    before = logged(cluster, job_id)
    wait_until(
        lambda: logged(cluster, job_id) - before >= SILENT_OPERATIONS,
        15, "operations that nobody measures", 0.1,
    )  # fmt: skip
    unseen = logged(cluster, job_id) - before
    assert raw_files(cluster, job_id, ".prom") == []

    node.run(["nccl-inspector", "enable"])
    wait_until(lambda: len(raw_files(cluster, job_id, ".prom")) == RANKS, 10, "files again", 0.1)
    after = logged(cluster, job_id)
    wait_until(lambda: logged(cluster, job_id) - after >= 30, 15, "more operations", 0.1)
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    done = measured(cluster, job_id)
    assert done <= logged(cluster, job_id) - unseen
    assert done > 20, "before and after"


@pytest.mark.case("Lifecycle", "an NCCL on the site's list is not measured, and its job runs")
def test_an_nccl_on_the_sites_list_is_not_measured(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.set_conf(deny_nccl="2.20.0-2.99.99")
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *SMALL, script=script, env={"NCCL_DEBUG": "INFO"})
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert measured(cluster, job_id) == 0
    assert re.search("on the site's list", jobs.output(cluster, job_id))
