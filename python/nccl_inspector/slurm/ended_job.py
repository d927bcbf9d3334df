# SPDX-License-Identifier: Apache-2.0
"""Judge from `scontrol --oneliner show job <id>` whether a job's attempt on a node has ended.

The answer holds texts that users choose (names, comments, with blanks and even
newlines), so a field that is there twice with different values is not believed,
nor an end while anything else in the answer says that something lives here.
Every doubt means alive: what is kept too long costs memory, what goes too early is lost.
"""

import re
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.slurm.record import ENDED

# Slurm says neither of these while an epilog of the job is still due (then it says COMPLETING).
# Back in the queue, or held there: the attempt that was here is over.
_QUEUED = frozenset({"PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_UNKNOWN_ID = "Invalid job id specified"
_FIELD = re.compile(r"(?:^|\s)(JobState|NodeList|Restarts)=(\S*)")
_NO_NODES = frozenset({"", "(null)", "None"})
_RECORD = re.compile(r"^(?=JobId=)", re.MULTILINE)
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)\s*$", re.MULTILINE)


class Answer(Enum):
    """What Slurm says of an attempt."""

    ALIVE = "alive"
    ENDED = "ended"
    NONE = "none"  # Slurm did not answer, or not so that it can be read
    OTHER = "other_cluster"  # this Slurm is not the job's


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job on this node; texts are empty where the manifest does not say."""

    job_id: int
    node: str = ""
    restart: int = 0
    cluster: str = ""


def _fields(text: str) -> dict[str, str]:
    """Return the fields that have one value."""
    found: dict[str, set[str]] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


def _runs_elsewhere(nodelist: str | None, node: str) -> bool:
    """Tell whether the list names nodes, and not this one."""
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
    """Return what scontrol's exit status and words mean for an attempt.

    Of an array or a heterogeneous job scontrol shows several records, and a name
    with a newline can look like some: one must be ours, and every one must say
    that nothing lives here. So the first task of an array waits for its others on this node.
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
    """Return the name in what `scontrol show config` prints; empty when it is not there."""
    found = _CLUSTER.findall(config)
    return found[0] if len(found) == 1 else ""
