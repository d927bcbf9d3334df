# SPDX-License-Identifier: Apache-2.0
"""Ask slurmctld through pyslurm, if that is installed for the site's Slurm release.

A version of pyslurm begins with the year and month of the one release that it is for. It is
imported only in a child, and the child's output is checked like any other text. It tells less than
slurmctld knows (pyslurm/utils/uint.pyx, utils/helpers.pyx, core/job/job.pyx): most numbers that are
0 become None, 128 is subtracted from exit codes of 128 or more, and the components of a
heterogeneous job are missing.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from nccl_inspector.slurm import pyslurmchild
from nccl_inspector.slurm.command import ANSWER_S, ask
from nccl_inspector.slurm.job_record import OVER
from nccl_inspector.slurm.values import Facts, as_far_as_it_is, optional, path, whole

_RELEASE = re.compile(r"([0-9]{2})\.([0-9]{1,2})\.")
_MINUTE_S = 60
# From here on libslurm fills in all patterns of the paths of the outputs (slurm_get_job_stdout()).
_PATHS_SINCE = (25, 11)
_NUMBERS = {
    "job_id": "id", "array_job_id": "array_id", "het_job_id": "heterogeneous_id", "uid": "user_id",
    "submit_s": "submit_time", "eligible_s": "eligible_time", "restart": "requeue_count",
    "num_nodes": "num_nodes", "tasks": "ntasks", "switches_wait_s": "max_wait_time_switches",
}  # fmt: skip
# None in these means 0 in slurmctld.
_NUMBERS_OR_0 = {"switches": "required_switches", "segment": "segment_size"}
_TEXTS = {
    "name": "name", "user": "user_name", "account": "account", "partition": "partition",
    "cluster": "cluster", "nodelist": "allocated_nodes", "reason": "state_reason",
    "submit_line": "submit_line", "comment": "comment", "admin_comment": "admin_comment",
}  # fmt: skip


def installed() -> tuple[int, int] | None:
    """Return the Slurm release that the installed pyslurm is for, or None; nothing is imported."""
    try:
        match = _RELEASE.match(metadata.version("pyslurm"))
    except metadata.PackageNotFoundError:
        return None
    return (int(match[1]), int(match[2])) if match else None


def is_whole(facts: Facts) -> bool:
    """Tell whether pyslurm could say all that slurmctld knows; otherwise scontrol must be asked."""
    return "het_job_id" not in facts and (facts.get("state") not in OVER or "exit_code" in facts)


def ask_pyslurm(
    job_id: int, python: Path = Path(sys.executable), seconds: float = ANSWER_S
) -> tuple[Facts, str]:
    """Return what slurmctld knows, and the reason if that is nothing."""
    # -P: modules in the directory of the child's own file must not hide others of the same name.
    said = ask(python, "-s", "-P", str(pyslurmchild.__file__), str(job_id), seconds=seconds)
    if said.status != 0:
        return {}, said.words
    try:
        job = json.loads(said.output)
    except (ValueError, RecursionError):
        return {}, "what it says is not JSON"
    if not isinstance(job, dict) or whole(job.get("id")) != job_id:
        return {}, "what it says is not of this job"
    facts = _facts(job)
    if (installed() or (0, 0)) >= _PATHS_SINCE:
        for field in ("stdout_path", "stderr_path"):
            if written := facts.get(field):
                facts[field] = str(written).replace("%", "%%")
    return facts, ""


def _codes(job: Mapping[str, Any], state: str) -> Facts:
    """Return exit code and signal; nothing if 128 may have been subtracted from the code."""
    signal = whole(job.get("exit_code_signal"))
    if signal:
        return {"exit_code": 0, "signal": signal}
    if state == "COMPLETED" and whole(job.get("exit_code")) == 0:
        return {"exit_code": 0, "signal": 0}
    return {}


def _within(job: Mapping[str, Any]) -> Facts:
    """Return the place in an array and in a heterogeneous job; the first task or component is 0."""
    found: Facts = {}
    if whole(job.get("array_id")) is not None:
        task = whole(job.get("array_task_id"))
        is_first = task is None and not job.get("array_tasks_waiting")
        found["array_task_id"] = 0 if is_first else task
    if whole(job.get("heterogeneous_id")) is not None:
        found["het_offset"] = whole(job.get("heterogeneous_offset")) or 0
    return found


def _facts(job: Mapping[str, Any]) -> Facts:
    def text(key: str) -> str:
        value = job.get(key)
        return value if isinstance(value, str) else ""

    limit = whole(job.get("time_limit"))
    found: Facts = {field: whole(job.get(key)) for field, key in _NUMBERS.items()}
    found |= {field: whole(job[key]) or 0 for field, key in _NUMBERS_OR_0.items() if key in job}
    found |= {field: optional(text(key)) for field, key in _TEXTS.items() if key in job}
    if found.get("reason") == "None":
        found["reason"] = ""
    found |= _within(job) | _codes(job, text("state"))
    found |= {
        "time_limit_s": None if limit is None else limit * _MINUTE_S,
        "work_dir": path(text("working_directory")),
        "stdout_path": text("standard_output") or None,
        "stderr_path": text("standard_error") or None,
    }
    times = whole(job.get("start_time")) or None, whole(job.get("end_time")) or None
    return as_far_as_it_is(found, text("state"), times)
