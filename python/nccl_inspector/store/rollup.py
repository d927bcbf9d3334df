# SPDX-License-Identifier: Apache-2.0
"""The tasks of an array as one line: the worst verdict, and how many tasks have it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.kinds import middle
from nccl_inspector.model.card import (
    CANNOT_TELL,
    CRASHED,
    DEGRADED,
    FAILED,
    HEALTHY,
    HUNG,
    NO_DATA,
    PERHAPS_HUNG,
)
from nccl_inspector.store.card_rows import JobRow

_WORST_FIRST = (
    HUNG, CRASHED, FAILED, PERHAPS_HUNG, DEGRADED, CANNOT_TELL, NO_DATA, HEALTHY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rolled:
    """A job, or the tasks of an array, the latest first."""

    tasks: tuple[JobRow, ...]

    @property
    def latest(self) -> JobRow:
        """The task that ended last."""
        return self.tasks[0]

    @property
    def worst(self) -> JobRow:
        """The task with the worst verdict; of several, the latest."""
        return min(self.tasks, key=lambda one: _rank(one.status))

    @property
    def like_worst(self) -> int:
        """How many tasks have the worst verdict."""
        worst = self.worst
        return sum((one.status, one.cause) == (worst.status, worst.cause) for one in self.tasks)

    @property
    def name(self) -> str:
        """`4711`, `4711.1` for a later attempt, `810_3`, or `810_*` for several tasks."""
        one = self.latest
        attempt = f".{one.restart}" if one.restart else ""
        if len(self.tasks) > 1:
            return f"{one.array_task.partition('_')[0]}_*"
        return f"{one.array_task or one.job_id}{attempt}"

    def sum_of(self, of: Callable[[JobRow], float | None]) -> float | None:
        """Return the sum of the known values; None if there are none."""
        known = [value for one in self.tasks if (value := of(one)) is not None]
        return sum(known) if known else None

    def median_of(self, of: Callable[[JobRow], float | None]) -> float | None:
        """Return the median of the known values; None if there are none."""
        return middle(map(of, self.tasks))


def _rank(status: str) -> int:
    return _WORST_FIRST.index(status) if status in _WORST_FIRST else len(_WORST_FIRST)


def roll_up(jobs: Iterable[JobRow]) -> list[Rolled]:
    """Return the jobs in order; an array's tasks are together at the place of the first of them.

    Each attempt of a requeued job stays a line of its own.
    """
    groups: dict[object, list[JobRow]] = {}
    for place, job in enumerate(jobs):
        array = job.array_task.partition("_")[0]
        key: object = (job.cluster, array, job.uid) if array and not job.restart else place
        groups.setdefault(key, []).append(job)
    return [Rolled(tuple(tasks)) for tasks in groups.values()]


def singly(jobs: Sequence[JobRow]) -> list[Rolled]:
    """Return each job as a line of its own."""
    return [Rolled((job,)) for job in jobs]
