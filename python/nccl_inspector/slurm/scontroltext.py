# SPDX-License-Identifier: Apache-2.0
"""Parse `scontrol --oneliner show job` of releases without its JSON; times are in %s.

Names, comments and paths are users' texts and may contain anything, also blanks and newlines.
"""

import re
from collections.abc import Mapping
from itertools import pairwise

from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm.values import (
    Facts,
    as_far_as_it_is,
    exit_facts,
    id_set,
    moment,
    number,
    optional,
    path,
    plain,
    seconds,
    state_word,
    switches_facts,
    tres_facts,
)

# All fields that 22.05 prints, in its order; those in _AT_TIMES are printed only if they are set.
_ORDER = (
    "JobId", "ArrayJobId", "ArrayTaskId", "ArrayTaskThrottle", "HetJobId", "HetJobOffset",
    "JobName", "HetJobIdSet", "UserId", "GroupId", "MCS_label", "Priority", "Nice", "Account",
    "QOS", "WCKey", "JobState", "Reason", "FailedNode", "Dependency", "Requeue", "Restarts",
    "BatchFlag", "Reboot", "ExitCode", "DerivedExitCode", "RunTime", "TimeLimit", "TimeMin",
    "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "Deadline", "PreemptTime",
    "SuspendTime", "SecsPreSuspend", "LastSchedEval", "Scheduler", "Partition", "AllocNode:Sid",
    "ReqNodeList", "ExcNodeList", "NodeList", "BatchHost", "SchedNodeList", "NumNodes", "NumCPUs",
    "NumTasks", "CPUs/Task", "ReqB:S:C:T", "TRES", "Socks/Node", "NtasksPerN:B:S:C", "CoreSpec",
    "MinCPUsNode", "MinMemoryNode", "MinTmpDiskNode", "Features", "DelayBoot", "Reservation",
    "OverSubscribe", "Contiguous", "Licenses", "Network", "Command", "WorkDir", "AdminComment",
    "Comment", "StdErr", "StdIn", "StdOut", "Switches", "Power", "TresPerNode", "MailUser",
)  # fmt: skip
_AT_TIMES = frozenset(
    {
        "ArrayJobId", "ArrayTaskId", "ArrayTaskThrottle", "HetJobId", "HetJobOffset",
        "HetJobIdSet", "WCKey", "FailedNode", "DerivedExitCode", "PreemptTime", "BatchHost",
        "SchedNodeList", "Reservation", "AdminComment", "Comment", "StdErr", "StdIn", "StdOut",
        "Switches", "Power", "TresPerNode", "MailUser",
    }
)  # fmt: skip
_USERS = frozenset({"JobName", "Command", "WorkDir", "Licenses", "Network", "Features"})
_KEY = re.compile(rf"(?:^|\s)({'|'.join(map(re.escape, _ORDER))})=")
_USER = re.compile(r"(.*)\(([0-9]{1,18})\)")
_RECORD = re.compile(r"^(?=JobId=)", re.MULTILINE)
_NODES = re.compile(r"([0-9]{1,9})(?:-[0-9]{1,9})?")


def _fields(record: str) -> dict[str, str]:
    """Return the fields that can be believed.

    A user's text may look like fields. Then some fields occur twice, or out of Slurm's order. In
    that case only fields are taken that Slurm always prints and that occur once: these are Slurm's
    own.
    """
    _, *parts = _KEY.split(record.rstrip("\n"))
    keys, values = parts[::2], [value.strip() for value in parts[1::2]]
    if all(one < two for one, two in pairwise(map(_ORDER.index, keys))):
        return dict(zip(keys, values, strict=True))
    return {
        key: value
        for key, value in zip(keys, values, strict=True)
        if keys.count(key) == 1 and key not in _AT_TIMES | _USERS
    }


def _is(fields: Mapping[str, str], name: JobName) -> bool:
    if name.tasks:
        return fields.get("ArrayJobId") == str(name.job_id) == fields.get("JobId")
    if name.task is not None:
        told = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        return told == (str(name.job_id), str(name.task))
    if name.offset is not None:
        told = fields.get("HetJobId"), fields.get("HetJobOffset")
        return told == (str(name.job_id), str(name.offset))
    return fields.get("JobId") == str(name.job_id)


def parse_text(output: str, name: JobName) -> Facts:
    """Return the facts of a job; none unless the output has exactly one complete record of it."""
    records = [_fields(one) for one in _RECORD.split(output) if one.startswith("JobId=")]
    mine = [one for one in records if _is(one, name)]
    # A job name with a newline and a JobId cuts the job's own record in two.
    if mine and "JobState" not in mine[0]:
        return {}
    return _facts(mine[0]) if len(mine) == 1 else {}


def _facts(told: Mapping[str, str]) -> Facts:
    def get(key: str) -> str:
        return told.get(key, "")

    def text(key: str) -> str | None:
        return optional(told[key]) if key in told else None

    nodes = _NODES.fullmatch(get("NumNodes"))
    found: Facts = {
        "name": text("JobName"),
        "account": text("Account"),
        "partition": text("Partition"),
        "nodelist": text("NodeList"),
        "submit_s": moment(get("SubmitTime")),
        "eligible_s": moment(get("EligibleTime")),
        "restart": number(get("Restarts")),
        "num_nodes": int(nodes[1]) if nodes else None,
        "tasks": number(get("NumTasks")),
        "work_dir": path(get("WorkDir")),
        "stdout_path": get("StdOut") or None,
        "stderr_path": get("StdErr") or None,
        "time_limit_s": seconds(get("TimeLimit")),
        "reason": "" if get("Reason") == "None" else text("Reason"),
        "failed_node": text("FailedNode"),
    }
    found |= _identity(told) | _asked(told) | exit_facts(get("ExitCode"))
    found |= tres_facts(get("TRES"), "")
    times = moment(get("StartTime")), moment(get("EndTime"))
    return as_far_as_it_is(found, state_word(get("JobState")), times)


def _identity(told: Mapping[str, str]) -> Facts:
    task, user = told.get("ArrayTaskId", ""), _USER.fullmatch(told.get("UserId", ""))
    return {
        "job_id": number(told.get("JobId", "")),
        "array_job_id": number(told.get("ArrayJobId", "")),
        "array_task_id": number(task),
        "array_tasks": "" if number(task) is not None else plain(task),
        "het_job_id": number(told.get("HetJobId", "")),
        "het_offset": number(told.get("HetJobOffset", "")),
        "het_components": id_set(told.get("HetJobIdSet", "")) or None,
        "user": plain(user[1]) if user else None,
        "uid": int(user[2]) if user else None,
    }


def _asked(told: Mapping[str, str]) -> Facts:
    """Return fields that are printed only if set; with StdOut the record is complete."""
    if "StdOut" not in told:
        return {}
    comments: Facts = {
        "comment": plain(told.get("Comment", "")),
        "admin_comment": plain(told.get("AdminComment", "")),
    }
    return comments | switches_facts(told.get("Switches", "0"))
