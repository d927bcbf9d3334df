# SPDX-License-Identifier: Apache-2.0
"""The ways to write a job in Slurm: 810, 810_3, 810_[1-4%2], 811+1; and a step of one, 810.0."""

import re
from dataclasses import dataclass

from nccl_inspector.errors import InspectorError

JOB_ID = re.compile(r"[1-9][0-9]{0,17}")  # so its directories are called, too
_TASK = "0|[1-9][0-9]{0,8}"
ARRAY_TASK = re.compile(rf"({JOB_ID.pattern})_({_TASK})")
BATCH_STEP, INTERACTIVE_STEP = "batch", "interactive"
JOB_STEP = re.compile(rf"({JOB_ID.pattern})(?:\.([0-9]{{1,10}}|{BATCH_STEP}|{INTERACTIVE_STEP}))?")
PUBLISHED_NAME = re.compile(rf"({JOB_ID.pattern})\.prom")  # in `prom/`
_JOB = re.compile(
    rf"({JOB_ID.pattern})"
    rf"(?:_({_TASK})|_\[([0-9,:%-]{{1,4096}})(?:\.\.\.)?\]|\+([0-9]{{1,4}}))?"
)


def task_name(array: int | None, task: int | None) -> str:
    """Return `810_3`, Slurm's way to write a task of an array; empty when it is none."""
    return "" if array is None or task is None else f"{array}_{task}"


@dataclass(frozen=True, slots=True)
class JobName:
    """A parsed job name; for a task or a component, `job_id` is the array's or the leader's."""

    job_id: int
    task: int | None = None
    tasks: str = ""  # tasks of an array that have no job id of their own yet
    offset: int | None = None

    def __str__(self) -> str:
        """Return the name for a command line."""
        if self.task is not None:
            return f"{self.job_id}_{self.task}"
        return f"{self.job_id}" if self.offset is None else f"{self.job_id}+{self.offset}"


def parse_job(text: str) -> JobName:
    """Return the parsed name.

    Raises:
        InspectorError: the text is not a job.
    """
    match = _JOB.fullmatch(text)
    if match is None:
        raise InspectorError(f"{text[:40]!a} is not a job id such as 810, 810_3 or 811+1")
    task = None if match[2] is None else int(match[2])
    offset = None if match[4] is None else int(match[4])
    return JobName(int(match[1]), task, match[3] or "", offset)
