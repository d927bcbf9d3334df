"""However a job ends, and whatever is missing on its nodes: it is unharmed, and nothing is left."""

import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from nccl_inspector.agent.condensed import FILE
from nccl_inspector.agent.condenser import KEPT_MAX
from nccl_inspector.model.process import KILLED
from nccl_inspector.report.joined_job import build_report
from nccl_inspector.summary.attempts import load_summaries
from tests.sandbox import JOB_USER, NODES, Cluster, Node, wait_until
from tests.support import application_log, exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_nothing_missing, operations
from tests.support.sandbox.small_jobs import (
    ENDLESS,
    ONE_NODE,
    RANKS,
    SHORT,
    TWO_NODES,
    hook_script,
    run,
    start,
)


def lost(node: Node) -> float:
    # The cluster may be up some moments before its agents have published.
    wait_until(lambda: "nccl_inspector_agent_ranks_lost_total" in node.metrics(), 10, "the agent")
    (sample,) = (
        one for one in exposition.read_prom(node.metrics())
        if one.name == "nccl_inspector_agent_ranks_lost_total"
    )  # fmt: skip
    return sample.value


def assert_every_operation_is_there(cluster: Cluster, job_id: int) -> None:
    """The profiler hears of an operation before the application logs it: one more at most."""
    measured = operations(cluster, job_id)
    assert measured.keys() == set(range(RANKS))
    for rank, counts in measured.items():
        log = application_log.read_log(jobs.oplog(cluster, job_id), rank)
        logged = Counter(op["comm_name"] for op in log)
        for comm_name in logged | counts:
            assert logged[comm_name] <= counts[comm_name] <= logged[comm_name] + 1


# Killed.


