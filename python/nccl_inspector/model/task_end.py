# SPDX-License-Identifier: Apache-2.0
"""How a task of a step ended, as slurmstepd saw it."""

import os
from dataclasses import dataclass

from nccl_inspector.model.exit_words import exit_words, signal_of, signal_words


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
    def signal(self) -> int | None:
        """The signal that ended the task or its command, if one did."""
        sent = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        return signal_of(self.code, sent)

    @property
    def words(self) -> str:
        """Return `SIGKILL: out of memory, or kill -9`, or the exit code in words."""
        number = self.signal
        said = signal_words(number) if number else ""
        return said or exit_words(self.code, number if not self.code else None)
