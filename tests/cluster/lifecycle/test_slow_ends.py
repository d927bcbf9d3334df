"""Ends that take Slurm its time, side by side: the time limit, requeues, a dead batch step."""

import signal
from collections import Counter
from dataclasses import dataclass, field

import pytest

from nccl_inspector.model.process import FUNCS, KILLED
from nccl_inspector.summary.codec import NodeSummary, decode
from tests.sandbox import Cluster, wait_until
from tests.sandbox.processes import Process
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_nothing_missing
from tests.support.sandbox.small_jobs import ENDLESS, stepd

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LIFECYCLE = "Lifecycle"
# Attempts that do different things: a number of the other one is seen at once.
FIRST = ("--steps", "100000", "--sizes", "64K", "--comms", "world", "--ops", "allreduce")
SECOND = ("--steps", "7", "--sizes", "128K", "--comms", "world", "--ops", "allgather")
WORDS = ("--nccl-inspector=prom", "-N1", "--ntasks=2", "--gpus-per-task=1", "--mem=500")
RANKS = 2


@dataclass
class Ends:
    """What was seen of each job, by the name of its case."""

    ids: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    held: list[NodeSummary] = field(default_factory=list)  # while the requeued job was held
    after_kill: str = ""  # state of the job whose batch step's slurmstepd was killed
    orphans: list[Process] = field(default_factory=list)
    orphans_series: bool = False  # while the orphans live they are measured
    drained: list[str] = field(default_factory=list)


def attempts(cluster: Cluster, job_id: int) -> dict[int, NodeSummary]:
    """The summaries of a job on one node, by restart count."""
    found = (cluster.layout.reports / str(job_id)).glob("*.nodesummary")
    made = [decode(path.read_bytes()) for path in found]
    return {summary.head.restart: summary for summary in made}


def functions(summary: NodeSummary) -> Counter[str]:
    """Operations by function, of all processes together."""
    counts = Counter[str]()
    for process in summary.processes:
        for key in process.keys:
            counts[FUNCS[key.func]] += key.ops
    return counts


def twice(cluster: Cluster, node: str) -> int:
    """A job whose first attempt is endless and whose second is short."""
    first, second = (f"srun {jobs.standin(cluster, *words)}" for words in (FIRST, SECOND))
    script = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {first}; else {second}; fi'
    return jobs.submit(cluster, "--requeue", *WORDS, f"--nodelist={node}", script=script)


@pytest.fixture(scope="module")
def ends(shared_cluster: Cluster) -> Ends:
    """All jobs started at once and run to their ends."""
    cluster, seen = shared_cluster, Ends()
    cluster.reset()
    try:
        _run(cluster, seen)
    finally:
        for process in seen.orphans:
            process.send(signal.SIGKILL)
        cluster.reset()
    return seen


def _run(cluster: Cluster, seen: Ends) -> None:
    endless = f"srun {jobs.standin(cluster, *ENDLESS)}"
    ids = seen.ids
    ids["limit"] = jobs.submit(cluster, *WORDS, "--nodelist=n4", "--time=1", script=endless)
    ids["dead"] = jobs.submit(cluster, *WORDS, "--nodelist=n1", script=endless)
    ids["requeued"], ids["held"] = twice(cluster, "n2"), twice(cluster, "n3")
    for job_id in ids.values():
        jobs.wait_for_operations(cluster, job_id, RANKS)
    root = "root"
    cluster.run_as(root, ["scontrol", "requeue", str(ids["requeued"])])
    cluster.run_as(root, ["scontrol", "requeuehold", str(ids["held"])])
    _kill_batch_step(cluster, seen)
    jobs.wait_until_clean(cluster, ids["held"])
    wait_until(lambda: cluster.job_state(ids["held"]) == "PENDING", 30, "it is held", 0.1)
    seen.held = list(attempts(cluster, ids["held"]).values())
    cluster.run_as(root, ["scontrol", "release", str(ids["held"])])
    for name in ("requeued", "held"):
        wait_until(lambda: cluster.job(ids[name]).restarts == 1, 150, "its second start", 0.1)  # noqa: B023
        seen.states[name] = cluster.wait_for_job(ids[name], 60).state
    seen.after_kill = cluster.job_state(ids["dead"])
    mark = f'slurm_job_id="{ids["dead"]}"'
    seen.orphans_series = mark in cluster.node("n1").metrics()
    cluster.run_as(root, ["scancel", str(ids["dead"])])
    seen.states["dead"] = cluster.wait_for_job(ids["dead"], 90).state
    for process in seen.orphans:
        process.send(signal.SIGKILL)
    seen.states["limit"] = cluster.wait_for_job(ids["limit"], 150).state
    for name, job_id in ids.items():
        jobs.wait_until_clean(cluster, job_id)
        seen.restarts[name] = cluster.job(job_id).restarts
    seen.drained = [name for name, state in cluster.node_states().items() if state.drained]


