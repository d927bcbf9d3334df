"""One job with a planted slow rank, watched from its submission to its report."""

import re
from dataclasses import dataclass

from nccl_inspector.model.card import Card
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import NodeSummary
from tests.sandbox import Cluster, NodeState, Sample, wait_until
from tests.support import application_log
from tests.support.sandbox import jobs

RANKS = 8
SLOW_RANK = 5
INTERVAL_S = 2

Task = tuple[str, str]  # node, GPU
Kind = tuple[str, str, int]  # communicator's name, function, size class


@dataclass(frozen=True)
class WatchedJob:
    """What was seen of the job while it ran and after its end."""

    job_id: int
    state: str
    tasks: dict[int, Task]  # by rank: where Slurm put it
    live: list[Sample]  # an instant query while it ran
    joined: list[Sample]
    history: list[Sample]
    left: list[Sample]  # an instant query once it was over
    traces: list[str]
    nodes: dict[str, NodeState]
    summaries: dict[str, NodeSummary]
    card: Card
    text: str
    exit_code: int  # of the command that printed it
    logs: dict[int, dict[Kind, list[application_log.Record]]]  # by rank

    def family(self, name: str) -> list[Sample]:
        """Every sample of a metric that Prometheus took."""
        return [sample for sample in self.history if sample.labels["__name__"] == name]


def tasks_said(text: str) -> dict[int, Task]:
    """Node and physical GPU of every rank, from what the tasks printed of Slurm's variables."""
    found = re.findall(r"^task (\d+) (\w+) (\d+)$", text, re.MULTILINE)
    return {int(rank): (node, f"GPU{minor}") for rank, node, minor in found}


def watch_job(cluster: Cluster) -> WatchedJob:
    """Run the job on an idle cluster, and look all the while."""
    # Longer than between two scrapes, so that Prometheus sees every window.
    cluster.set_conf(interval=f"{INTERVAL_S}s")
    command = jobs.standin(
        cluster, "--steps", "7", "--sizes", "256K,512K", "--slow-rank", f"{SLOW_RANK}:40"
    )
    who = "echo task $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    job_id = jobs.submit(
        cluster, "--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1",
        script=f"srun sh -c '{who}; exec {command}'",
    )  # fmt: skip
    selector = f'{{slurm_job_id="{job_id}"}}'
    counter = f'nccl_collective_operations_total{{slurm_job_id="{job_id}"}}'

    def ranks() -> set[str]:
        found = (sample.labels for sample in cluster.query(counter))
        return {labels["rank"] for labels in found if labels["comm_name"] == "standin_world"}

    wait_until(lambda: len(ranks()) == RANKS, 15, "all ranks are in Prometheus", 0.2)
    live = cluster.query(selector)
    info = "on (slurm_job_id, node) group_left (user, partition) nccl_inspector_job_info"
    joined = cluster.query(f"sum by (slurm_job_id, node) ({counter}) * {info}")
    state = jobs.finish(cluster, job_id)
    wait_until(lambda: not cluster.query(selector), 10, "the job's series are stale", 0.1)
    cluster.wait_idle()
    card = build_card(load_summaries(job_id, cluster.layout.reports, None))
    done = cluster.report(job_id)
    directory = jobs.oplog(cluster, job_id)
    return WatchedJob(
        job_id=job_id,
        state=state,
        tasks=tasks_said(jobs.output(cluster, job_id)),
        live=live,
        joined=joined,
        history=cluster.history(selector, 120),
        left=cluster.query(selector),
        traces=jobs.traces(cluster, job_id),
        nodes=cluster.node_states(),
        summaries=jobs.summaries(cluster, job_id),
        card=card,
        text=done.stdout,
        exit_code=done.returncode,
        logs={
            rank: application_log.by_kind(application_log.read_log(directory, rank))
            for rank in range(RANKS)
        },
    )
