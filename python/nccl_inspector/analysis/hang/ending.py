# SPDX-License-Identifier: Apache-2.0
"""How a job ended: by itself or from outside, in which order, and what its exit code means."""

from dataclasses import dataclass
from math import inf

from nccl_inspector.slurm.job_record import OVER

# The job's own processes ended it.
BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})
# Slurm, or a person through Slurm, ended the job; its processes die in the order of the signals.
FROM_OUTSIDE = OVER - BY_ITSELF - {"BOOT_FAIL"}

_SIGTERM = 15
_BY_SIGNAL = 128  # what a shell and srun add to the number of a signal
# What timeout(1) exits with: the user's own time limit.
_TIMEOUT = 124
# What a shell exits with if SIGTERM ended its command. It is also the highest code of a step in
# which one process failed and srun then ended the rest, and srun returns the highest.
_TERMINATED = _BY_SIGNAL + _SIGTERM

_SIGNALS = {
    1: "SIGHUP: the terminal or the session went away",
    2: "SIGINT: Ctrl-C",
    4: "SIGILL: an instruction that this CPU does not have",
    6: "SIGABRT: abort(), as PyTorch's watchdog, NCCL and failed assertions call it",
    7: "SIGBUS: an invalid address, a full /dev/shm or a file that became shorter",
    8: "SIGFPE: an arithmetic error",
    9: "SIGKILL: out of memory, or kill -9",
    11: "SIGSEGV: an invalid address",
    15: "SIGTERM: told to end, as srun does with the rest of a step of which one process failed",
    125: "Slurm's sign for a step that was out of memory",
}
_CODES = {
    1: "an error or an exception of the program",
    2: "a wrong use of a command",
    124: "timeout(1) ended it",
    126: "the command cannot be executed",
    127: "the command was not found",
}
# Signals that a process gets because of what it did itself, or of the memory it used.
_OF_ITS_OWN = frozenset({4, 7, 8, 9, 11})

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
        signalled = self.exit_code in (_TIMEOUT, _TERMINATED) or self.signal == _SIGTERM
        return self.state in BY_ITSELF and not signalled

    @property
    def has_failed(self) -> bool:
        """Whether a process of the job failed: not if the user's own time limit ended it."""
        return self.state in ("FAILED", "OUT_OF_MEMORY") and self.exit_code != _TIMEOUT

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
        if self.signal:
            return self.signal
        code = self.exit_code or 0
        return code - _BY_SIGNAL if _BY_SIGNAL < code < _BY_SIGNAL + 65 else None

    @property
    def killed_by(self) -> str:
        """What killed the process that failed, as text; empty: its code does not say that."""
        if self.state == "OUT_OF_MEMORY":
            return "out of memory"
        return _SIGNALS[self.last_signal] if self.last_signal in _OF_ITS_OWN else ""

    @property
    def code_words(self) -> str:
        """Return `exit code 137, SIGKILL: out of memory, or kill -9`; empty: none, or 0."""
        code, number = self.exit_code or 0, self.last_signal
        if number is not None:
            by = f"signal {number}" if self.signal else f"exit code {code}"
            return f"{by}, {_SIGNALS[number]}" if number in _SIGNALS else by
        if not code:
            return ""
        return f"exit code {code}, {_CODES[code]}" if code in _CODES else f"exit code {code}"

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
