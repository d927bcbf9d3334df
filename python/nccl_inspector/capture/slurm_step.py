# SPDX-License-Identifier: Apache-2.0
"""What a step of `analyze --slurm` tells the command, and whether its job is gone.

A task that cannot begin says so on its standard output, in a line with a mark. So one line for all
nodes can be printed in place of one for each task. Everything else there goes to standard error,
because a site's TaskProlog may print, and the report is on the other.
"""

import json
import os
import re
import shutil
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from nccl_inspector.capture.task import MARK
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.slurm.attempt import Answer, Attempt, judge
from nccl_inspector.slurm.command import Said, ask
from nccl_inspector.system.printable import visible

LINE_BYTES_MAX = 1 << 16  # of what a task tells; a longer line is passed on in parts
_CANCELLED = re.compile(r" JobState=(CANCELLED|DEADLINE|PREEMPTED|REVOKED|TIMEOUT)\b")
_COMPLETING = re.compile(r" JobState=COMPLETING\b")
_COMPLETES_S = 10  # so often it is asked how a job has ended that completes, each second
_STDERR = 2


class StepWords:
    """What the tasks of a step print; a thread reads it until the last of them has ended."""

    def __init__(self) -> None:
        """Make the pipe; `begin` reads it."""
        self.job_id = os.environ.get("SLURM_JOB_ID", "")  # else its tasks tell it
        self.is_own_job = not self.job_id
        self.unseen: dict[str, set[str]] = defaultdict(set)  # by directory, nodes without it
        # The thread alone closes its end: it may wait there for a process that a task left behind.
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Read from now on; srun has the other end."""
        os.close(self.writing)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError), os.fdopen(self._reading, "rb") as output:
            while line := output.readline(LINE_BYTES_MAX):
                if not self._take(line):
                    os.write(_STDERR, line)

    def _take(self, line: bytes) -> bool:
        """Take what a task says; False: it is another line."""
        if not line.startswith(MARK):
            return False
        try:
            said = json.loads(line[len(MARK) :])
            if self.is_own_job:
                self.job_id = str(said["job"])
            if said["unseen"]:
                self.unseen[visible(said["unseen"])].add(visible(said["node"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait until all is read; a process that a task left behind may keep it open for longer."""
        self._thread.join(seconds)


def _asked(job_id: str) -> Said | None:
    """Return what scontrol says of a job, if possible when it has completed."""
    program = shutil.which("scontrol")
    if program is None or not JOB_ID.fullmatch(job_id):
        return None
    for _ in range(_COMPLETES_S):
        said = ask(Path(program), "--oneliner", "show", "job", job_id)
        if not _COMPLETING.search(said.output):
            break
        time.sleep(1)
    return None if said.cut else said


def is_gone(words: StepWords) -> bool:
    """Tell whether Slurm says that the work is no longer wanted; False also if it says nothing.

    The job in which the steps run has ended. Outside a job a step is a job of its own, which has
    ended in any case: somebody cancelled it, or its time was up.
    """
    said = _asked(words.job_id)
    if said is None:
        return False
    if words.is_own_job:
        return said.status == 0 and bool(_CANCELLED.search(said.output))
    if _COMPLETING.search(said.output):  # its nodes take long; it has ended all the same
        return True
    attempt = Attempt(int(words.job_id))
    return judge(said.status, said.output, said.errors, attempt) is Answer.ENDED
