# SPDX-License-Identifier: Apache-2.0
"""Small jobs that end at once or never, and what the cluster does to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sandbox import Cluster, wait_until
from tests.sandbox.processes import Process, members
from tests.sandbox.product import HOOK
from tests.support.sandbox import jobs

ENDLESS = ("--steps", "100000", *jobs.QUICK)
SHORT = ("--steps", "3", *jobs.QUICK)
TWO_NODES = ("--nccl-inspector=prom", "-N2", "--ntasks-per-node=2", "--gpus-per-task=1")
ONE_NODE = ("--nccl-inspector=prom", "--nodelist=n1", "--ntasks=2", "--gpus-per-task=1")
SMALL = (*ONE_NODE, "--mem=1000")
# Half a node at most, so that two jobs fit.
SHARED = ("--nccl-inspector=prom", "--nodelist=n1", "--mem=500", "--gpus-per-task=1")
RANKS = 4  # of a job on two nodes


def start(cluster: Cluster, *words: str, env: dict[str, str] | None = None) -> int:
    """An endless job with some operations behind it."""
    job_id = jobs.submit(cluster, *words, script=f"srun {jobs.standin(cluster, *ENDLESS)}", env=env)
    jobs.wait_for_operations(cluster, job_id, RANKS)
    return job_id


def run(cluster: Cluster, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """A short job to its end, and the state that it ended in."""
    job_id = jobs.submit(cluster, *words, script=f"srun {jobs.standin(cluster, *SHORT)}", env=env)
    return job_id, jobs.finish(cluster, job_id)


def hook_script(cluster: Cluster, kind: str, into: Path) -> str:
    """Run the product's hook and note its exit status and what it said."""
    path = f"/usr/lib/nccl-inspector/{kind}/{HOOK}"
    assert cluster.node("n1").run(["test", "-x", path]).returncode == 0
    return f"#!/bin/sh\n{{ {path}; echo status $?; }} >{into}-$SLURM_JOB_ID 2>&1\n"


STEPD = "slurmstepd"


def stepd(cluster: Cluster, job_id: int, step: str) -> Process:
    """The slurmstepd of a step on n1, by its title, which may be cut: `[12.bat`."""
    job = f"{STEPD}: [{job_id}.".encode()
    whole = job + f"{step}]".encode()

    def is_it(process: Process) -> bool:
        title = jobs.title(process).partition(b"\0")[0].strip()
        return len(title) > len(job) and whole.startswith(title)

    on_n1 = (one for one, machine in members(cluster.layout).items() if machine == "n1")
    (found,) = filter(is_it, on_n1)
    return found


def take_epilog_away(cluster: Cluster) -> None:
    cluster.take_hook("epilog")


@contextmanager
def controller_down(cluster: Cluster) -> Iterator[None]:
    assert cluster.head.stop("slurmctld")
    try:
        yield
    finally:
        argv = ["slurmctld", "-D", "-f", str(cluster.layout.slurm_conf)]
        cluster.head.start("slurmctld", argv)
        wait_until(
            lambda: cluster.run_as("root", ["scontrol", "ping"]).returncode == 0, 20, "slurmctld"
        )
