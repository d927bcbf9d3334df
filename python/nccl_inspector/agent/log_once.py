# SPDX-License-Identifier: Apache-2.0
"""The agent's counts about itself, and log lines that are written only once."""

import logging
from collections import Counter

from nccl_inspector.errors import RefusedError

log = logging.getLogger("nccl-inspector")

# A user can cause any number of reasons by rewriting a file; this many lines per job are enough.
_LINES_A_JOB = 20
# A job has no more processes on a node than this, whatever boxes its user makes.
_LOST_A_JOB = 1024

# Identifies a box, whatever its name: device and inode.
Inode = tuple[int, int]


class Tally:
    """Counters since the agent started, and what it has logged about each job."""

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        self.lost = 0
        self.collect_failures = 0
        self.publish_failures = 0
        self.swept = 0
        self.answers: Counter[str] = Counter()
        self._said: dict[int, set[str]] = {}
        self._lost: dict[int, set[Inode]] = {}

    def refuse(self, job: int, name: str, err: RefusedError) -> None:
        """Count and log a file of a job that is refused."""
        self.rejected[err.reason] += 1
        self.say(job, f"{name} is refused: {err}")

    def fail_to_publish(self, job: int, message: str) -> None:
        """Count and log a pass in which a job could not be published because of the system."""
        self.publish_failures += 1
        self.say(job, message)

    def lose(self, job: int, stem: str, inode: Inode) -> None:
        """Count and log a process that died without finalizing, only once."""
        known = self._lost.setdefault(job, set())
        if inode not in known and len(known) < _LOST_A_JOB:
            known.add(inode)
            self.lost += 1
            self.say(job, f"process {stem} died without finalizing")

    def say(self, job: int, message: str) -> None:
        """Log a line about a job, unless it was logged before or the job has too many lines."""
        said = self._said.setdefault(job, set())
        if message not in said and len(said) < _LINES_A_JOB:
            said.add(message)
            log.warning("job %d: %s", job, message)

    def forget(self, jobs: set[int]) -> None:
        """Forget all jobs that are not in `jobs`."""
        for table in (self._said, self._lost):
            for job in table.keys() - jobs:
                del table[job]
