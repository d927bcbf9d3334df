# SPDX-License-Identifier: Apache-2.0
"""How a job ended, as Slurm says: by itself, or from outside and then in what order."""

from dataclasses import dataclass
from math import inf

from nccl_inspector.slurm.record import OVER

# Slurm, or somebody through Slurm, ended the job: its processes die in the order of the signals.
FROM_OUTSIDE = frozenset(
    {"TIMEOUT", "CANCELLED", "PREEMPTED", "DEADLINE", "NODE_FAIL", "REQUEUED", "REVOKED"}
)
# The job's own processes ended it.
BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})

# Exit codes of timeout(1), and of a shell whose command SIGTERM ended: somebody's own time limit.
_TIMED_OUT = frozenset({124, 143})
_SIGTERM = 15

# The beat thread beats each second, at a low priority.
BEATS_APART_S = 15.0
# From SIGTERM to SIGKILL. Slurm's KillWait is 30 s where nobody has changed it.
KILL_WAIT_S = 45.0


@dataclass(frozen=True, slots=True)
class Ending:
    """`state` is Slurm's word, empty where it is not known; `end_s` is Slurm's, Unix time.

    Slurm's time of an end is that at which it began to end the job.
    """

    state: str = ""
    end_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job runs any more."""
        return not self.state or self.state in OVER

    @property
    def was_from_outside(self) -> bool:
        """Whether the job would have gone on."""
        return self.state in FROM_OUTSIDE

    @property
    def was_by_itself(self) -> bool:
        """Whether the job's own processes ended it, and not a signal that was sent to them."""
        signalled = self.exit_code in _TIMED_OUT or self.signal == _SIGTERM
        return self.state in BY_ITSELF and not signalled

    @property
    def was_given_up(self) -> bool:
        """Whether the application itself ended with an error: what it was in would not end."""
        return self.state == "FAILED" and self.was_by_itself

    @property
    def orders_deaths(self) -> bool:
        """Whether who died first tells anything: it does not where a node took processes along."""
        return self.state != "NODE_FAIL"

    @property
    def until_ns(self) -> float:
        """From when on processes died because Slurm ended the job."""
        return self.end_s * 1e9 if self.was_from_outside and self.end_s is not None else inf

    @property
    def silence_s(self) -> float:
        """For how long at least a process must have been silent to have died before the others."""
        return BEATS_APART_S + (0.0 if self.was_by_itself else KILL_WAIT_S)
