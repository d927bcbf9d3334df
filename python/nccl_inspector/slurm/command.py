# SPDX-License-Identifier: Apache-2.0
"""Run one of Slurm's commands without a shell, with limits on its environment, output and time."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.system.printable import printable

ANSWER_S = 10.0
_SILENT_S = 30.0  # so long a command that gave no answer is not asked again by this process
_REAP_S = 0.2
# Enough for an array of six thousand tasks, each with a record of 1.3 KB.
OUTPUT_BYTES_MAX = 8 << 20
NO_ANSWER = 124  # the status of a command that did not answer in time
TOO_MUCH = "more output than is taken"
TIME_FORMAT = {"SLURM_TIME_FORMAT": "%s"}  # Unix seconds


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    fixed = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    conf = os.environ.get("SLURM_CONF")
    return fixed | ({"SLURM_CONF": conf} if conf else {}) | dict(more)


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a command."""

    status: int
    output: str
    errors: str
    cut: bool = False  # it printed more than OUTPUT_BYTES_MAX

    @property
    def words(self) -> str:
        words = self.errors.split("\n", 1)[0][:200].strip() or f"exit status {self.status}"
        return printable(words)


class Command:
    """A running command."""

    def __init__(self, program: Path, *words: str, env: Mapping[str, str] | None = None) -> None:
        """Start the command.

        Raises:
            OSError: there is no such program, or no process could be started.
        """
        # Files in memory instead of pipes, so that nobody must read while the command writes.
        self._output_fd = os.memfd_create(program.name)
        try:
            self._errors_fd = os.memfd_create(f"{program.name}-errors")
        except OSError:
            os.close(self._output_fd)
            raise
        try:
            self._child = subprocess.Popen(
                [program, *words],
                stdin=subprocess.DEVNULL, stdout=self._output_fd, stderr=self._errors_fd,
                env=_environment(env or {}), cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._close()
            raise
        bound = OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX
        with suppress(OSError):  # it has ended already, or runs as another account
            resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, bound)

    def said(self) -> Said | None:
        """Return the result, only once; None while the command runs."""
        status = self._child.poll()
        if status is None:
            return None
        cut = os.fstat(self._output_fd).st_size >= OUTPUT_BYTES_MAX
        output, errors = (
            os.pread(fd, OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace")
            for fd in (self._output_fd, self._errors_fd)
        )
        self._close()
        return Said(status, output, errors, cut)

    def wait(self, seconds: float) -> Said | None:
        """Return the result, only once; None: it did not end in time and was killed."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        said = self.said()
        if said is None:
            self.stop()
        return said

    def stop(self) -> None:
        """Kill the command and everything in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        # A process that hangs in the kernel cannot be waited for; the next Popen reaps it.
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_REAP_S)
        self._close()

    def _close(self) -> None:
        for fd in (self._output_fd, self._errors_fd):
            os.close(fd)


# Until when (time.monotonic()) a program is not asked again.
_silent_until_s: dict[Path, float] = {}


def ask(
    program: Path, *words: str, env: Mapping[str, str] | None = None, seconds: float = ANSWER_S
) -> Said:
    """Run a command and return its result; without a complete answer the status is not 0.

    One that gave no answer is not asked again for a while: a report asks slurmctld four times, and
    hundreds may wait for theirs.
    """
    no_answer = Said(NO_ANSWER, "", f"no answer in {seconds:g} s")
    if time.monotonic() < _silent_until_s.get(program, 0.0):
        return no_answer
    try:
        said = Command(program, *words, env=env).wait(seconds)
    except OSError as err:
        return Said(127, "", f"{err.strerror}: {program}")  # a long path is cut
    if said is None:
        _silent_until_s[program] = time.monotonic() + _SILENT_S
        return no_answer
    if said.cut:
        return Said(1, "", TOO_MUCH)
    return said
