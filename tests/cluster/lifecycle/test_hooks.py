"""Prolog and epilog that are missing, come twice or die half-way, and a job id used again."""

import re
import signal
from pathlib import Path

import pytest

from tests.sandbox import Cluster, wait_until
from tests.support.hook_scripts import EPILOG, PROLOG, with_stubs
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_next_job_is_measured, assert_nothing_missing
from tests.support.sandbox.small_jobs import ENDLESS, ONE_NODE, SHORT, run, take_epilog_away

pytestmark = pytest.mark.long

LIFECYCLE = "Lifecycle"
# The hook is a session's leader, so that this reaches it and all that it has started.
DIE = "kill -KILL 0"


def die_at(cluster: Cluster, kind: str, program: str) -> Path:
    """Let the product's hook be killed where it calls this program; what exists once it was."""
    hook = {"prolog": PROLOG, "epilog": EPILOG}[kind]
    folder = cluster.layout.root / "etc" / f"dying-{kind}-{program}"
    folder.mkdir(exist_ok=True)
    died = folder / "died"
    copy = with_stubs(folder, hook, **{program: f": >{died}\n{DIE}"})
    wrapper = f"#!/bin/sh\n/usr/bin/setsid -w /bin/sh {copy}\nexit 0\n"
    cluster.take_hook(kind)
    cluster.add_hook(kind, "50-dying.sh", wrapper)
    return died


@pytest.mark.case(LIFECYCLE, "no prolog")
def test_without_a_prolog_the_job_runs_without_metrics(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.take_hook("prolog")
    job_id, state = run(cluster, *ONE_NODE)
    assert (state, cluster.job(job_id).exit_code) == ("COMPLETED", "0:0")
    assert jobs.summaries(cluster, job_id) == {}
    lines = jobs.slurmd_lines(cluster, "n1", job_id)
    assert lines
    assert all("no metrics: no directory" in line for line in lines)
    cluster.wait_idle()


@pytest.mark.case(LIFECYCLE, "the prolog is killed half-way")
@pytest.mark.parametrize("program", ["mkdir", "chown"])
def test_a_prolog_that_is_killed_costs_the_metrics_of_its_job_only(
    healthy_cluster: Cluster, program: str
) -> None:
    cluster = healthy_cluster
    died = die_at(cluster, "prolog", program)
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *SHORT)}")
    ended = cluster.wait_for_job(job_id)
    assert died.exists()
    assert (ended.state, ended.exit_code) == ("COMPLETED", "0:0")
    cluster.wait_idle()
    assert jobs.summaries(cluster, job_id) == {}
    lines = jobs.slurmd_lines(cluster, "n1", job_id)
    assert lines
    assert all("no metrics: " in line for line in lines)
    # Half a directory says of nobody whose it is: the agent keeps it for an hour.
    left = jobs.traces(cluster, job_id)
    assert all(re.fullmatch(rf"n1:ended/{job_id}\.[0-9]+/(raw/)?", path) for path in left)
    assert bool(left) == (program == "chown")
    cluster.node("n1").run(["sh", "-c", f"rm -r /run/nccl-inspector/ended/{job_id}.*"])
    cluster.reset()
    assert_next_job_is_measured(cluster)


@pytest.mark.case(LIFECYCLE, "the epilog is killed half-way")
def test_a_job_whose_epilog_is_killed_is_collected_all_the_same(soon: Cluster) -> None:
    died = die_at(soon, "epilog", "mv")
    job_id, state = run(soon, *ONE_NODE)
    assert state == "COMPLETED"
    assert died.exists()
    assert jobs.summaries(soon, job_id).keys() == {"n1"}
    soon.wait_idle()


@pytest.mark.case(LIFECYCLE, "the epilog is killed half-way")
def test_an_epilog_killed_after_its_rename_has_done_its_work(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    node, died = cluster.node("n1"), die_at(cluster, "epilog", "rm")
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    mark = f'slurm_job_id="{job_id}"'
    wait_until(lambda: mark in node.metrics(), 15, "the job's series", 0.1)
    assert node.stop("agent", signal.SIGKILL)  # it would withdraw them first
    cluster.run_as("root", ["scancel", str(job_id)])
    assert cluster.wait_for_job(job_id).state == "CANCELLED"
    assert died.exists()
    assert f"n1:prom/{job_id}.prom" in jobs.traces(cluster, job_id)
    assert node.start_agent()
    jobs.wait_until_clean(cluster, job_id)
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}
    cluster.wait_idle()


@pytest.mark.case(LIFECYCLE, "a job id is used again")
def test_a_later_job_of_the_same_id_has_nothing_of_the_earlier(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    take_epilog_away(cluster)
    earlier = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *SHORT)}")
    assert cluster.wait_for_job(earlier).state == "COMPLETED"
    cluster.reset()
    script = f"srun {jobs.standin(cluster, '--steps', '9', *jobs.QUICK)}"
    later = jobs.submit(cluster, "--hold", *ONE_NODE, script=script)
    # As Slurm's ids after the loss of its state: another user's job had this one's.
    folder = "/run/nccl-inspector/jobs"
    change = f"s/^job_id=.*/job_id={later}/; s/^uid=.*/uid=65534/; s/^start=.*/start=1000000000/"
    moved = node.run(
        ["sh", "-ec", f"cd {folder}; mv {earlier} {later}; sed -i '{change}' {later}/manifest; "
         f"chown -R 65534 {later}/raw"]
    )  # fmt: skip
    assert moved.returncode == 0, moved.stderr
    cluster.run_as("root", ["scontrol", "release", str(later)])
    assert jobs.finish(cluster, later) == "COMPLETED"
    summary = jobs.summaries(cluster, later)["n1"]
    assert summary.head.start > 1000000000
    most = {max(key.ops for key in process.keys) for process in summary.processes}
    assert most == {9}, "operations of the later job, and of no other"
    assert_nothing_missing(jobs.report(cluster, later))
