# SPDX-License-Identifier: Apache-2.0
"""Judge from `scontrol --oneliner show job <id>` whether a job's attempt on a node has ended.

The answer contains users' texts (names, comments, with blanks and even newlines). Therefore a field
that occurs twice with different values is not believed. Nor is an end believed while anything else
in the answer says that the job still lives here. In doubt the attempt counts as alive: data that
are kept too long only cost memory, data that are removed too early are lost.
"""

import re
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand

# While an epilog of the job is still due, Slurm says COMPLETING and none of these.
_OVER = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
    }
)  # fmt: skip
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
    if state in _OVER or (state in _QUEUED and nodelist in _NO_NODES):
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
