"""`nccl-inspector top` of real jobs: a slow rank, a rank that hangs, one stopped, one killed.

The jobs are run once; each test looks at one thing of what was seen.
"""

import json
import re
import signal
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.sandbox.machine import as_user
from tests.sandbox.node import agent_program
from tests.sandbox.processes import Process
from tests.support import application_log
from tests.support.sandbox import jobs

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

WORDS = ("--nccl-inspector=prom", "--mem=500", "--ntasks-per-node=2", "--gpus-per-task=1")
ENDLESS = ("--seconds", "200", "--timeout", "0")
SPAN_S = 8
STOPPED_S = 15
View = dict[str, Any]


@dataclass(frozen=True)
class Sight:
    """What was seen while all of them ran, as JSON; the tables by the job's name."""

    ids: dict[str, int]
    views: dict[str, View]  # of each job, on a node of its
    cluster: View  # by Prometheus
    slow: View  # the same, of the slow job and its ranks
    table: str
    operations: dict[int, int]  # of the slow job in the rates' span, by rank, as the job logged
    users: View  # by the jobs' user on n1, who gives no number
    series: dict[tuple[str, str], float]  # of the agents: (job's name, state or "inflight")

    def job(self, name: str) -> View:
        """A job in the view of its node."""
        found: View = self.views[name]["jobs"][0]
        return found


def top(cluster: Cluster, node: str, *words: str) -> str:
    """What the command prints on a node."""
    done = cluster.node(node).run([str(agent_program(cluster.layout)), "top", *words])
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(cluster: Cluster, *words: str, where: tuple[str, ...], mode: str = "prom") -> int:
    own = (f"--nccl-inspector={mode}", *WORDS[1:], *where)
    # The allocation stays when the step ends: what died is to be seen.
    script = f"srun {jobs.standin(cluster, *words, *ENDLESS)}; sleep 200"
    return jobs.submit(cluster, *own, script=script)


def on_node(cluster: Cluster, job_id: int, node: str) -> Process:
    """A task of a job on a node."""
    mark = f"SLURMD_NODENAME={node}".encode()
    return next(one for one in jobs.tasks_of(cluster, job_id) if mark in jobs.environment(one))


def logged_in(cluster: Cluster, job_id: int, span_s: float) -> dict[int, int]:
    """How many operations the job has logged in the last seconds by its own clock, by rank."""
    found = {}
    for rank in range(8):
        ends_ns = [
            one["stop_ns"] for one in application_log.read_log(jobs.oplog(cluster, job_id), rank)
        ]
        found[rank] = sum(end_ns > max(ends_ns) - span_s * 1e9 for end_ns in ends_ns)
    return found