def _kill_batch_step(cluster: Cluster, seen: Ends) -> None:
    """SIGKILL for the slurmstepd of a batch step; its children go on."""
    job_id = seen.ids["dead"]
    seen.orphans = jobs.tasks_of(cluster, job_id)
    stepd(cluster, job_id, "batch").send(signal.SIGKILL)


def test_no_node_was_drained(ends: Ends) -> None:
    assert ends.drained == []


@pytest.mark.case(LIFECYCLE, "the time limit is reached")
def test_a_job_at_its_time_limit_has_its_report(shared_cluster: Cluster, ends: Ends) -> None:
    assert ends.states["limit"] == "TIMEOUT"
    (summary,) = jobs.summaries(shared_cluster, ends.ids["limit"]).values()
    assert [process.facts.state for process in summary.processes] == [KILLED] * RANKS
    assert summary.head.end - summary.head.start >= 60
    assert "did not end in order" in jobs.report(shared_cluster, ends.ids["limit"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("requeued", marks=pytest.mark.case(
            LIFECYCLE, "requeued: two attempts, nothing mixed")),
        pytest.param("held", marks=pytest.mark.case(
            LIFECYCLE, "requeued and held, then released: two attempts, nothing mixed")),
    ],
)  # fmt: skip
def test_each_attempt_has_its_own_numbers(shared_cluster: Cluster, ends: Ends, name: str) -> None:
    assert (ends.states[name], ends.restarts[name]) == ("COMPLETED", 1)
    made = attempts(shared_cluster, ends.ids[name])
    assert made.keys() == {0, 1}
    assert functions(made[0]).keys() == {"AllReduce"}
    assert functions(made[1]) == {"AllGather": 7 * RANKS}
    assert {process.facts.state for process in made[0].processes} == {KILLED}
    assert {process.facts.state for process in made[1].processes}.isdisjoint({KILLED})
    assert made[0].head.end <= made[1].head.start
    first, second = (
        jobs.report(shared_cluster, ends.ids[name], "--attempt", number) for number in "01"
    )
    assert "did not end in order" in first
    assert_nothing_missing(second)


@pytest.mark.case(LIFECYCLE, "requeued and held, then released: two attempts, nothing mixed")
def test_a_held_jobs_first_attempt_is_collected_while_it_waits(ends: Ends) -> None:
    (summary,) = ends.held
    assert summary.head.restart == 0
    assert len(summary.processes) == RANKS


@pytest.mark.case(LIFECYCLE, "kill -9 of the batch step's slurmstepd")
def test_a_job_without_its_batch_step_is_measured_until_it_is_cancelled(
    shared_cluster: Cluster, ends: Ends
) -> None:
    assert ends.after_kill == "RUNNING", "Slurm does not notice"
    assert ends.orphans_series, "its tasks go on, and so does their measurement"
    assert ends.states["dead"] == "CANCELLED"
    (summary,) = jobs.summaries(shared_cluster, ends.ids["dead"]).values()
    assert len(summary.processes) == RANKS
