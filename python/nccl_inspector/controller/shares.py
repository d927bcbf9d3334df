# SPDX-License-Identifier: Apache-2.0
"""Which user's reports come next, and how much time a user's outputs may still take.

One service makes all reports, one after the other, and what one costs is up to its user's boxes and
output. So the time that each user's reports have taken is counted, over all tries, and forgotten
little by little.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TypeVar

# Of one user's reports in so much time, and of all tries of one job's report: beyond that outputs
# are not read.
USER_S, PERIOD_S, JOB_S = 1800.0, 3600.0, 60.0
_FORGOTTEN_S = 1e-3

_Job = TypeVar("_Job")


@dataclass(slots=True)
class Shares:
    """The time that reports took, in seconds. `now_s`: of one clock that does not go back."""

    _users: dict[int, tuple[float, float]] = field(default_factory=dict)  # used, and when that was
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
        """Return what the output of a job may still take, by its user and by itself."""
        of_job = JOB_S - self._jobs.get(job, 0.0)
        return max(0.0, min(USER_S - self.used_s(user, now_s), of_job))

    def keep(self, jobs: Iterable[int], now_s: float) -> None:
        """Forget all other jobs, and users who have used nothing."""
        kept = set(jobs)
        self._jobs = {job: used for job, used in self._jobs.items() if job in kept}
        self._users = {
            user: row
            for user, row in self._users.items()
            if self.used_s(user, now_s) > _FORGOTTEN_S
        }


def in_turns(jobs: Mapping[_Job, int], used_s: Callable[[int], float]) -> list[_Job]:
    """Return the jobs, given with their users, one of each user in turn.

    A user's own jobs keep their order. The user with the least time used comes first.
    """
    by_user: dict[int, list[_Job]] = {}
    for job, user in jobs.items():
        by_user.setdefault(user, []).append(job)
    queues = [by_user[user] for user in sorted(by_user, key=used_s)]
    nobody = object()
    turns = chain.from_iterable(zip_longest(*queues, fillvalue=nobody))
    return [job for job in turns if job is not nobody]  # type: ignore[misc]  # it is no job