def agents_series(cluster: Cluster, ids: dict[str, int]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for name, job_id in ids.items():
        own = f'{{slurm_job_id="{job_id}"}}'
        for sample in cluster.query(f"sum by (state) (nccl_inspector_job_processes{own})"):
            found[name, sample.labels["state"]] = sample.value
        for sample in cluster.query(f"max(nccl_inspector_job_inflight_seconds{own})"):
            found[name, "inflight"] = sample.value
    return found


@pytest.fixture(scope="module")
def sight(shared_cluster: Cluster) -> Sight:
    try:
        return see(shared_cluster)
    finally:
        shared_cluster.reset()


def see(cluster: Cluster) -> Sight:
    """Run the jobs side by side and look."""
    quick = ("--sizes", "64K", "--comms", "world", "--ops", "allreduce")
    ids = {
        "slow": start(cluster, "--sizes", "256K", "--slow-rank", "5:40", where=("-N4",)),
        "hang": start(cluster, *quick, "--hang", "1:20", where=("-N1", "-wn1"), mode="report"),
        # Whenever its process is stopped, the peer goes on to an operation and waits there.
        "stopped": start(cluster, *quick, "--no-barrier", where=("-N1", "-wn2")),
        "killed": start(cluster, *quick, where=("-N1", "-wn4")),
    }
    for job_id in ids.values():
        cluster.wait_for_state(job_id, "RUNNING")
    for name in ("stopped", "killed"):
        jobs.wait_for_operations(cluster, ids[name], 2)
    jobs.wait_for_operations(cluster, ids["slow"], 8)
    wait_until(lambda: jobs.is_published(cluster.node("n4"), ids["killed"]), 15, "its series", 0.1)
    on_node(cluster, ids["killed"], "n4").send(signal.SIGKILL)
    stopped = on_node(cluster, ids["stopped"], "n2")
    stopped.send(signal.SIGSTOP)
    try:
        own = f'{{slurm_job_id="{ids["stopped"]}",state="stopped"}}'
        wait_until(
            lambda: bool(cluster.query(f"nccl_inspector_job_processes{own} == 1")),
            STOPPED_S + 15, "the agent says that a process has stopped", 0.5,
        )  # fmt: skip
        return look(cluster, ids)
    finally:
        stopped.send(signal.SIGCONT)


def look(cluster: Cluster, ids: dict[str, int]) -> Sight:
    by_json = ("--interval", str(SPAN_S), "--json")
    slow = json.loads(top(cluster, "n3", str(ids["slow"]), *by_json))
    operations = logged_in(cluster, ids["slow"], slow["span_s"])
    views = {"slow": slow}
    for name, node in (("hang", "n1"), ("stopped", "n2"), ("killed", "n4")):
        views[name] = json.loads(top(cluster, node, str(ids[name]), "--interval", "0.5", "--json"))
    users = cluster.node("n1").run(
        [*as_user(JOB_USER), str(agent_program(cluster.layout)), "top", "--once", "--json"]
    )
    asked = ("--prometheus", cluster.layout.prometheus_url(), "--window", "10s", "--json")
    return Sight(
        ids=ids,
        views=views,
        users=json.loads(users.stdout),
        cluster=json.loads(top(cluster, "n1", *asked)),
        slow=json.loads(top(cluster, "n1", str(ids["slow"]), *asked)),
        table=top(cluster, "n1", "--interval", "0.5"),
        operations=operations,
        series=agents_series(cluster, ids),
    )


def test_operations_a_second_are_those_of_the_jobs_own_log(sight: Sight) -> None:
    for rank in sight.job("slow")["ranks"]:
        number = int(rank["name"].split()[1])
        logged = sight.operations[number] / sight.views["slow"]["span_s"]
        assert rank["flow"]["operations_per_s"] == pytest.approx(logged, rel=0.1)


def test_the_slow_rank_is_named_on_its_node(sight: Sight) -> None:
    (trouble,) = sight.job("slow")["troubles"]
    assert trouble["words"].startswith("rank 5 (n3, GPU")
    late_ms = re.search(r"comes late by ([0-9.]+) ms", trouble["words"])
    assert late_ms
    assert float(late_ms[1]) == pytest.approx(40, rel=0.15)


def test_the_cluster_waits_for_the_slow_rank(sight: Sight) -> None:
    (job,) = sight.slow["jobs"]
    # How much depends on the machine's speed, which differs between the seconds that Prometheus
    # looked at and those in which the boxes of a node with the slow rank were looked at.
    for flow in (job["flow"], sight.job("slow")["flow"]):
        assert 0.3 < flow["waiting_s"] / flow["waitable_s"] < 0.95
    first = job["ranks"][0]
    assert (first["name"], first["node"]) == ("rank 5", "n3")
    assert "it may be late" in first["troubles"][0]["words"]
    assert [rank["name"] for rank in job["ranks"] if rank["troubles"]] == ["rank 5"]


def test_both_sources_see_the_same_bandwidth(sight: Sight) -> None:
    def gbs(rank: View) -> dict[str, float]:
        flow = rank["flow"]
        return {word: flow["bus_bytes"][word] / busy for word, busy in flow["busy_s"].items()}

    boxes = {rank["name"]: gbs(rank) for rank in sight.job("slow")["ranks"]}
    series = {rank["name"]: gbs(rank) for rank in sight.slow["jobs"][0]["ranks"]}
    ratios: dict[tuple[str, str], float] = {}
    for name, by_class in boxes.items():
        assert set(by_class) == set(series[name]) == {"local", "net", "mixed", "p2p"}
        ratios |= {(name, word): series[name][word] / by_class[word] for word in by_class}
    # They look at different seconds, in which all may be faster: each by as much.
    middle = median(ratios.values())
    assert middle == pytest.approx(1, rel=0.5)
    assert ratios == pytest.approx(dict.fromkeys(ratios, middle), rel=0.35)


def test_a_hang_is_aged_from_the_boxes_in_mode_report_too(sight: Sight) -> None:
    assert sight.job("hang")["oldest_s"] > 15
    assert not [name for name, _ in sight.series if name == "hang"]
    assert {rank["name"]: bool(rank["oldest"]) for rank in sight.job("hang")["ranks"]} == {
        "rank 0": True, "rank 1": False,
    }  # fmt: skip


def test_a_stopped_and_a_killed_rank_are_told_apart(sight: Sight) -> None:
    assert (sight.job("stopped")["alive"], sight.job("stopped")["expected"]) == (1, 2)
    assert "has not beaten for" in sight.job("stopped")["troubles"][0]["words"]
    assert "died without finalizing" in sight.job("killed")["troubles"][0]["words"]
    assert sight.series["stopped", "stopped"] == 1
    assert sight.series["stopped", "lost"] == 0
    assert sight.series["stopped", "inflight"] > STOPPED_S - 5, "its peer waits for it"
    assert sight.series["killed", "lost"] >= 1
    assert sight.series["slow", "running"] == 8
    assert sight.series["slow", "lost"] == sight.series["slow", "stopped"] == 0


def test_a_user_sees_his_jobs_of_each_mode_without_their_numbers(sight: Sight) -> None:
    assert {job["id"] for job in sight.users["jobs"]} == {sight.ids["slow"], sight.ids["hang"]}
    # The sandbox's nodes share one /proc, so processes of jobs on other nodes are seen here, too.
    elsewhere = tuple(f"job {sight.ids[name]}: it does not run on this node" for name in
                      ("stopped", "killed"))  # fmt: skip
    assert [text for text in sight.users["unread"] if not text.startswith(elsewhere)] == []


def test_the_worst_come_first(sight: Sight) -> None:
    order = [job["id"] for job in sight.cluster["jobs"]]
    assert order[:2] == [sight.ids["killed"], sight.ids["stopped"]]
    assert sorted(order) == sorted(set(sight.ids.values()) - {sight.ids["hang"]})


def test_the_table_has_a_row_for_each_job_of_the_node(sight: Sight) -> None:
    first = (line.split()[0] for line in sight.table.splitlines() if line.strip())
    rows = {word for word in first if word.isdigit()}
    assert rows == {str(sight.ids["slow"]), str(sight.ids["hang"])}
