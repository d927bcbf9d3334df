# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is if a pass does not have enough time for all jobs of a node.

Time is divided among users first, then among a user's jobs. What one does not need, the others may
use. Jobs that had no turn in the last pass come first, then those that took little time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nccl_inspector.system.clock import Clock

# Shorter turns are useless: eight processes take about 3 ms to look at and 20 ms to publish.
TURN_S = 0.02


@dataclass(slots=True)
class _Past:
    """What is known of a job."""

    cost_s: float = 0.0  # time of its latest turn
    missed: int = 0  # passes since then


class Turns:
    """The order of jobs, from pass to pass; times are of `clock`.

    They are CPU time, because by wall time everything takes long on a busy node.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._past: dict[int, _Past] = {}
        self._any = False  # a job had a turn in this pass
        self.left_out: list[int] = []  # jobs that had no turn in the latest pass

    def share(self, users: Mapping[int, int], total_s: float) -> Iterator[tuple[int, float]]:
        """Yield each job that has a turn, and the CPU time until which it may work.

        `users`: the uid of each job. A turn ends when the next one is asked for. At least one job
        has a turn, however short the time is.
        """
        end_s = self._clock.cpu_s() + total_s
        self._any = False
        self._past = {job_id: self._past.get(job_id, _Past()) for job_id in users}
        self.left_out = []
        queue = self._order(users)
        for place, jobs in enumerate(queue):
            now_s = self._clock.cpu_s()
            user_end_s = now_s + (end_s - now_s) / (len(queue) - place)
            yield from self._share_of_user(jobs, user_end_s)

    def _share_of_user(self, jobs: list[int], end_s: float) -> Iterator[tuple[int, float]]:
        for place, job_id in enumerate(jobs):
            past, now_s = self._past[job_id], self._clock.cpu_s()
            if now_s >= end_s and self._any:
                past.missed += 1
                self.left_out.append(job_id)
                continue
            turn_s = max(TURN_S, (end_s - now_s) / (len(jobs) - place))
            self._any = True
            yield job_id, now_s + turn_s
            past.cost_s, past.missed = self._clock.cpu_s() - now_s, 0

    def _order(self, users: Mapping[int, int]) -> list[list[int]]:
        """Return the jobs of each user; those whose turn is first come first."""
        of_users: dict[int, list[int]] = {}
        for job_id, uid in users.items():
            of_users.setdefault(uid, []).append(job_id)
        for jobs in of_users.values():
            jobs.sort(key=lambda job_id: (-self._past[job_id].missed, self._cost(job_id), job_id))
        return sorted(of_users.values(), key=self._user_key)

    def _cost(self, job_id: int) -> float:
        return self._past[job_id].cost_s

    def _user_key(self, jobs: list[int]) -> tuple[bool, float, int]:
        waited = all(self._past[job_id].missed for job_id in jobs)
        return not waited, sum(map(self._cost, jobs)), min(jobs)
