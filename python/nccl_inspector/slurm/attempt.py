# SPDX-License-Identifier: Apache-2.0
"""Ask `scontrol --oneliner show job <id>` whether a job's attempt on a node has ended, and judge.

The answer contains users' texts (names, comments, with blanks and even newlines). Therefore a field
that occurs twice with different values is not believed. Nor is an end believed while anything else
in the answer says that the job still lives here. In doubt the attempt counts as alive: data that
are kept too long only cost memory, data that are removed too early are lost.
"""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.slurm.command import ANSWER_S, Command, Said
from nccl_inspector.slurm.job_record import ENDED
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

# Back in the queue, or held there: the attempt on this node is over.
_QUEUED = frozenset({"PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_UNKNOWN_ID = "Invalid job id specified"
_FIELD = re.compile(r"(?:^|\s)(JobState|NodeList|Restarts)=(\S*)")
_NO_NODES = frozenset({"", "(null)", "None"})
_RECORD = re.compile(r"^(?=JobId=)", re.MULTILINE)
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)\s*$", re.MULTILINE)


class Answer(Enum):
    """What Slurm says about an attempt."""

    ALIVE = "alive"
    ENDED = "ended"
    NONE = "none"  # Slurm did not answer, or its answer is invalid
    OTHER = "other_cluster"  # this Slurm is of another cluster


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job on this node; texts that the manifest does not have are empty."""

    job_id: int
    node: str = ""
    restart: int = 0
    cluster: str = ""


def _fields(text: str) -> dict[str, str]:
    """Return the fields that have exactly one value."""
    found: dict[str, set[str]] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _runs_elsewhere(nodelist: str | None, node: str) -> bool:
    """Tell whether the list has nodes and this node is not among them."""
    if nodelist is None or nodelist in _NO_NODES or not node:
        return False
    try:
        return node not in expand(nodelist)
    except InspectorError:
        return False


def _judge(fields: dict[str, str], attempt: Attempt) -> Answer:
    state, nodelist = fields.get("JobState", ""), fields.get("NodeList")
    if state in ENDED or (state in _QUEUED and nodelist in _NO_NODES):
        return Answer.ENDED
    if not _runs_elsewhere(nodelist, attempt.node):
        return Answer.ALIVE
    restarts = fields.get("Restarts", "")
    later = re.fullmatch("[0-9]{1,9}", restarts) and int(restarts) > attempt.restart
    return Answer.ENDED if later or state in _QUEUED | {"RUNNING"} else Answer.ALIVE


def judge(status: int, output: str, errors: str, attempt: Attempt) -> Answer:
    """Return what scontrol's exit status and output mean for an attempt.

    For an array or a heterogeneous job scontrol shows several records, and a job name with a
    newline can look like one. Exactly one record must be that of the job, and every record must say
    that nothing lives here. So the first task of an array stays alive as long as the others on this
    node.
    """
    if status != 0:
        return Answer.ENDED if _UNKNOWN_ID in errors else Answer.NONE
    if not output.startswith("JobId="):
        return Answer.NONE
    records = [one for one in _RECORD.split(output) if one]
    if sum(one.startswith(f"JobId={attempt.job_id} ") for one in records) != 1:
        return Answer.ALIVE
    over = all(_judge(_fields(one), attempt) is Answer.ENDED for one in records)
    return Answer.ENDED if over else Answer.ALIVE


def cluster_name(config: str) -> str:
    """Return the name in the output of `scontrol show config`; empty if it is missing."""
    found = _CLUSTER.findall(config)
    return found[0] if len(found) == 1 else ""


class Question:
    """What Slurm says of one attempt, and of an end whether it is the job's own Slurm.

    Nobody waits for it: scontrol is a child at work, looked at again later.
    A slurm.conf of another cluster would make every job here an unknown one.
    """

    def __init__(self, program: Path, attempt: Attempt, clock: Clock = SYSTEM_CLOCK) -> None:
        """Start asking; only the job's number, digits, goes onto a command line.

        Raises:
            OSError: there is no such program, or no process could be had.
        """
        self.attempt = attempt
        self._program = program
        self._clock = clock
        self._deadline = clock.monotonic_s() + ANSWER_S
        self._asks_cluster = False
        self._at_work = Command(program, "--oneliner", "show", "job", str(attempt.job_id))

    def answer(self) -> tuple[Answer, str] | None:
        """Return the answer and, where there is none, why; None while scontrol is at work."""
        said = self._at_work.said()
        if said is None:
            if self._clock.monotonic_s() < self._deadline:
                return None
            self.stop()
            return Answer.NONE, f"no answer in {ANSWER_S:.0f} s"
        if self._asks_cluster:
            return self._confirm(said)
        if said.cut:
            return Answer.ALIVE, "more records than can be judged"
        answer = judge(said.status, said.output, said.errors, self.attempt)
        if answer is not Answer.ENDED or not self.attempt.cluster:
            return answer, said.words
        try:
            self._at_work = Command(self._program, "show", "config")
        except OSError as err:
            return Answer.NONE, f"{self._program}: {err.strerror}"
        self._asks_cluster = True
        return None

    def _confirm(self, said: Said) -> tuple[Answer, str]:
        """Return an end as such only when it was the job's own cluster that told it."""
        name = cluster_name(said.output) if said.status == 0 else ""
        if not name:
            return Answer.NONE, f"the cluster's name is not known: {said.words}"
        if name.casefold() == self.attempt.cluster.casefold():
            return Answer.ENDED, ""
        return Answer.OTHER, f"scontrol asks cluster {name!a}, which is not the job's"

    def stop(self) -> None:
        """End it, with whatever it has started."""
        self._at_work.stop()
