# SPDX-License-Identifier: Apache-2.0
"""How a job ended according to Slurm: by itself, or from outside and in which order."""

from dataclasses import dataclass
from math import inf

from nccl_inspector.slurm.job_record import OVER

# The job's own processes ended it.
BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
# Slurm, or a person through Slurm, ended the job; its processes die in the order of the signals.
FROM_OUTSIDE = OVER - BY_ITSELF - {"BOOT_FAIL"}

# Exit codes of timeout(1), and of a shell whose command SIGTERM ended: a time limit of the user's
# own.
_TIMED_OUT = frozenset({124, 143})
_SIGTERM = 15

# The beat thread beats once a second, but has a low priority.
BEATS_APART_S = 15.0
# From SIGTERM to SIGKILL. Slurm's default KillWait is 30 s.
KILL_WAIT_S = 45.0


@dataclass(frozen=True, slots=True)
class Ending:
    """`state` is Slurm's word, empty if not known; `end_s` is Slurm's end, in Unix time.

    Slurm's end is the time at which it began to end the job.
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
        """Whether the job would have gone on if it had not been ended."""
        return self.state in FROM_OUTSIDE

    @property
    def was_by_itself(self) -> bool:
        """Whether the job's own processes ended it, and not a signal sent to them."""
        signalled = self.exit_code in _TIMED_OUT or self.signal == _SIGTERM
        return self.state in BY_ITSELF and not signalled

    @property
    def was_given_up(self) -> bool:
        """Whether the application ended itself with an error, giving up what it was in."""
        return self.state == "FAILED" and self.was_by_itself

    @property
    def orders_deaths(self) -> bool:
        """Whether the order of deaths tells anything: not if a failed node ended processes."""
        return self.state != "NODE_FAIL"

    @property
    def until_ns(self) -> float:
        """The time from which on processes died because Slurm ended the job (infinite: never)."""
        return self.end_s * 1e9 if self.was_from_outside and self.end_s is not None else inf

    @property
    def silence_s(self) -> float:
        """How long a process must have been silent, at least, to have died before the others."""
        return BEATS_APART_S + (0.0 if self.was_by_itself else KILL_WAIT_S)
