# SPDX-License-Identifier: Apache-2.0
"""Sites on which Slurm gives each job file systems of its own."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox import Options
from tests.support.sandbox import jobs
from tests.support.sandbox.own_cluster import brought_up
from tests.support.sandbox.small_jobs import ONE_NODE, SHORT


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """Not below /tmp: the job has another one, and could not see the cluster's programs."""
    with tempfile.TemporaryDirectory(prefix="nccl-ns-", dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.long
@pytest.mark.usefixtures("cluster_dir")
def test_a_job_with_its_own_tmp_is_measured(outside_tmp: Path) -> None:
    new = Options().tree == "forky"
    line = "NamespaceType=namespace/tmpfs" if new else "JobContainerType=job_container/tmpfs"
    text = f"AutoBasePath=true\nBasePath={outside_tmp}/base\n"
    options = replace(
        Options(monitoring=False),
        prolog_flags="Alloc,Contain",
        slurm_lines=(line,),
        etc_files=(("job_container.conf", text),),
    )
    with brought_up(outside_tmp / "cluster", options) as cluster:
        script = f"touch /tmp/own-$SLURM_JOB_ID\nsrun {jobs.standin(cluster, *SHORT)}"
        job_id = jobs.submit(cluster, *ONE_NODE, script=script)
        assert jobs.finish(cluster, job_id) == "COMPLETED"
        assert not Path(f"/tmp/own-{job_id}").exists()
        (summary,) = jobs.summaries(cluster, job_id).values()
        assert len(summary.processes) == 2
