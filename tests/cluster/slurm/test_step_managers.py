# SPDX-License-Identifier: Apache-2.0
"""Steps that slurmctld does not start itself or does not wait for, and prologs it waits for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import Cluster, Options, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import SHORT

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]
FIRST_WITH_STEPMGR, FIRST_WITH_ASYNC = (24, 5), (26, 5)


@pytest.fixture(scope="module")
def cluster(cluster_dir: Path) -> Iterator[Cluster]:
    """A cluster whose jobs may have a step manager, if this Slurm has one."""
    new = bool(Options().tree)
    options = Options(
        monitoring=False,
        prolog_flags="Alloc,Contain,DeferBatch",
        slurm_lines=("SlurmctldParameters=enable_stepmgr",) if new else (),
    )
    with brought_up(cluster_dir, options) as made:
        yield made


def summaries(cluster: Cluster, job_id: int) -> dict[str, int]:
    """How many processes of a job were measured on each node."""
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    wait_until(lambda: len(jobs.summaries(cluster, job_id)) == 2, 60, "both nodes collected it", 1)
    return {node: len(one.processes) for node, one in jobs.summaries(cluster, job_id).items()}


TWO_NODES = ("-N2", "--ntasks-per-node=1", "--gpus-per-task=1", "--mem=100")


@pytest.mark.case("Installation", "PrologFlags=DeferBatch: batch jobs are measured on all nodes")
def test_a_batch_job_that_waits_for_all_prologs_is_measured(cluster: Cluster) -> None:
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *TWO_NODES, "--nccl-inspector=report", script=script)
    assert summaries(cluster, job_id) == {"n1": 1, "n2": 1}


@pytest.mark.case("Installation", "stepmgr: steps are measured")
def test_steps_of_a_step_manager_are_measured(cluster: Cluster) -> None:
    if cluster.layout.release < FIRST_WITH_STEPMGR:
        pytest.skip("this Slurm has no step manager")
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *TWO_NODES, "--stepmgr", "--nccl-inspector=report", script=script)
    assert summaries(cluster, job_id) == {"n1": 1, "n2": 1}


@pytest.mark.case("Installation", "srun --async: the step is measured, with its own mode")
def test_a_step_for_which_srun_does_not_wait_is_measured(cluster: Cluster) -> None:
    if cluster.layout.release < FIRST_WITH_ASYNC:
        pytest.skip("this Slurm has no srun --async")
    # The end of the batch script ends the job, so it waits for the step to begin and to end.
    script = (
        f"srun --async --nccl-inspector=report {jobs.standin(cluster, *SHORT)}\n"
        "runs() { squeue --steps --noheader --jobs=$SLURM_JOB_ID | grep -q '[.]0 '; }\n"
        "for try in $(seq 50); do runs && break; sleep 0.1; done\n"
        "while runs; do sleep 1; done"
    )
    job_id = jobs.submit(cluster, *TWO_NODES, "--stepmgr", script=script)
    assert summaries(cluster, job_id) == {"n1": 1, "n2": 1}
