# SPDX-License-Identifier: Apache-2.0
"""How a job ended: by itself or from outside, in which order, and what its exit code means."""

from dataclasses import dataclass, replace
from math import inf

from nccl_inspector.model.exit_words import (
    BY_SIGNAL,
    OF_ITS_OWN,
    SIGABRT,
    SIGKILL,
    SIGTERM,
    TIMEOUT,
    exit_words,
    signal_of,
    signal_words,
)
from nccl_inspector.slurm.job_record import OVER, StepRecord

# The job's own processes ended it.
BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
# Slurm, or a person through Slurm, ended the job; its processes die in the order of the signals.
FROM_OUTSIDE = OVER - BY_ITSELF - {"BOOT_FAIL"}

# What a shell exits with if SIGTERM ended its command. It is also the highest code of a step in
# which one process failed and srun then ended the rest, and srun returns the highest.
_TERMINATED = BY_SIGNAL + SIGTERM

# The beat thread beats once a second, but has a low priority.
BEATS_APART_S = 15.0
# From SIGTERM to SIGKILL. Slurm's default KillWait is 30 s.
KILL_WAIT_S = 45.0


@dataclass(frozen=True, slots=True)
class Ending:
    """`state` is Slurm's word, empty if not known; `end_s` is Slurm's end, in Unix time.

    Slurm's end is the time at which it began to end the job. `failed_node`: the node of which Slurm
    says that it failed and so ended the job; empty: none, or it does not say which.
    """

    state: str = ""
    end_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_node: str = ""

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
        signalled = self.exit_code in (TIMEOUT, _TERMINATED) or self.signal == SIGTERM
        return self.state in BY_ITSELF and not signalled

    @property
    def has_failed(self) -> bool:
        """Whether a process of the job failed: not if the user's own time limit ended it."""
        return self.state in ("FAILED", "OUT_OF_MEMORY") and self.exit_code != TIMEOUT

    @property
    def was_given_up(self) -> bool:
        """Whether the application certainly ended itself with an error, giving up what it was in.

        SIGTERM leaves that open: it may have been the user's own limit, or srun's way to end the
        rest of a step after a failure.
        """
        return self.has_failed and self.was_by_itself

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

    @property
    def last_signal(self) -> int | None:
        """The signal that ended the job's command, if one did."""
        return signal_of(self.exit_code, self.signal)

    @property
    def killed_by(self) -> str:
        """What killed the process that failed, as text; empty: its code does not say that."""
        if self.state == "OUT_OF_MEMORY":
            return "out of memory"
        number = self.last_signal
        return signal_words(number) if number in OF_ITS_OWN else ""

    @property
    def code_words(self) -> str:
        """Return `exit code 137, SIGKILL: out of memory, or kill -9`; empty: none, or 0."""
        return exit_words(self.exit_code, self.signal)

    def of_step(self, step: StepRecord | None) -> "Ending":
        """Return how the step ended whose processes were measured, if that certainly says more.

        The job's code is its script's: the highest that srun saw, also of tasks that srun killed
        after the one that failed, or 0 if the script goes on. Slurm's code of a step leaves out
        the tasks that Slurm killed, unless it killed all of a node (get_exit_code of slurmstepd).
        So it may be the answer to a signal of the user's own, which a program can answer with any
        code, but never a signal that nobody sends. The database calls a step of which a signal
        ended a task CANCELLED (as_mysql_job.c, Slurm 22.05 to 26.05).
        """
        if step is None or self.state not in BY_ITSELF:
            return self
        failed = self.state == "FAILED" and self.was_by_itself and step.state == "FAILED"
        out_of_memory = step.state == "OUT_OF_MEMORY"
        if not (failed or out_of_memory or step.signal in (OF_ITS_OWN | {SIGABRT}) - {SIGKILL}):
            return self
        state = "OUT_OF_MEMORY" if out_of_memory or self.state == "OUT_OF_MEMORY" else "FAILED"
        return replace(self, state=state, exit_code=step.exit_code, signal=step.signal)

    @property
    def ended_words(self) -> str:
        """Return how the job ended: `was cancelled`, `reached its time limit`; empty: not known."""
        if self.has_failed or self.state == "BOOT_FAIL":
            return "failed"
        return {
            "CANCELLED": "was cancelled",
            "COMPLETED": "ended",
            "DEADLINE": "reached its deadline",
            "FAILED": "reached a time limit of its own",
            "NODE_FAIL": "lost a node",
            "PREEMPTED": "was preempted",
            "REQUEUED": "was requeued",
            "TIMEOUT": "reached its time limit",
        }.get(self.state, "")
