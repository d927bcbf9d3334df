# SPDX-License-Identifier: Apache-2.0
"""What a step of `analyze --slurm` tells the command, and whether its job is gone.

A task that cannot begin says so on its standard output, in a line with a mark. So one line for all
nodes can be printed in place of one for each task. Everything else there goes to standard error,
because a site's TaskProlog may print, and the report is on the other.
"""

import json
import os
import shutil
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import IO

from nccl_inspector.capture.task import MARK
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.slurm.attempt import Answer, Attempt, judge
from nccl_inspector.slurm.command import ask
from nccl_inspector.system.printable import visible

_STDERR = 2


class StepWords:
    """Reads what tasks print, in a thread, until the last of them has ended."""

    def __init__(self, output: IO[bytes] | None) -> None:
        """Begin to read `output`, the standard output of srun; None: there is none."""
        self.job_id = os.environ.get("SLURM_JOB_ID", "")  # the allocation, or a job of the step
        self.unseen: dict[str, set[str]] = defaultdict(set)  # by directory, nodes without it
        self._thread = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._thread.start()

    def _read(self, output: IO[bytes] | None) -> None:
        with suppress(OSError, ValueError):
            for line in output or ():
                if not self._take(line):
                    os.write(_STDERR, line)

    def _take(self, line: bytes) -> bool:
        """Take what a task says; False: it is another line."""
        if not line.startswith(MARK):
            return False
        try:
            said = json.loads(line[len(MARK) :])
            self.job_id = said["job"] or self.job_id
            if said["unseen"]:
                self.unseen[visible(said["unseen"])].add(visible(said["node"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait until all is read; a process that a task left behind may keep it open for longer."""
        self._thread.join(seconds)


def has_ended(job_id: str) -> bool:
    """Tell whether Slurm says that a job is over; False also if it says nothing."""
    program = shutil.which("scontrol")
    if program is None or not JOB_ID.fullmatch(job_id):
        return False
    said = ask(Path(program), "--oneliner", "show", "job", job_id)
    attempt = Attempt(int(job_id))
    return not said.cut and judge(said.status, said.output, said.errors, attempt) is Answer.ENDED
