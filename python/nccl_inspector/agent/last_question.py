# SPDX-License-Identifier: Apache-2.0
"""When a collection without an agent last asked Slurm about a job: root's file `jobs/<id>/asked`.

It is in the job's directory and is deleted with it. Its one line has the Unix time of the question
and the seconds until the next one.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.safe_files import directory_of_same_owner, read_at, regular_file

_NAME = "asked"
_LINE = re.compile(rb"([0-9]{1,12}) ([1-9][0-9]{0,5})\n")
_BYTES_MAX = 32


@dataclass(frozen=True, slots=True)
class LastQuestion:
    """A question: its Unix time, and the seconds for which its answer is good."""

    asked_s: int
    delay_s: int

    def is_fresh(self, now_s: float) -> bool:
        """Tell whether the next question may wait; not if the clock was set in between."""
        return abs(now_s - self.asked_s) < self.delay_s


def read_last_question(name: str, jobs_fd: int) -> LastQuestion | None:
    """Return the last question about the job `name`, or None."""
    root = os.fstat(jobs_fd).st_uid
    try:
        with (
            directory_of_same_owner(name, jobs_fd) as job_fd,
            regular_file(_NAME, root, _BYTES_MAX, job_fd) as (fd, _),
        ):
            match = _LINE.fullmatch(read_at(fd, _BYTES_MAX, 0))
    except RefusedError:
        return None
    return LastQuestion(int(match[1]), int(match[2])) if match else None


def write_last_question(name: str, jobs_fd: int, delay_s: float, now_s: float) -> None:
    """Note a question asked at this Unix time.

    If that cannot be written, the next question comes too early.
    """
    line = f"{int(now_s)} {max(1, int(delay_s))}\n"
    with suppress(OSError, RefusedError), directory_of_same_owner(name, jobs_fd) as job_fd:
        replace_file(job_fd, _NAME, line.encode("ascii"), 0o600)
