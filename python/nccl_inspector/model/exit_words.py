# SPDX-License-Identifier: Apache-2.0
"""What exit codes and signals mean, in words, whether of a job, a step, a task or a command."""

BY_SIGNAL = 128  # what a shell and srun add to the number of a signal
_SIGNALS_MAX = 64
SIGABRT, SIGKILL, SIGTERM = 6, 9, 15
# What timeout(1) exits with: the user's own time limit.
TIMEOUT = 124
# How Slurm writes a task or step that was out of memory: 0:125, from its own 253 (SIG_OOM).
OUT_OF_MEMORY = 125
OOM_WORDS = "out of memory"

_SIGNALS = {
    1: "SIGHUP: the terminal or the session went away",
    2: "SIGINT: Ctrl-C",
    3: "SIGQUIT: Ctrl-\\",
    4: "SIGILL: an instruction that this CPU does not have",
    SIGABRT: "SIGABRT: abort(), as PyTorch's watchdog, NCCL and failed assertions call it",
    7: "SIGBUS: an invalid address, a full /dev/shm or a file that became shorter",
    8: "SIGFPE: an arithmetic error",
    SIGKILL: "SIGKILL: out of memory, or kill -9",
    10: "SIGUSR1: a signal that the program or --signal asked for",
    11: "SIGSEGV: an invalid address",
    12: "SIGUSR2: a signal that the program or --signal asked for",
    13: "SIGPIPE: who read its output was gone",
    15: "SIGTERM: told to end, as srun does with the rest of a step of which one process failed",
    24: "SIGXCPU: its limit of CPU time",
    25: "SIGXFSZ: its limit of a file's size",
    31: "SIGSYS: a system call that it may not make",
    OUT_OF_MEMORY: "Slurm's sign for a step that was out of memory",
}
_CODES = {
    1: "an error or an exception of the program",
    2: "a wrong use of a command",
    TIMEOUT: "timeout(1) ended it",
    126: "the command cannot be executed",
    127: "the command was not found",
    255: "exit(-1), or a connection of ssh that failed",
}
# Signals that a process gets because of what it did itself, or of the memory it used.
OF_ITS_OWN = frozenset({4, 7, 8, SIGKILL, 11})


def signal_of(code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended a process, also one that a shell or srun made a code of."""
    if signal:
        return signal
    return code - BY_SIGNAL if code and BY_SIGNAL < code <= BY_SIGNAL + _SIGNALS_MAX else None


def signal_words(number: int) -> str:
    """Return `SIGKILL: out of memory, or kill -9`; empty: not a signal that means something."""
    return _SIGNALS.get(number, "")


def end_words(code: int | None, signal: int | None = None) -> str:
    """Return `SIGKILL: out of memory, or kill -9` where a signal ended it, else as `exit_words`."""
    number = signal_of(code, signal)
    return (signal_words(number) if number else "") or exit_words(code, signal)


def exit_words(code: int | None, signal: int | None = None) -> str:
    """Return `exit code 137, SIGKILL: out of memory, or kill -9`; empty: none, or 0.

    Code and signal are as Slurm has them, `137:0` or `0:9`.
    """
    code, number = code or 0, signal_of(code, signal)
    if number is not None:
        by = f"signal {number}" if signal else f"exit code {code}"
        return f"{by}, {_SIGNALS[number]}" if number in _SIGNALS else by
    if not code:
        return ""
    return f"exit code {code}, {_CODES[code]}" if code in _CODES else f"exit code {code}"
