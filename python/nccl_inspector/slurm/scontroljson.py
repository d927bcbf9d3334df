# SPDX-License-Identifier: Apache-2.0
"""Parse `scontrol --json show job` of Slurm 23.02 and later, in any version of that JSON."""

import json
from collections.abc import Mapping
from typing import Any

from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm.values import (
    Facts,
    as_far_as_it_is,
    id_set,
    optional,
    path,
    plain,
    tres_facts,
    whole,
)

_MINUTE_S = 60
_TEXTS = {
    "name": "name", "user": "user_name", "account": "account", "partition": "partition",
    "cluster": "cluster", "nodelist": "nodes", "comment": "comment", "reason": "state_reason",
    "admin_comment": "admin_comment", "submit_line": "submit_line", "failed_node": "failed_node",
}  # fmt: skip
_NUMBERS = {
    "job_id": "job_id", "uid": "user_id", "restart": "restart_cnt", "num_nodes": "node_count",
    "tasks": "tasks", "switches": "required_switches", "segment": "segment_size",
}  # fmt: skip
_NUMBERS_BUT_0 = {
    "submit_s": "submit_time", "eligible_s": "eligible_time",
    "switches_wait_s": "maximum_switch_wait_time",
}  # fmt: skip


def parse_json(output: str, name: JobName) -> Facts:
    """Return the facts of a job; none unless the output has exactly one record of it."""
    try:
        jobs = json.loads(output)["jobs"]
        mine = [one for one in jobs if isinstance(one, dict) and _is(one, name)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return _facts(mine[0]) if len(mine) == 1 else {}


def _is(job: Mapping[str, Any], name: JobName) -> bool:
    array, leader = whole(job.get("array_job_id")), whole(job.get("het_job_id"))
    if name.tasks:
        return array == name.job_id == whole(job.get("job_id"))
    if name.task is not None:
        return (array, whole(job.get("array_task_id"))) == (name.job_id, name.task)
    if name.offset is not None:
        return (leader, whole(job.get("het_job_offset"))) == (name.job_id, name.offset)
    return whole(job.get("job_id")) == name.job_id


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _codes(value: object) -> Facts:
    """Return exit code and signal; the one that is not set is 0."""
    if not isinstance(value, dict):
        return {}
    signal = value.get("signal")
    number = whole(signal.get("id")) if isinstance(signal, dict) else None
    return {"exit_code": whole(value.get("return_code")) or 0, "signal": number or 0}


def _state(value: object) -> str:
    """Return the state; COMPLETING goes before the final state that is listed beside it."""
    words = (
        [plain(word) for word in value if isinstance(word, str)] if isinstance(value, list) else []
    )
    return "COMPLETING" if "COMPLETING" in words else next(iter(words), "")


def _identity(job: Mapping[str, Any]) -> Facts:
    array, leader = whole(job.get("array_job_id")), whole(job.get("het_job_id"))
    found: Facts = {"het_components": id_set(_text(job.get("het_job_id_set"))) or None}
    if array:
        found["array_job_id"] = array
        found["array_task_id"] = whole(job.get("array_task_id"))
        found["array_tasks"] = plain(_text(job.get("array_task_string")))
    if leader:
        found |= {"het_job_id": leader, "het_offset": whole(job.get("het_job_offset"))}
    return found


def _facts(job: Mapping[str, Any]) -> Facts:
    limit = whole(job.get("time_limit"))
    found: Facts = {
        "time_limit_s": None if limit is None else limit * _MINUTE_S,
        "work_dir": path(_text(job.get("current_working_directory"))),
        # Not stdout_expanded, in which 26.05 writes (null) for a node's name.
        "stdout_path": _text(job.get("standard_output")) or None,
        "stderr_path": _text(job.get("standard_error")) or None,
    }
    found |= {field: whole(job.get(key)) for field, key in _NUMBERS.items()}
    found |= {field: whole(job.get(key)) or None for field, key in _NUMBERS_BUT_0.items()}
    found |= {field: optional(_text(job[key])) for field, key in _TEXTS.items() if key in job}
    if found.get("reason") == "None":
        found["reason"] = ""
    found |= _identity(job) | _codes(job.get("exit_code"))
    found |= tres_facts(_text(job.get("tres_alloc_str")), _text(job.get("tres_req_str")))
    times = whole(job.get("start_time")) or None, whole(job.get("end_time")) or None
    return as_far_as_it_is(found, _state(job.get("job_state")), times)
