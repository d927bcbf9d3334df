# SPDX-License-Identifier: Apache-2.0
"""The order of users' reports, and how much time the outputs of a user's jobs may still take.

One service makes all reports, a few at a time. The time that a report takes depends on its
user's boxes and output. So the time of each user's reports is counted, over all tries, and is
forgotten gradually.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TypeVar

# The time for one user's reports in each PERIOD_S, and for all tries of one job's report. When it
# is used up, outputs are not read.
USER_S, PERIOD_S, JOB_S = 1800.0, 3600.0, 60.0
_FORGOTTEN_S = 1e-3

_Job = TypeVar("_Job")


@dataclass(slots=True)
class Shares:
    """The time that reports took, in seconds. `now_s`: any clock that never goes back."""

    _users: dict[int, tuple[float, float]] = field(default_factory=dict)  # used, and as of when
    _jobs: dict[int, float] = field(default_factory=dict)

    def add(self, user: int, job: int, took_s: float, now_s: float) -> None:
        """Count a try of a job's report."""
        self._users[user] = self.used_s(user, now_s) + took_s, now_s
        self._jobs[job] = self._jobs.get(job, 0.0) + took_s

    def used_s(self, user: int, now_s: float) -> float:
        """Return the time of a user's reports that is not yet forgotten."""
        used_s, at_s = self._users.get(user, (0.0, now_s))
        return max(0.0, used_s - (now_s - at_s) * USER_S / PERIOD_S)

    def left_s(self, user: int, job: int, now_s: float) -> float:
        """Return how long a job's output may still take: what the user and the job have left."""
        of_job = JOB_S - self._jobs.get(job, 0.0)
        return max(0.0, min(USER_S - self.used_s(user, now_s), of_job))

    def keep(self, jobs: Iterable[int], now_s: float) -> None:
        """Forget the time of all other jobs, and users whose time is all forgotten."""
        kept = set(jobs)
        self._jobs = {job: used for job, used in self._jobs.items() if job in kept}
        self._users = {
            user: row
            for user, row in self._users.items()
            if self.used_s(user, now_s) > _FORGOTTEN_S
        }


def in_turns(jobs: Mapping[_Job, int], used_s: Callable[[int], float]) -> list[_Job]:
    """Return the jobs in turns, one of each user at a time; `jobs`: each job with its user.

    The jobs of one user keep their order. The user who has used the least time comes first.
    """
    by_user: dict[int, list[_Job]] = {}
    for job, user in jobs.items():
        by_user.setdefault(user, []).append(job)
    queues = [by_user[user] for user in sorted(by_user, key=used_s)]
    nobody = object()
    turns = chain.from_iterable(zip_longest(*queues, fillvalue=nobody))
    return [job for job in turns if job is not nobody]  # type: ignore[misc]  # nobody is left out