@pytest.mark.case("Lifecycle", "kill -9 of all ranks")
def test_kill_9_of_all_ranks_loses_no_operation(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    before = {name: lost(cluster.node(name)) for name in ("n1", "n2")}
    job_id = start(cluster, *TWO_NODES)
    killed = jobs.tasks(cluster)
    assert len(killed) == RANKS
    for process in killed:
        process.send(signal.SIGKILL)
    assert jobs.finish(cluster, job_id) == "FAILED"
    assert_every_operation_is_there(cluster, job_id)
    report = build_report(load_summaries(job_id, cluster.layout.reports, None))
    assert sorted(report.killed) == [
        "rank 0 (n1)", "rank 1 (n1)", "rank 2 (n2)", "rank 3 (n2)",
    ]  # fmt: skip
    assert "did not end in order, data up to the last event: rank 0" in (
        jobs.report(cluster, job_id)
    )
    wait_until(
        lambda: all(lost(cluster.node(name)) == count + 2 for name, count in before.items()),
        5, "two lost ranks on each node",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.case("Lifecycle", "kill -9 of all ranks")
def test_series_of_killed_ranks_go_while_the_job_goes_on(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"srun {jobs.standin(cluster, *ENDLESS)}; sleep 100"
    job_id = jobs.submit(cluster, *TWO_NODES, script=script)
    jobs.wait_for_operations(cluster, job_id, RANKS)
    nodes = [cluster.node(name) for name in ("n1", "n2")]
    wait_until(lambda: all(jobs.is_published(node, job_id) for node in nodes), 10, "series", 0.1)
    for process in jobs.tasks(cluster):
        process.send(signal.SIGKILL)
    wait_until(
        lambda: not any(jobs.is_published(node, job_id) for node in nodes), 5, "no series", 0.1
    )
    assert cluster.job_state(job_id) == "RUNNING"
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    assert_every_operation_is_there(cluster, job_id)


@pytest.mark.case("Lifecycle", "scancel")
def test_scancel_leaves_the_report_and_nothing_else(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    job_id = start(cluster, *TWO_NODES)
    cluster.run_as("root", ["scancel", str(job_id)])
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert_every_operation_is_there(cluster, job_id)
    states = {
        process.facts.state
        for summary in jobs.summaries(cluster, job_id).values()
        for process in summary.processes
    }
    assert states == {KILLED}
    cluster.wait_idle()


# The user's own profiler.


def test_the_users_own_profiler_wins_and_slurmds_log_says_so(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    own = {
        "NCCL_PROFILER_PLUGIN": str(cluster.tool("recorder.so")),
        "RECORDER_FILE": str(cluster.home() / "own-profiler"),
    }
    script = f"srun -n1 env\nsrun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script, env=own)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    words = jobs.output(cluster, job_id)
    assert f"NCCL_PROFILER_PLUGIN={own['NCCL_PROFILER_PLUGIN']}\n" in words
    assert not re.search("^NCCL_INSPECTOR", words, re.MULTILINE)
    assert len(list(cluster.home().glob("own-profiler.*"))) == 2, "his profiler was loaded"
    said = jobs.slurmd_lines(cluster, "n1", job_id)
    assert len(said) == 3, "once for the batch step and for each of the two others"
    for line in said:
        assert line.endswith(
            "the user's own variables win: NCCL_PROFILER_PLUGIN (nothing else is set)"
        )
    assert jobs.summaries(cluster, job_id) == {}


# Hooks.


@pytest.mark.long
@pytest.mark.case("Lifecycle", "an epilog that runs twice")
def test_an_epilog_that_runs_twice_has_nothing_to_say(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    note = cluster.layout.root / "log" / "again"
    cluster.add_hook("epilog", "60-again.sh", hook_script(cluster, "epilog", note))
    job_id, state = run(cluster, *ONE_NODE)
    assert state == "COMPLETED"
    assert Path(f"{note}-{job_id}").read_text() == "status 0\n"
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}
    cluster.wait_idle()


@pytest.mark.case("Lifecycle", "no prolog")
def test_an_epilog_without_a_prolog_has_nothing_to_do(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    cluster.take_hook("prolog")
    note = cluster.layout.root / "log" / "alone"
    cluster.add_hook("epilog", "60-alone.sh", hook_script(cluster, "epilog", note))
    job_id, state = run(cluster, *ONE_NODE)
    assert state == "COMPLETED"
    assert Path(f"{note}-{job_id}").read_text() == "status 0\n"
    cluster.wait_idle()


INJECTING_PLUGIN = r"""
#include <slurm/spank.h>
SPANK_PLUGIN(injector, 1)
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	(void)ac, (void)av;
	return spank_job_control_setenv(spank, "NCCL_INSPECTOR", "../../etc;reboot", 1);
}
"""


def injecting_conf(cluster: Cluster) -> Path:
    """A slurm.conf of the user's own, whose plugin tells the hooks what he likes."""
    home = cluster.home()
    plugin, stack, conf = (home / name for name in ("injector.so", "plugstack.conf", "slurm.conf"))
    subprocess.run(
        ["gcc", *cluster.layout.slurm_cflags, "-shared", "-fPIC", "-x", "c", "-o", plugin, "-"],
        input=INJECTING_PLUGIN, text=True, check=True, timeout=20,
    )  # fmt: skip
    stack.write_text(f"required {plugin}\n")
    usual = cluster.layout.slurm_conf.read_text()
    conf.write_text(re.sub("(?m)^PlugStackConfig=.*", f"PlugStackConfig={stack}", usual))
    return conf


def test_a_mode_that_a_users_own_plugin_injects_costs_only_his_metrics(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    note = cluster.layout.root / "log" / "injected"
    cluster.take_hook("prolog")
    cluster.add_hook("prolog", "50-noted.sh", hook_script(cluster, "prolog", note))
    env = {"SLURM_CONF": str(injecting_conf(cluster)), "SLURM_NCCL_INSPECTOR": "prom"}
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    words = "--nodelist=n1", "--ntasks=2", "--gpus-per-task=1"
    job_id = jobs.submit(cluster, *words, script=script, env=env)
    assert jobs.finish(cluster, job_id) == "COMPLETED"
    lines = Path(f"{note}-{job_id}").read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(f"job {job_id}: unknown SPANK_NCCL_INSPECTOR: ../../etc;reboot")
    assert lines[1] == "status 0"
    said = jobs.slurmd_lines(cluster, "n1", job_id)
    assert len(said) == 2, "the batch step and the other"
    assert all("no metrics: no directory" in line for line in said)
    assert jobs.summaries(cluster, job_id) == {}


@pytest.mark.case("Lifecycle", "no prolog")
def test_without_hooks_the_job_runs_and_one_line_a_step_says_why_there_are_no_metrics(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    cluster.set_prolog(on=False)
    begun = {name: cluster.node(name).run_dir_listing() for name in NODES}
    argv = ["srun", "--nccl-inspector=prom", "-N2", "-n4", "--gpus-per-task=1"]
    command = [str(cluster.tool(jobs.STANDIN)), *SHORT]
    script = "echo job $SLURM_JOB_ID; exec " + " ".join(command)
    done = cluster.run_as(JOB_USER, [*argv, "sh", "-c", script], env=jobs.fake_gpus(cluster))
    assert done.returncode == 0, done.stderr
    found = re.search(r"^job (\d+)$", done.stdout, re.MULTILINE)
    assert found
    job_id = int(found[1])
    cluster.wait_for_job(job_id)
    for name in ("n1", "n2"):
        (line,) = jobs.slurmd_lines(cluster, name, job_id)
        why = "(no prolog was run, or the job was submitted with off)"
        directory = f"/run/nccl-inspector/jobs/{job_id}/raw"
        assert line.endswith(f"no metrics: no directory {directory} {why}")
    assert {name: cluster.node(name).run_dir_listing() for name in NODES} == begun
    cluster.wait_idle()


# The agent.


@pytest.mark.long
@pytest.mark.case("Lifecycle", "an agent that starts after the job's end")
def test_an_agent_that_starts_after_the_jobs_end_collects_it(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    nodes = [cluster.node(name) for name in ("n1", "n2")]
    for node in nodes:
        assert node.stop("agent")
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    job_id = jobs.submit(cluster, *TWO_NODES, script=script)
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    cluster.wait_idle()
    waiting = jobs.traces(cluster, job_id)
    assert waiting
    assert all(re.match(rf"n[12]:ended/{job_id}\.[0-9]+/", path) for path in waiting)
    assert jobs.summaries(cluster, job_id) == {}
    for node in nodes:
        assert node.start_agent()
    jobs.wait_until_clean(cluster, job_id)
    assert_every_operation_is_there(cluster, job_id)


@pytest.mark.long
@pytest.mark.case("Lifecycle", "kill -9 of the agent while a job runs")
def test_after_the_agents_death_the_epilog_still_withdraws_the_series(
    healthy_cluster: Cluster,
) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    script = f"srun {jobs.standin(cluster, *ENDLESS)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script)
    wait_until(lambda: jobs.is_published(node, job_id), 10, "the job's series", 0.1)
    assert node.stop("agent", signal.SIGKILL)
    assert jobs.is_published(node, job_id)
    cluster.run_as("root", ["scancel", str(job_id)])
    cluster.wait_for_job(job_id)
    assert not jobs.is_published(node, job_id)
    node.start_agent()
    jobs.wait_until_clean(cluster, job_id)
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}


@pytest.mark.long
@pytest.mark.case("Lifecycle", "requeued: two attempts, nothing mixed")
def test_a_requeued_job_has_a_report_of_each_attempt(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    once = f"srun {jobs.standin(cluster, *ENDLESS)}"
    again = f"srun {jobs.standin(cluster, *SHORT)}"
    script = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {once}; else {again}; fi'
    job_id = jobs.submit(cluster, "--requeue", *TWO_NODES, script=script)
    jobs.wait_for_operations(cluster, job_id, RANKS)
    cluster.run_as("root", ["scontrol", "requeue", str(job_id)])
    wait_until(lambda: cluster.job(job_id).restarts == 1, 60, "the job's second start")
    assert jobs.finish(cluster, job_id, 60) == "COMPLETED"
    first, second = (jobs.report(cluster, job_id, "--attempt", number) for number in "01")
    assert "did not end in order" in first
    assert_nothing_missing(second)
    for text in (first, second):
        assert "2 nodes, 4 ranks" in text


# Many steps.


@pytest.mark.long
def test_a_job_of_many_short_steps_is_measured_to_its_end(healthy_cluster: Cluster) -> None:
    """Boxes of the first steps' processes have gone by then, so that they do not fill the tmpfs."""
    cluster, steps = healthy_cluster, KEPT_MAX // 2 + 4
    one = jobs.standin(cluster, "--steps", "1", *jobs.QUICK)
    script = f"for step in $(seq {steps}); do srun {one}; done; echo all; sleep 600"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script)

    def listing() -> list[str]:
        return [one for one in cluster.node("n1").run_dir_listing() if f"/{job_id}/" in one]

    wait_until(lambda: f"jobs/{job_id}/{FILE}" in listing(), 90, "the first boxes to be condensed")
    wait_until(lambda: "all\n" in jobs.output(cluster, job_id), 60, "the last step's end")
    wait_until(
        lambda: sum(one.endswith(".box") for one in listing()) == KEPT_MAX, 30, "the others to stay"
    )
    cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id)
    (summary,) = jobs.summaries(cluster, job_id).values()
    found = Counter(process.facts.step for process in summary.processes)
    assert found == dict.fromkeys(range(steps), 2)
    assert {len(process.keys) for process in summary.processes} == {3}
    assert f"{2 * steps} processes in {steps} steps" in jobs.report(cluster, job_id)
