# SPDX-License-Identifier: Apache-2.0
"""Ask scontrol about a job without waiting for it: a child at work, looked at again later."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from nccl_inspector.slurmjob import Answer, Attempt, judge

ANSWER_S = 10.0
_REAP_S = 0.2
# An array has a record of 1.3 KB for each of its tasks.
_OUTPUT_BYTES_MAX = 32 << 20


def _environment() -> dict[str, str]:
    fixed = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    conf = os.environ.get("SLURM_CONF")
    return fixed | ({"SLURM_CONF": conf} if conf else {})


def _text(fd: int) -> str:
    """Return what was written; of too long a text only the word that every record begins with."""
    if os.fstat(fd).st_size > _OUTPUT_BYTES_MAX:
        return "JobId="
    return os.pread(fd, _OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace")


class Question:
    """One scontrol at work."""

    def __init__(self, program: Path, attempt: Attempt) -> None:
        """Start it; only the job's number, digits, goes onto its command line.

        Raises:
            OSError: there is no such program, or no process could be had.
        """
        self.attempt = attempt
        self._deadline = time.monotonic() + ANSWER_S
        # Files in memory: nobody need read them while scontrol writes.
        self._output_fd = os.memfd_create("scontrol")
        self._errors_fd = os.memfd_create("scontrol-errors")
        try:
            self._child = subprocess.Popen(
                [program, "--oneliner", "show", "job", str(attempt.job_id)],
                stdin=subprocess.DEVNULL, stdout=self._output_fd, stderr=self._errors_fd,
                env=_environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._close()
            raise

    def answer(self) -> tuple[Answer, str] | None:
        """Return the answer and, where there is none, why; None while scontrol is at work."""
        status = self._child.poll()
        if status is None:
            if time.monotonic() < self._deadline:
                return None
            self.stop()
            return Answer.NONE, f"no answer in {ANSWER_S:.0f} s"
        output, errors = _text(self._output_fd), _text(self._errors_fd)
        self._close()
        answer = judge(status, output, errors, self.attempt)
        words = errors.split("\n", 1)[0][:200].strip() or f"exit status {status}"
        return answer, "".join(char if char.isprintable() else "?" for char in words)

    def stop(self) -> None:
        """End it, with whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        # One that hangs in the kernel cannot be waited for; the next Popen reaps it.
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_REAP_S)
        self._close()

    def _close(self) -> None:
        for fd in (self._output_fd, self._errors_fd):
            os.close(fd)
