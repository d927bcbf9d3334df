# SPDX-License-Identifier: Apache-2.0
"""Read how a job's tasks ended on this node: the SPANK plugin keeps it (spank/task_end.h)."""

import re

from nccl_inspector.model.task_end import TaskEnd
from nccl_inspector.system.safe_files import read_owners

FILE = "task_ends"
_FILE_BYTES_MAX = 8192  # the plugin begins no line behind 4,096
_LINE = re.compile(
    rb"^(batch|[0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,5}) ([0-9]{1,19})$", re.MULTILINE
)


def read_task_ends(job_fd: int) -> tuple[TaskEnd, ...]:
    """Return the ends of tasks that did not end well, in order; a torn line is left out.

    Raises:
        RefusedError: the file is not one that the plugin wrote.
    """
    data = read_owners(FILE, _FILE_BYTES_MAX, job_fd) or b""
    whole = data[: data.rfind(b"\n") + 1]
    return tuple(
        TaskEnd(None if step == b"batch" else int(step), *map(int, rest))
        for step, *rest in (found.groups() for found in _LINE.finditer(whole))
    )
