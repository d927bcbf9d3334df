# SPDX-License-Identifier: Apache-2.0
"""What the agent counts of itself, and the reasons that it says once."""

import logging
from collections import Counter

from nccl_inspector.errors import RefusedError

log = logging.getLogger("nccl-inspector")

# A user can give any number of reasons by rewriting a file; this many lines a job are enough.
_LINES_A_JOB = 20
# Nor has a job more processes on a node, whatever boxes its user makes.
_LOST_A_JOB = 1024

# What tells a box from another, whatever its name: device and inode.
Inode = tuple[int, int]


class Tally:
    """Counters since the agent began, and what it has logged of each job."""

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
        """Count a file of a job that is not taken."""
        self.rejected[err.reason] += 1
        self.say(job, f"{name} is refused: {err}")

    def fail_to_publish(self, job: int, message: str) -> None:
        """Count a pass in which the system did not let a job be published."""
        self.publish_failures += 1
        self.say(job, message)

    def lose(self, job: int, stem: str, inode: Inode) -> None:
        """Count a process that died without finalizing; the same one counts once."""
        known = self._lost.setdefault(job, set())
        if inode not in known and len(known) < _LOST_A_JOB:
            known.add(inode)
            self.lost += 1
            self.say(job, f"process {stem} died without finalizing")

    def say(self, job: int, message: str) -> None:
        """Log a line about a job, unless it has been said or the job has had its share."""
        said = self._said.setdefault(job, set())
        if message not in said and len(said) < _LINES_A_JOB:
            said.add(message)
            log.warning("job %d: %s", job, message)

    def forget(self, jobs: set[int]) -> None:
        """Keep what is known of `jobs` only."""
        for table in (self._said, self._lost):
            for job in table.keys() - jobs:
                del table[job]
