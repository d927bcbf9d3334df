"""Jobs of the stand-in on the sandbox cluster: start them, find their processes and traces."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.summary.codec import NodeSummary, decode
from tests.sandbox import JOB_USER, Cluster, Node, wait_until
from tests.sandbox.layout import REPO
from tests.sandbox.processes import Process, members

STANDIN = "nccl-standin"
# Small and quick: some 15 operations a second of a rank, at little cost.
QUICK = ("--sizes", "64K", "--comms", "world", "--ops", "allreduce,allgather,reducescatter")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One submission: a job, or an array of them. `work`: standin, or another program's name."""

    name: str
    work: str
    mode: str  # empty: no option
    nodes: int
    tasks_per_node: int
    tasks_of_array: int  # 1: no array
    steps: int  # of the stand-in

    def words(self) -> list[str]:
        """Slurm's options and ours."""
        words = [f"--job-name={self.name}", f"-N{self.nodes}"]
        words += [f"--ntasks-per-node={self.tasks_per_node}", "--gpus-per-task=1"]
        words += [f"--nccl-inspector={self.mode}"] if self.mode else []
        return words + ([f"--array=1-{self.tasks_of_array}"] if self.tasks_of_array > 1 else [])


def fake_gpus(cluster: Cluster) -> dict[str, str]:
    """What makes the stand-in see the node's GPUs."""
    return {"NCCL_STANDIN_CUDA": str(cluster.tool("libcuda.so.1"))}


def standin(cluster: Cluster, *words: str) -> str:
    """The stand-in's command line; it logs into `oplog.<job>` of the working directory."""
    line = shlex.join([str(cluster.tool(STANDIN)), *words])
    return f"{line} --log oplog.$SLURM_JOB_ID"


def report(cluster: Cluster, job_id: int, *words: str) -> str:
    """The words of a job's report, one blank between two, wherever its lines are broken."""
    return " ".join(cluster.report(job_id, *words).stdout.split())


def submit(
    cluster: Cluster,
    *words: str,
    script: str,
    user: str = JOB_USER,
    env: Mapping[str, str] | None = None,
) -> int:
    """Submit a batch script (without its first line) whose output goes to `<job>.out`."""
    return cluster.sbatch(
        "--output=%j.out", *words, user=user, script=f"#!/bin/sh\n{script}\n",
        env=fake_gpus(cluster) | dict(env or {}),
    )  # fmt: skip


def output(cluster: Cluster, job_id: int, user: str = JOB_USER) -> str:
    """What the batch script has printed so far."""
    path = cluster.home(user) / f"{job_id}.out"
    return path.read_text() if path.exists() else ""


def oplog(cluster: Cluster, job_id: int, user: str = JOB_USER) -> Path:
    """The directory of the application's own log."""
    return cluster.home(user) / f"oplog.{job_id}"


def wait_for_operations(cluster: Cluster, job_id: int, ranks: int, least: int = 10) -> None:
    """Wait until every rank has logged that many operations."""
    paths = [oplog(cluster, job_id) / f"{rank}.jsonl" for rank in range(ranks)]
    wait_until(
        lambda: all(path.exists() and path.read_text().count("\n") >= least for path in paths),
        15, f"{least} operations of every rank of job {job_id}",
    )  # fmt: skip


def set_stub(cluster: Cluster, kinds: tuple[str, ...] = ("prolog", "epilog")) -> None:
    """packaging/nccl-inspector-hook as this cluster's Prolog and Epilog."""
    text = (REPO / "packaging" / "nccl-inspector-hook").read_text()
    for kind in kinds:
        cluster.add_hook(kind, "50-stub", text)


def tasks(cluster: Cluster) -> list[Process]:
    """The stand-in's processes on all nodes."""
    return [process for process in members(cluster.layout) if _is_standin(process)]


def tasks_of(cluster: Cluster, job_id: int) -> list[Process]:
    """The stand-in's processes of one job."""
    mark = f"SLURM_JOB_ID={job_id}".encode()
    return [one for one in tasks(cluster) if mark in environment(one)]


def environment(process: Process) -> list[bytes]:
    """Its variables as they were at its start, none when it is gone."""
    return _read(process, "environ").split(b"\0")


def title(process: Process) -> bytes:
    """What it says that it is, with its words; empty when it is gone."""
    return _read(process, "cmdline")


def _read(process: Process, name: str) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/{name}").read_bytes()
    except OSError:  # gone meanwhile
        return b""


def command_line(process: Process) -> str:
    """The first word of a process's command line, what a daemon says there; empty when gone."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.partition(b"\0")[0].decode(errors="replace")


def _is_standin(process: Process) -> bool:
    return _read(process, "comm").decode().strip() == STANDIN


def traces(cluster: Cluster, job_id: int) -> list[str]:
    """Every file of the job in the run directories of all nodes."""
    ours = re.compile(rf"(jobs|ended|prom)/{job_id}([./]|$)")
    return [
        f"{name}:{path}"
        for name, node in cluster.nodes.items()
        for path in node.run_dir_listing()
        if ours.match(path)
    ]


def is_published(node: Node, job_id: int) -> bool:
    """Whether anything that the job's processes say is published, beside the agent's own word."""
    lines = node.metrics().splitlines()
    own = (
        "nccl_inspector_job_processes",
        "nccl_inspector_job_inflight_seconds",
        "nccl_inspector_job_p2p_inflight_seconds",
        "nccl_inspector_job_series_left_out_total",
    )
    return any(f'slurm_job_id="{job_id}"' in line and not line.startswith(own) for line in lines)


def run_dirs_are_empty(cluster: Cluster) -> bool:
    """Whether only the directories and the agents' own metrics are there, of no job anything."""
    own = [
        "control/",
        "control/agent.json",
        "control/at_work",
        "ended/",
        "jobs/",
        "prom/",
        "prom/nccl_inspector_agent.prom",
    ]
    return all(node.run_dir_listing() == own for node in cluster.nodes.values())


def wait_until_clean(cluster: Cluster, job_id: int) -> None:
    """Wait until nothing of the job is left on any node: then its summaries are handed over."""
    wait_until(lambda: not traces(cluster, job_id), 15, f"no file of job {job_id} on any node", 0.1)


def finish(cluster: Cluster, job_id: int, timeout: float = 30) -> str:
    """Wait for the job's end and for its collection; the state it ended in."""
    state = cluster.wait_for_job(job_id, timeout).state
    wait_until_clean(cluster, job_id)
    return state


def summaries(cluster: Cluster, job_id: int) -> dict[str, NodeSummary]:
    """The node summaries handed over, by node."""
    found = (cluster.layout.reports / str(job_id)).glob("*.nodesummary")
    return {path.name.split(".")[0]: decode(path.read_bytes()) for path in found}


def slurmd_lines(cluster: Cluster, node: str, job_id: int) -> list[str]:
    """What the SPANK plugin says of the job in slurmd's log."""
    marks = "nccl-inspector: ", f"job {job_id}: "
    log = cluster.node(node).slurmd_log()
    return [line for line in log.splitlines() if all(mark in line for mark in marks)]
