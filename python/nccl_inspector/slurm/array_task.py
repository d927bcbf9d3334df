# SPDX-License-Identifier: Apache-2.0
"""Find the job id of an array task such as `810_3`: tasks have ids of their own, seldom known."""

from collections.abc import Callable
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import ARRAY_TASK, JOB_ID
from nccl_inspector.summary.directory import peek

# The most job ids to look at: Slurm gives tasks their ids when they start. Each costs some small
# reads.
LOOKED_AT_MAX = 4096


def find_array_task(
    task: str, report_dir: Path, ask_slurm: Callable[[str], int | None] = lambda _task: None
) -> tuple[int, bool]:
    """Return the job id of a task, such as `810_3`, and whether Slurm says so.

    `ask_slurm`: returns the id that Slurm gave a task, or None if Slurm does not know. Only in that
    case is it taken from what later jobs' processes say about themselves, because any job can claim
    that.

    Raises:
        InspectorError: the task is not found, several jobs claim to be it, or it is not a task's
            name.
    """
    match = ARRAY_TASK.fullmatch(task)
    if not match:
        raise InspectorError(f"{task} is not a task of an array, such as 810_3")
    known = ask_slurm(task)
    if known is not None:
        return known, True
    try:
        names = [one.name for one in report_dir.iterdir() if JOB_ID.fullmatch(one.name)]
    except OSError as err:
        raise InspectorError(f"{report_dir}: {err.strerror}") from err
    later = sorted(number for number in map(int, names) if number >= int(match[1]))
    found = [
        number
        for number in later[:LOOKED_AT_MAX]
        if any(head.array_task == task for head in peek(number, report_dir))
    ]
    if len(found) > 1:
        numbers = ", ".join(map(str, found[:8]))
        raise InspectorError(
            f"several jobs say that they are {task}: {numbers}; give one of these job ids"
        )
    if not found:
        raise InspectorError(
            f"no report of {task} in {report_dir}; give its own job id (JobIDRaw of sacct)"
        )
    return found[0], False
