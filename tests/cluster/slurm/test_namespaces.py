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

# A release has the first or the last two. File beside slurm.conf, its text.
KINDS = {
    "job_container/tmpfs": ("job_container.conf", "AutoBasePath=true\nBasePath={base}\n"),
    "namespace/tmpfs": ("namespace.yaml", "defaults:\n  auto_basepath: true\n  base_path: {base}\n"),
    "namespace/linux": ("namespace.yaml", "defaults:\n  auto_basepath: true\n  base_path: {base}\n"),
}


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """Not below /tmp: the job has another one, and could not see the cluster's programs."""
    with tempfile.TemporaryDirectory(prefix="nccl-ns-", dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.long
@pytest.mark.case("Lifecycle", "Slurm gives each job a /tmp of its own (job_container/tmpfs)")
@pytest.mark.usefixtures("cluster_dir")
def test_a_job_with_its_own_tmp_is_measured(outside_tmp: Path) -> None:
    new = Options().tree == "forky"
    kind = "namespace/linux" if new else "job_container/tmpfs"
    file, text = KINDS[kind]
    key = "NamespaceType" if new else "JobContainerType"
    options = replace(
        Options(monitoring=False),
        prolog_flags="Alloc,Contain",
        slurm_lines=(f"{key}={kind}",),
        etc_files=((file, text.format(base=outside_tmp / "base")),),
    )
    with brought_up(outside_tmp / "cluster", options) as cluster:
        script = f"touch /tmp/own-$SLURM_JOB_ID\nsrun {jobs.standin(cluster, *SHORT)}"
        job_id = jobs.submit(cluster, *ONE_NODE, script=script)
        assert jobs.finish(cluster, job_id) == "COMPLETED"
        assert not Path(f"/tmp/own-{job_id}").exists()
        (summary,) = jobs.summaries(cluster, job_id).values()
        assert len(summary.processes) == 2
