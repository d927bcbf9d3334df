# SPDX-License-Identifier: Apache-2.0
"""The option `debug`: NCCL's log in a file for each task, kept with the report."""

import json

import pytest

from tests.sandbox import Cluster
from tests.support.sandbox import jobs

pytestmark = pytest.mark.long

TWO_NODES = ("-N2", "--ntasks-per-node=2", "--gpus-per-task=1")
SHORT = ("--steps", "4", "--sizes", "64K", "--comms", "world")
# Writes as NCCL does: it puts host and process into the file's name. Task 3 is the first to fail.
WRITE = r"""cat >write.sh <<'END'
file=$(printf %s "$NCCL_DEBUG_FILE" | sed "s/%h/$(hostname)/; s/%p/1/")
at=$((10 + (SLURM_PROCID != 3) + SLURM_PROCID))
[ "$SLURM_PROCID" != 3 ] || at=10
printf '\n[2026-11-25 10:11:%s.000] %s:1:9 [0] x.cc:5 (f) NCCL WARN Too many open files\n' \
	"$at" "$(hostname)" >"$file"
echo "$NCCL_DEBUG"
END
"""


def test_nccls_log_of_each_task_is_kept_with_the_report(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"{WRITE}srun -l sh write.sh\nsrun {jobs.standin(cluster, *SHORT)}"
    option = "--nccl-inspector=report,debug"
    job_id = jobs.submit(cluster, option, *TWO_NODES, script=script)
    assert jobs.finish(cluster, job_id) == "COMPLETED", jobs.output(cluster, job_id)
    levels = [line for line in jobs.output(cluster, job_id).splitlines() if "WARN" in line]
    assert sorted(levels) == [f"{task}: WARN" for task in range(4)]
    report = json.loads(cluster.report(job_id, "--json").stdout)
    (found,) = [one for one in report["findings"] if one["rule"] == "nccl-error"]
    assert "the process may not open more files (task 3 " in found["title"]
    assert "3 other processes followed within 3 s" in found["title"]
    assert jobs.traces(cluster, job_id) == []


def test_the_jobs_own_level_keeps_its_lines_in_the_output(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"export NCCL_DEBUG=INFO\n{WRITE}srun sh -c 'echo $NCCL_DEBUG-$NCCL_DEBUG_FILE'"
    job_id = jobs.submit(
        cluster, "--nccl-inspector=report,debug", "--nodelist=n1", "-n1", script=script
    )
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    assert jobs.output(cluster, job_id) == "INFO-\n"
