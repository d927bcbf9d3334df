# SPDX-License-Identifier: Apache-2.0
"""How the tasks of a job's steps ended, as slurmstepd saw it and the SPANK plugin kept it."""

import os
import re
from dataclasses import dataclass

from nccl_inspector.model.exit_words import end_words, signal_of

FILE = "task_ends"  # below the job's directory; spank/task_end.h has its format
FILE_BYTES_MAX = 8192  # the plugin begins no line behind 4,096
_LINE = re.compile(
    rb"^(batch|[0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,5}) ([0-9]{1,19})$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of one task; `step` None: of the batch script. `status` is as of wait(2).

    `at_ns`: Unix time at which slurmstepd collected its status.
    """

    step: int | None
    task: int
    pid: int
    status: int
    at_ns: int

    @property
    def code(self) -> int:
        """The exit code; 0 if a signal ended it."""
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else 0

    @property
    def _sent(self) -> int:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0

    @property
    def signal(self) -> int | None:
        """The signal that ended the task or its command, if one did."""
        return signal_of(self.code, self._sent)

    @property
    def words(self) -> str:
        """Return `SIGKILL: out of memory, or kill -9`, or the exit code in words."""
        return end_words(self.code, self._sent)


def parse_task_ends(data: bytes) -> tuple[TaskEnd, ...]:
    """Return the ends of tasks that did not end well, in order; a torn line is left out."""
    whole = data[: data.rfind(b"\n") + 1]
    return tuple(
        TaskEnd(None if step == b"batch" else int(step), *map(int, rest))
        for step, *rest in (found.groups() for found in _LINE.finditer(whole))
    )
