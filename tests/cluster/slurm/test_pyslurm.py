# SPDX-License-Identifier: Apache-2.0
"""pyslurm, where the machines have that of their Slurm's release."""

import json
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from tests.sandbox import JOB_USER, Cluster
from tests.sandbox.layout import REPO
from tests.support.sandbox import jobs

pytestmark = [
    pytest.mark.long,
    pytest.mark.case("Installation", "pyslurm says the same of a job as scontrol"),
]
_HAS_IT = (
    "from nccl_inspector.slurm.pyslurmprobe import installed;"
    "import sys; sys.exit(installed() != {release})"
)
_ASK = """
import json, sys
from pathlib import Path
from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm import pyslurmprobe, slurmctld
job = int(sys.argv[1])
one, why = pyslurmprobe.ask_pyslurm(job, Path("/usr/bin/python3"))
other, _ = slurmctld._ask_scontrol(Path("/usr/bin/scontrol"), JobName(job), json=True)
chosen, *_ = slurmctld.ask_controller(Path("/usr/bin/scontrol"), JobName(job))
print(json.dumps([one, other, chosen, why], default=str))
"""


@pytest.fixture
def with_pyslurm(cluster: Cluster) -> Iterator[Cluster]:
    said = python(cluster, _HAS_IT.format(release=cluster.layout.release))
    if said.returncode:
        pytest.skip(f"no pyslurm of Slurm {cluster.layout.slurm} is installed")
    yield cluster
    cluster.reset()


def python(cluster: Cluster, code: str, *words: str) -> CompletedProcess[str]:
    env = {"PYTHONPATH": str(REPO / "python")}
    return cluster.head.run(["/usr/bin/python3", "-c", code, *words], env=env)


def told(cluster: Cluster, job_id: int) -> tuple[dict[str, object], dict[str, object], str]:
    """What pyslurm and scontrol say of a job, and which of them a report takes."""
    done = python(cluster, _ASK, str(job_id))
    assert done.returncode == 0, done.stderr
    by_pyslurm, by_scontrol, chosen, why = json.loads(done.stdout)
    assert by_pyslurm, why
    # pyslurm tells the path, and scontrol the pattern of the user's; the report fills that in.
    by_scontrol["stdout_path"] = by_scontrol["stdout_path"].replace("%j", str(job_id))
    return by_pyslurm, by_scontrol, chosen


@pytest.mark.parametrize("code", [0, 3])
def test_it_says_the_same_of_an_ended_job_as_scontrol(with_pyslurm: Cluster, code: int) -> None:
    words = ("-N2", "--time=5", "--comment=two words", "--job-name=a name")
    job_id = jobs.submit(with_pyslurm, *words, script=f"srun true; exit {code}")
    jobs.finish(with_pyslurm, job_id)
    by_pyslurm, by_scontrol, chosen = told(with_pyslurm, job_id)
    assert by_pyslurm["name"] == "a name"
    differing = {key for key, value in by_pyslurm.items() if by_scontrol.get(key) != value}
    assert not differing, (by_pyslurm, by_scontrol)
    # A failed job's exit code may be wrong in pyslurm's words.
    assert chosen == ("scontrol" if code else "pyslurm")


def test_it_says_the_same_of_a_running_job_as_scontrol(with_pyslurm: Cluster) -> None:
    job_id = jobs.submit(with_pyslurm, "-N1", script="sleep 60", user=JOB_USER)
    with_pyslurm.wait_for_state(job_id, "RUNNING")
    by_pyslurm, by_scontrol, chosen = told(with_pyslurm, job_id)
    assert by_pyslurm["state"] == "RUNNING"
    differing = {key for key, value in by_pyslurm.items() if by_scontrol.get(key) != value}
    assert (differing, chosen) == (set(), "pyslurm")
