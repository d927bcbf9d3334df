# SPDX-License-Identifier: Apache-2.0
"""A node of the sandbox that is lost with its jobs, and one that boots again."""

import signal

from tests.sandbox import Cluster
from tests.sandbox.processes import members
from tests.support.sandbox import jobs

_DAEMONS = ("slurmd", "agent")


def lose(cluster: Cluster, job_id: int, name: str = "n1") -> None:
    """SIGKILL for slurmd, the agent, and all of the job: nothing can clean up."""
    node = cluster.node(name)
    for daemon in _DAEMONS:
        assert node.stop(daemon, signal.SIGKILL)
    mark = f"SLURM_JOB_ID={job_id}".encode()
    for process, machine in members(cluster.layout).items():
        is_step = jobs.title(process).startswith(f"slurmstepd: [{job_id}.".encode())
        if machine == name and (is_step or mark in jobs.environment(process)):
            process.send(signal.SIGKILL)


def give_up(cluster: Cluster, name: str = "n1") -> None:
    """What slurmctld does by itself after SlurmdTimeout, five minutes."""
    words = ["scontrol", "update", f"nodename={name}", "state=down", "reason=lost"]
    assert cluster.run_as("root", words).returncode == 0


def boot(cluster: Cluster, name: str = "n1") -> None:
    """Start the daemons as a booting node does; -b: slurmd says that it was a reboot."""
    node, conf = cluster.node(name), str(cluster.layout.slurm_conf)
    node.start("slurmd", ["slurmd", "-D", "-b", "-N", name, "-f", conf])
    assert node.start_agent()
