"""The ends that a job may come to, and daemons that die under it: unharmed, measured, all gone."""

import signal

import pytest

from nccl_inspector.model.process import KILLED
from tests.sandbox import JOB_USER, Cluster, Node, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_next_job_is_measured, assert_nothing_missing, states
from tests.support.sandbox.small_jobs import (
    ENDLESS,
    ONE_NODE,
    RANKS,
    SHORT,
    SMALL,
    TWO_NODES,
    controller_down,
    run,
    start,
    stepd,
)

LIFECYCLE = "Lifecycle"


def case(words: str) -> pytest.MarkDecorator:
    return pytest.mark.case(LIFECYCLE, words)


# Ends.


@case("an ordinary end")
def test_a_job_that_completes_is_reported_and_leaves_nothing(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    job_id, state = run(cluster, *TWO_NODES)
    assert (state, cluster.job(job_id).exit_code) == ("COMPLETED", "0:0")
    assert_nothing_missing(jobs.report(cluster, job_id))
    assert KILLED not in states(cluster, job_id)
    cluster.wait_idle()


def cancelled(cluster: Cluster, mode: str, *words: str) -> tuple[int, str]:
    """An endless job of this mode that `scancel words` ends; its id, and state and exit code."""
    job_id = start(cluster, f"--nccl-inspector={mode}", *TWO_NODES[1:])
    cluster.run_as("root", ["scancel", *words, str(job_id)])
    return job_id, f"{jobs.finish(cluster, job_id)} {cluster.job(job_id).exit_code}"


ENDS = [
    pytest.param(("--signal=TERM",), marks=case("scancel")),
    pytest.param(("--signal=KILL",), marks=[case("scancel --signal=KILL"), pytest.mark.long]),
    pytest.param(
        ("--signal=KILL", "--batch"),
        marks=[case("the batch script is killed"), pytest.mark.long],
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("words", ENDS)
def test_a_job_ends_by_a_signal_as_without_us(
    healthy_cluster: Cluster, words: tuple[str, ...]
) -> None:
    cluster = healthy_cluster
    _, without = cancelled(cluster, "off", *words)
    job_id, with_us = cancelled(cluster, "prom", *words)
    assert with_us == without
    assert states(cluster, job_id) == [KILLED] * RANKS


@case("a step that fails")
def test_a_failing_steps_exit_code_is_its_own(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    line = f"srun sh -c '{jobs.standin(cluster, *SHORT)}; exit 9'"
    job_id = jobs.submit(cluster, *TWO_NODES, script=line)
    assert jobs.finish(cluster, job_id) == "FAILED"
    assert cluster.job(job_id).exit_code == "9:0"
    assert len(states(cluster, job_id)) == RANKS
    assert KILLED not in states(cluster, job_id)


@case("cancelled while the prolog runs")
def test_a_job_cancelled_in_its_prolog_leaves_nothing(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    begun, barrier = (cluster.layout.root / "log" / f"slow.{word}" for word in ("begun", "go"))
    wait = f"while [ ! -e {barrier} ]; do /bin/sleep 0.1; done"
    cluster.add_hook("prolog", "60-slow.sh", f"#!/bin/sh\n: >{begun}\n{wait}\n")
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *SHORT)}")
    wait_until(begun.exists, 10, "the prolog runs")
    cluster.run_as("root", ["scancel", str(job_id)])
    barrier.touch()
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert jobs.summaries(cluster, job_id) == {}
    cluster.wait_idle()


@pytest.mark.long
@case("Ctrl-C in srun")
def test_an_interrupted_srun_leaves_its_report(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    command = ["srun", *TWO_NODES, "sh", "-c", f"exec {jobs.standin(cluster, *ENDLESS)}"]
    srun = cluster.popen_as(JOB_USER, command, env=jobs.fake_gpus(cluster))
    try:
        wait_until(lambda: len(jobs.tasks(cluster)) == RANKS, 15, "its tasks run")
        (job_id,) = map(int, cluster.run_as("root", ["squeue", "-h", "-o%A"]).stdout.split())
        jobs.wait_for_operations(cluster, job_id, RANKS)
        srun.send_signal(signal.SIGINT)  # it says what runs; the second within a second ends it
        said = srun.stderr
        assert said is not None
        wait_until(lambda: "interrupt" in said.readline(), 10, "srun has heard it")
        srun.send_signal(signal.SIGINT)
        srun.wait(20)
    finally:
        srun.kill()
        srun.communicate()
    assert jobs.finish(cluster, job_id) in ("CANCELLED", "FAILED")
    assert len(states(cluster, job_id)) == RANKS


@pytest.mark.long
@case("an array leaves nothing")
def test_tasks_of_an_array_have_a_report_each_and_leave_nothing(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"srun {jobs.standin(cluster, *SHORT)}"
    first = jobs.submit(cluster, *SMALL, "--array=0-2", script=script)
    queue = ["squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING"]
    wait_until(lambda: not cluster.run_as("root", queue).stdout, 30, "the array's end", 0.1)
    found = cluster.run_as("root", ["scontrol", "--oneliner", "show", "job", str(first)]).stdout
    ids = [int(line.split()[0].removeprefix("JobId=")) for line in found.splitlines()]
    assert len(ids) == 3
    for job_id in ids:
        assert jobs.finish(cluster, job_id) == "COMPLETED"
        assert jobs.summaries(cluster, job_id).keys() == {"n1"}
        assert len(states(cluster, job_id)) == 2


HET = """\
#SBATCH --nccl-inspector=prom -N1 --ntasks=2 --gpus-per-task=1 --nodelist=n1
#SBATCH hetjob
#SBATCH -N1 --ntasks=2 --gpus-per-task=1 --nodelist=n2
"""


@pytest.mark.long
@case("a het job is cancelled")
def test_components_of_a_cancelled_het_job_leave_nothing(healthy_cluster: Cluster) -> None:
    cluster = healthy_cluster
    script = f"{HET}srun --het-group=0,1 {jobs.standin(cluster, *ENDLESS)}"
    leader = jobs.submit(cluster, script=script)
    wait_until(lambda: len(jobs.tasks(cluster)) == RANKS, 60, "both components run", 0.1)
    jobs.wait_for_operations(cluster, leader, RANKS)
    cluster.run_as("root", ["scancel", str(leader)])
    for job_id, node in ((leader, "n1"), (leader + 1, "n2")):
        assert jobs.finish(cluster, job_id) == "CANCELLED"
        assert jobs.summaries(cluster, job_id).keys() == {node}
        assert states(cluster, job_id) == [KILLED] * 2


# Daemons.


@pytest.mark.long
@case("kill -9 of a step's slurmstepd")
def test_a_step_whose_slurmstepd_is_killed_costs_no_later_job_anything(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    jobs.wait_for_operations(cluster, job_id, 2)
    stepd(cluster, job_id, "0").send(signal.SIGKILL)
    # Nothing here ends a dead step's tasks: no cgroups. And nobody says so to srun.
    orphans = jobs.tasks(cluster)
    assert len(orphans) == 2
    cluster.run_as("root", ["scancel", str(job_id)])
    state = cluster.wait_for_job(job_id).state
    assert state in ("CANCELLED", "FAILED")
    for process in orphans:
        process.send(signal.SIGKILL)
    jobs.wait_until_clean(cluster, job_id)
    assert states(cluster, job_id) == [KILLED] * 2
    assert_next_job_is_measured(cluster)


def series_are_there(node: Node, job_id: int) -> bool:
    return f'slurm_job_id="{job_id}"' in node.metrics()


@case("kill -9 of the agent while a job runs")
def test_an_agent_that_comes_back_publishes_the_running_job_again(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    wait_until(lambda: series_are_there(node, job_id), 15, "the job's series", 0.1)
    assert node.stop("agent", signal.SIGKILL)
    # What systemd's unit does after a killed agent, with ExecStopPost.
    node.run(["find", "/run/nccl-inspector/prom", "-name", "*.prom", "-delete"])
    assert not series_are_there(node, job_id)
    assert node.start_agent()
    wait_until(lambda: series_are_there(node, job_id), 10, "its series again", 0.1)
    assert cluster.job_state(job_id) == "RUNNING"
    cluster.run_as("root", ["scancel", str(job_id)])
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert states(cluster, job_id) == [KILLED] * 2


@pytest.mark.long
@case("kill -9 of slurmd, restarted with the job running")
def test_a_slurmd_that_comes_back_does_not_disturb_the_measurement(
    healthy_cluster: Cluster,
) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    script = f"srun {jobs.standin(cluster, '--steps', '400', *jobs.QUICK)}"
    job_id = jobs.submit(cluster, *ONE_NODE, script=script)
    jobs.wait_for_operations(cluster, job_id, 2)
    tasks = jobs.tasks(cluster)
    assert node.stop("slurmd", signal.SIGKILL)
    wait_until(lambda: series_are_there(node, job_id), 10, "its series without slurmd", 0.1)
    node.start_slurmd()
    wait_until(lambda: node.state().flags == {"MIXED"}, 15, "slurmd is back", 0.1)
    assert all(task.alive() for task in tasks), "the job went on meanwhile"
    assert jobs.finish(cluster, job_id, 60) == "COMPLETED"
    assert_nothing_missing(jobs.report(cluster, job_id))


@pytest.mark.long
@case("slurmd is down when the job ends")
def test_an_epilog_that_slurmd_runs_only_when_it_is_back_cleans_up(
    healthy_cluster: Cluster,
) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *ENDLESS)}")
    jobs.wait_for_operations(cluster, job_id, 2)
    assert node.stop("slurmd")
    for task in jobs.tasks(cluster):
        task.send(signal.SIGKILL)
    wait_until(lambda: not series_are_there(node, job_id), 10, "the dead ranks' series go", 0.1)
    assert jobs.traces(cluster, job_id), "nobody has ended it"
    node.start_slurmd()
    assert jobs.finish(cluster, job_id) == "FAILED"
    assert states(cluster, job_id) == [KILLED] * 2


@pytest.mark.long
@case("slurmctld restarted with the job running")
def test_a_controller_that_comes_back_finds_the_job_measured(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    job_id = start(cluster, *TWO_NODES)
    with controller_down(cluster):
        wait_until(lambda: series_are_there(node, job_id), 10, "series without slurmctld", 0.1)
    assert cluster.job_state(job_id) == "RUNNING"
    cluster.run_as("root", ["scancel", str(job_id)])
    assert jobs.finish(cluster, job_id) == "CANCELLED"
    assert states(cluster, job_id) == [KILLED] * RANKS


@pytest.mark.long
@case("slurmctld is down when the job ends")
def test_a_job_that_ends_without_a_controller_is_collected_when_it_is_back(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    script = f"srun {jobs.standin(cluster, *ENDLESS)}; exit 7"
    job_id = jobs.submit(cluster, *TWO_NODES, script=script)
    jobs.wait_for_operations(cluster, job_id, RANKS)
    with controller_down(cluster):
        for task in jobs.tasks(cluster):
            task.send(signal.SIGKILL)
        wait_until(lambda: not jobs.tasks(cluster), 10, "no task")
        assert jobs.traces(cluster, job_id)
    assert jobs.finish(cluster, job_id, 90) == "FAILED"
    assert cluster.job(job_id).exit_code == "7:0"
    assert states(cluster, job_id) == [KILLED] * RANKS


# The agent never comes.


@pytest.mark.long
@case("no agent: `nccl-inspector collect` from a timer")
def test_without_an_agent_the_timers_collection_does_it_all(healthy_cluster: Cluster) -> None:
    cluster, node = healthy_cluster, healthy_cluster.node("n1")
    assert node.stop("agent")
    job_id = jobs.submit(cluster, *ONE_NODE, script=f"srun {jobs.standin(cluster, *SHORT)}")
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    cluster.wait_idle()
    assert jobs.traces(cluster, job_id)
    done = node.run(["nccl-inspector", "collect"])
    assert (done.returncode, done.stderr) == (0, "")
    assert jobs.traces(cluster, job_id) == []
    assert_nothing_missing(jobs.report(cluster, job_id))
