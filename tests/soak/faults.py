"""What a soak does to jobs, to Slurm's processes, to the agents and to the service."""

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.sandbox import NODES, Cluster
from tests.sandbox.processes import Process, members
from tests.support.sandbox import jobs
from tests.support.sandbox.controller_site import Service

# How often each is drawn, of those that can be done.
KINDS = {"scancel": 4, "task": 6, "batch": 2, "stepd": 1, "agent": 2, "service": 1, "requeue": 2}
_ORPHAN_S = 2.0  # Slurm waits for the steps of a dead slurmstepd until somebody cancels the job


@dataclass
class Faults:
    """Does them, and remembers to whom."""

    cluster: Cluster
    service: Service
    dice: Random
    counts: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)  # by services that were ended
    of_job: dict[int, set[str]] = field(default_factory=dict)
    _orphaned: dict[int, float] = field(default_factory=dict)  # job: when to cancel it

    def note(self, job_id: int, kind: str) -> None:
        """Remember a fault of a job's."""
        self.of_job.setdefault(job_id, set()).add(kind)

    def settle(self) -> None:
        """Cancel the jobs whose slurmstepd was killed: Slurm would wait for ever."""
        now = time.monotonic()
        for job_id, due_s in [*self._orphaned.items()]:
            if now > due_s:
                self.cluster.run_as("root", ["scancel", str(job_id)])
                self._orphaned[job_id] = now + _ORPHAN_S

    def one(self, running: list[int]) -> None:
        """Do a random one, if there is to whom."""
        kind = self.dice.choices([*KINDS], [*KINDS.values()])[0]
        if self._do(kind, running):
            self.counts[kind] += 1

    def _do(self, kind: str, running: list[int]) -> bool:
        if kind == "agent":
            node = self.cluster.node(self.dice.choice(NODES))
            number = self.dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))
            if number == signal.SIGHUP:
                process = node.process("agent")
                if process:
                    process.send(number)
                return process is not None
            return node.stop("agent", number) and node.start_agent()
        if kind == "service":
            self.said.append(self.service.stop(kill=self.dice.random() < 0.5))
            self.service.start()
            return True
        if not running:
            return False
        job_id = self.dice.choice(running)
        if kind in ("scancel", "requeue"):
            argv = (
                ["scancel", str(job_id)]
                if kind == "scancel"
                else ["scontrol", "requeue", str(job_id)]
            )
            self.note(job_id, kind)
            return self.cluster.run_as("root", argv).returncode == 0
        found = self._processes(kind, job_id)
        if not found:
            return False
        self.note(job_id, kind)
        self.dice.choice(found).send(signal.SIGKILL)
        if kind in ("stepd", "batch"):
            self._orphaned[job_id] = time.monotonic() + _ORPHAN_S
        return True

    def _processes(self, kind: str, job_id: int) -> list[Process]:
        if kind == "task":
            return jobs.tasks_of(self.cluster, job_id)
        every = sorted(members(self.cluster.layout), key=lambda one: one.pid)
        if kind == "stepd":
            mark = f"slurmstepd: [{job_id}."
            return [one for one in every if jobs.command_line(one).startswith(mark)]
        mark = f"SLURM_JOB_ID={job_id}"
        return [
            one for one in every
            if b"slurm_script" in jobs.title(one) and mark.encode() in jobs.environment(one)
        ]  # fmt: skip

    def ended(self, job_id: int) -> None:
        """Forget a job that is over."""
        self._orphaned.pop(job_id, None)
