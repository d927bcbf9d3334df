# SPDX-License-Identifier: Apache-2.0
"""The ways in which Slurm and its users write a job: 810, 810_3, 810_[1-4%2], 811+1."""

import re
from dataclasses import dataclass

from nccl_inspector.errors import InspectorError

JOB_ID = re.compile(r"[1-9][0-9]{0,17}")  # so its directories are called, too
_TASK = "0|[1-9][0-9]{0,8}"
ARRAY_TASK = re.compile(rf"({JOB_ID.pattern})_({_TASK})")
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
    """`job_id` is the array's or the leader's where a task or a component is named."""

    job_id: int
    task: int | None = None
    tasks: str = ""  # of an array, those not yet split off
    offset: int | None = None

    def __str__(self) -> str:
        """What goes onto a command line."""
        if self.task is not None:
            return f"{self.job_id}_{self.task}"
        return f"{self.job_id}" if self.offset is None else f"{self.job_id}+{self.offset}"


def parse_job(text: str) -> JobName:
    """Return what a text names.

    Raises:
        InspectorError: it names no job.
    """
    match = _JOB.fullmatch(text)
    if match is None:
        raise InspectorError(f"not a job: {text[:40]!a}; such as 810, 810_3 or 811+1")
    task = None if match[2] is None else int(match[2])
    offset = None if match[4] is None else int(match[4])
    return JobName(int(match[1]), task, match[3] or "", offset)
