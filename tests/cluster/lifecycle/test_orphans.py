"""Jobs whose epilog never comes: the agent asks Slurm, and collects what has ended, only that."""

import re

import pytest

from tests.sandbox import JOB_USER, Cluster, Node, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.small_jobs import (
    ENDLESS,
    ONE_NODE,
    RANKS,
    SHORT,
    TWO_NODES,
    controller_down,
    take_epilog_away,
)

ANSWERS_S = 40


def counter(node: Node, name: str, **labels: str) -> float:
    """A number that the node's agent publishes of itself; 0 while it does not."""
    return sum(
        one.value
        for one in exposition.read_prom(node.metrics())
        if one.name == f"nccl_inspector_agent_{name}" and labels.items() <= one.labels.items()
    )


def answers(node: Node, kind: str) -> float:
    return counter(node, "slurm_answers_total", reason=kind)


def idle_allocation(cluster: Cluster, *more: str) -> int:
    """An allocation of n1 in which nothing runs at all."""
    words = (
        "salloc",
        "--no-shell",
        "--nccl-inspector=prom",
        "-N1",
        "-n2",
        "--gpus-per-node=2",
        "--nodelist=n1",
        *more,
    )
    done = cluster.run_as(JOB_USER, list(words))
    found = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


def directory_is_there(cluster: Cluster, job_id: int) -> bool:
    return f"n1:jobs/{job_id}/" in jobs.traces(cluster, job_id)


@pytest.mark.case("Lifecycle", "no epilog")
def test_a_job_whose_epilog_never_came_is_collected_and_has_its_report(soon: Cluster) -> None:
    before = counter(soon.node("n1"), "swept_jobs_total")
    take_epilog_away(soon)
    script = f"srun {jobs.standin(soon, *SHORT)}"
    job_id = jobs.submit(soon, *TWO_NODES, script=script)
    assert soon.wait_for_job(job_id).state == "COMPLETED"
    jobs.wait_until_clean(soon, job_id)
    assert jobs.summaries(soon, job_id).keys() == {"n1", "n2"}
    assert f"2 nodes, {RANKS} ranks" in jobs.report(soon, job_id)
    assert counter(soon.node("n1"), "swept_jobs_total") == before + 1


@pytest.mark.long
@pytest.mark.case("Lifecycle", "an idle salloc is never collected, and a later srun is measured")
def test_an_idle_salloc_is_never_swept(soon: Cluster) -> None:
    node = soon.node("n1")
    swept = counter(node, "swept_jobs_total")
    job_id = idle_allocation(soon)
    wait_until(lambda: answers(node, "alive") >= 2, ANSWERS_S, "two answers of Slurm", 0.2)
    assert directory_is_there(soon, job_id)
    step = ["srun", f"--jobid={job_id}", "--nccl-inspector=prom", "-n2", "--gpus-per-task=1"]
    command = [*step, str(soon.tool(jobs.STANDIN)), *SHORT]
    done = soon.run_as(JOB_USER, command, env=jobs.fake_gpus(soon))
    assert done.returncode == 0, done.stderr
    soon.run_as("root", ["scancel", str(job_id)])
    jobs.finish(soon, job_id)
    assert jobs.summaries(soon, job_id).keys() == {"n1"}
    assert counter(node, "swept_jobs_total") == swept


@pytest.mark.long
def test_a_jobs_name_does_not_end_it(soon: Cluster) -> None:
    node = soon.node("n1")
    job_id = idle_allocation(soon, "--job-name=x JobState=COMPLETED\nJobId=7 y")
    wait_until(lambda: answers(node, "alive") >= 1, ANSWERS_S, "an answer of Slurm", 0.2)
    assert directory_is_there(soon, job_id)
    assert answers(node, "ended") == 0
    soon.run_as("root", ["scancel", str(job_id)])
    jobs.wait_until_clean(soon, job_id)


@pytest.mark.long
@pytest.mark.case("Lifecycle", "slurmctld is down: no running job is collected")
def test_while_the_controller_is_down_everything_stays(soon: Cluster) -> None:
    node = soon.node("n1")
    job_id = idle_allocation(soon)
    with controller_down(soon):
        wait_until(lambda: answers(node, "none") >= 1, ANSWERS_S, "no answer", 0.2)
        assert directory_is_there(soon, job_id)
        assert node.agent_log().count("cannot ask Slurm about jobs without an epilog") == 1
    heard = answers(node, "alive")
    wait_until(lambda: answers(node, "alive") > heard, ANSWERS_S, "an answer again", 0.2)
    assert "Slurm answers again" in node.agent_log()
    assert directory_is_there(soon, job_id)
    soon.run_as("root", ["scancel", str(job_id)])
    jobs.finish(soon, job_id)


@pytest.mark.long
@pytest.mark.case("Lifecycle", "no epilog")
def test_an_attempt_that_went_back_to_the_queue_without_an_epilog_is_collected(
    soon: Cluster,
) -> None:
    take_epilog_away(soon)
    script = f"srun {jobs.standin(soon, *ENDLESS)}"
    job_id = jobs.submit(soon, "--requeue", *ONE_NODE, script=script)
    jobs.wait_for_operations(soon, job_id, 2)
    soon.run_as("root", ["scontrol", "requeuehold", str(job_id)])
    jobs.wait_until_clean(soon, job_id)
    assert jobs.summaries(soon, job_id)["n1"].head.restart == 0
    assert soon.job_state(job_id) == "PENDING"


@pytest.mark.long
@pytest.mark.case("Lifecycle", "an idle salloc is never collected, and a later srun is measured")
def test_a_job_that_has_not_begun_stays_if_its_agent_sees_another_boot(soon: Cluster) -> None:
    node = soon.node("n1")
    job_id = idle_allocation(soon)
    manifest = f"/run/nccl-inspector/jobs/{job_id}/manifest"
    node.stop("agent")
    assert node.run(["sed", "-i", "s/^boot_id=.*/boot_id=another/", manifest]).returncode == 0
    node.start_agent()
    wait_until(lambda: answers(node, "alive") >= 1, ANSWERS_S, "an answer", 0.2)
    assert directory_is_there(soon, job_id)
    soon.run_as("root", ["scancel", str(job_id)])
    jobs.finish(soon, job_id)
