"""A heterogeneous job: two jobs to Slurm, one communicator, one report."""

import pytest

from tests import jobs
from tests.cluster import Cluster

SCRIPT = """\
#SBATCH --nccl-inspector=prom -N1 --ntasks=2 --gpus-per-task=1 --nodelist=n1
#SBATCH hetjob
#SBATCH -N1 --ntasks=2 --gpus-per-task=1 --nodelist=n2
"""


@pytest.mark.long
def test_a_heterogeneous_job_has_one_report_under_each_of_its_ids(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    command = jobs.standin(cluster, "--steps", "20", *jobs.QUICK)
    leader = jobs.submit(cluster, script=f"{SCRIPT}srun --het-group=0,1 {command}")
    # Slurm starts such jobs in its backfill round only, every half minute.
    assert jobs.finish(cluster, leader, 90) == "COMPLETED"
    assert jobs.finish(cluster, leader + 1) == "COMPLETED"
    assert jobs.summaries(cluster, leader).keys() == {"n1"}
    assert jobs.summaries(cluster, leader + 1).keys() == {"n2"}
    text = cluster.report(leader).stdout
    assert f"job {leader} (het: components {leader}, {leader + 1})" in text
    assert "4 ranks on 2 nodes" in text
    assert "MISSING  nothing" in text
    assert cluster.report(leader + 1).stdout == text
