# SPDX-License-Identifier: Apache-2.0
"""Fill in the patterns in the path of a batch script's standard output, as sbatch(1) does.

Before 26.05 slurmctld fills in most patterns, but never the node's name. From 26.05 on, its own
filled-in path has `(null)` instead of that name.
"""

import re
from pathlib import PurePosixPath

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.slurm.values import path

_PATTERN = re.compile("%([0-9]{0,2})([A-Za-z%])")


def _first_node(record: JobRecord) -> str | None:
    try:
        nodes = expand(record.nodelist or "")
    except InspectorError:
        return None
    return nodes[0].split(".", 1)[0] if nodes else None


def _meanings(record: JobRecord) -> dict[str, str | int | None]:
    """Return what each letter means for the batch script; None: not known."""
    task = record.array_task_id
    return {
        "%": "%",
        "A": record.array_job_id or record.job_id,
        "a": task,
        "b": None if task is None else task % 10,
        "j": record.job_id,
        "N": _first_node(record),
        "n": 0,
        "t": 0,
        "u": record.user,
        "x": record.name,
    }


def fill_in(pattern: str, record: JobRecord) -> str | None:
    """Return the absolute path; None if a part of it is not known."""
    if "\\" in pattern:  # then sbatch leaves the rest alone, in ways that depend on the release
        return None
    meanings = _meanings(record)
    if any(meanings.get(letter) is None for _, letter in _PATTERN.findall(pattern)):
        return None

    def meaning(match: re.Match[str]) -> str:
        value = meanings[match[2]]
        return str(value).zfill(int(match[1] or 0)) if isinstance(value, int) else str(value)

    filled = _PATTERN.sub(meaning, pattern)
    if not filled.startswith("/"):
        filled = str(PurePosixPath(record.work_dir or "", filled))
    return path(filled)
