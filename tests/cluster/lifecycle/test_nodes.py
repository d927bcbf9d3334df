"""A node that is lost with its job and comes back, and other PrologFlags than Alloc."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.model.process import KILLED
from tests.sandbox import Cluster, Options, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_next_job_is_measured, assert_nothing_missing, states
from tests.support.sandbox.lost_nodes import boot, give_up, lose
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, RANKS, SHORT, TWO_NODES, run

pytestmark = pytest.mark.long

LIFECYCLE = "Lifecycle"
RUN_DIR = "/run/nccl-inspector"


ON_DISK = "its run directory is on a disk"
REBOOTS = {
    "its tmpfs is empty": f"rm -rf {RUN_DIR}/jobs/* {RUN_DIR}/prom/*.prom",
    ON_DISK: "true",
}


@pytest.mark.case(LIFECYCLE, "a node is lost and comes back")
@pytest.mark.parametrize("reboot", REBOOTS)
def test_a_node_that_was_lost_comes_back_clean(soon: Cluster, reboot: str) -> None:
    cluster, node = soon, soon.node("n1")
    job_id = jobs.submit(
        cluster, "--no-requeue", *TWO_NODES, "--nodelist=n[1-2]",
        script=f"srun {jobs.standin(cluster, *ENDLESS)}",
    )  # fmt: skip
    jobs.wait_for_operations(cluster, job_id, RANKS)
    lose(cluster, job_id)
    give_up(cluster)
    assert cluster.wait_for_job(job_id).state == "NODE_FAIL"
    assert node.run(["sh", "-ec", REBOOTS[reboot]]).returncode == 0
    boot(cluster)
    jobs.wait_until_clean(cluster, job_id)
    kept = {"n2"} | ({"n1"} if reboot == ON_DISK else set())
    assert jobs.summaries(cluster, job_id).keys() == kept
    assert states(cluster, job_id) == [KILLED] * 2 * len(kept)
    wait_until(lambda: node.state().idle, 30, "Slurm has the node back", 0.1)
    assert_next_job_is_measured(cluster)


@pytest.mark.case(LIFECYCLE, "a node is lost, its job starts again elsewhere")
def test_a_job_requeued_from_a_lost_node_keeps_its_attempts_apart(soon: Cluster) -> None:
    cluster, node = soon, soon.node("n1")
    first, second = (f"srun {jobs.standin(cluster, *words)}" for words in (ENDLESS, SHORT))
    script = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {first}; else {second}; fi'
    job_id = jobs.submit(
        cluster, "--requeue", *ONE_NODE[:1], *ONE_NODE[2:], "-N1", "--exclude=n2,n3", script=script
    )
    jobs.wait_for_operations(cluster, job_id, 2)
    assert cluster.job(job_id).nodes == "n1"
    lose(cluster, job_id)
    give_up(cluster)
    # A late answer of its slurmd may tell slurmctld that the node is well.
    elsewhere = ["scontrol", "update", f"jobid={job_id}", "excnodelist=n[1-3]"]
    wait_until(lambda: cluster.run_as("root", elsewhere).returncode == 0, 10, "it is requeued", 0.1)
    wait_until(lambda: cluster.job(job_id).restarts == 1, 60, "the second start", 0.1)
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    assert f"n1:jobs/{job_id}/" in jobs.traces(cluster, job_id), "nobody was there to clean up"
    boot(cluster)
    jobs.wait_until_clean(cluster, job_id)
    assert sorted(
        path.name for path in (cluster.layout.reports / str(job_id)).glob("*.nodesummary")
    ) == ["n1.0.nodesummary", "n4.1.nodesummary"]
    assert "did not end in order" in jobs.report(cluster, job_id, "--attempt", "0")
    assert_nothing_missing(jobs.report(cluster, job_id))
    wait_until(lambda: node.state().idle, 30, "Slurm has the node back", 0.1)


# PrologFlags.


@contextmanager
def flagged(cluster_dir: Path, flags: str) -> Iterator[Cluster]:
    """A cluster of its own with these PrologFlags; in the end no node may be drained."""
    with brought_up(cluster_dir, Options(monitoring=False, prolog_flags=flags)) as cluster:
        yield cluster
        assert not [name for name, state in cluster.node_states().items() if state.drained]


def assert_measured(cluster: Cluster, *words: str) -> None:
    job_id, state = run(cluster, *words)
    assert (state, cluster.job(job_id).exit_code) == ("COMPLETED", "0:0")
    assert jobs.summaries(cluster, job_id).keys() == {"n1", "n2"}
    assert_nothing_missing(jobs.report(cluster, job_id))
    cluster.wait_idle()


@pytest.mark.case(LIFECYCLE, "PrologFlags empty")
def test_without_prolog_flags_the_first_steps_nodes_are_measured(cluster_dir: Path) -> None:
    with flagged(cluster_dir, "") as cluster:
        assert_measured(cluster, *TWO_NODES)
        script = f"srun -N1 -n2 --nodelist=n1 {jobs.standin(cluster, *SHORT)}"
        job_id = jobs.submit(cluster, *TWO_NODES, "--nodelist=n[1-2]", script=script)
        assert jobs.finish(cluster, job_id) == "COMPLETED"
        assert jobs.summaries(cluster, job_id).keys() == {"n1"}, "n2 had an epilog and no prolog"
        cluster.wait_idle()


@pytest.mark.case(LIFECYCLE, "PrologFlags=Contain")
def test_with_contain_a_job_is_measured_and_leaves_nothing(cluster_dir: Path) -> None:
    with flagged(cluster_dir, "Contain") as cluster:
        assert_measured(cluster, *TWO_NODES)


@pytest.mark.case(LIFECYCLE, "PrologFlags=RunInJob")
def test_with_run_in_job_a_job_is_measured_and_leaves_nothing(
    shared_cluster: Cluster, cluster_dir: Path
) -> None:
    release = shared_cluster.layout.release
    if release < (24, 11):
        pytest.skip("this slurmctld does not know RunInJob")
    with flagged(cluster_dir, "RunInJob") as cluster:
        jobs.set_stub(cluster)  # slurmd does not run a plugin's job_prolog there
        # 24.11 leaves a job with GPUs on two nodes waiting for its prologs for ever.
        words = TWO_NODES if release > (24, 11) else TWO_NODES[:-1]
        assert_measured(cluster, *words)
