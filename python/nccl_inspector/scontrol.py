# SPDX-License-Identifier: Apache-2.0
"""Ask scontrol about a job without waiting for it: a child at work, looked at again later."""

import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.slurmjob import Answer, Attempt, cluster_name, judge

ANSWER_S = 10.0
_REAP_S = 0.2
# An array has a record of 1.3 KB for each of its tasks: this is six thousand.
OUTPUT_BYTES_MAX = 8 << 20


def _environment() -> dict[str, str]:
    fixed = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    conf = os.environ.get("SLURM_CONF")
    return fixed | ({"SLURM_CONF": conf} if conf else {})


@dataclass(frozen=True, slots=True)
class _Said:
    """What a scontrol said; `words` is why it did not, in one plain line."""

    status: int
    output: str
    errors: str
    cut: bool  # it wanted to say more than we take

    @property
    def words(self) -> str:
        words = self.errors.split("\n", 1)[0][:200].strip() or f"exit status {self.status}"
        return "".join(char if char.isprintable() else "?" for char in words)


class _Scontrol:
    """One process at work."""

    def __init__(self, program: Path, *words: str) -> None:
        """Start it.

        Raises:
            OSError: there is no such program, or no process could be had.
        """
        # Files in memory: nobody need read them while scontrol writes.
        self._output_fd = os.memfd_create("scontrol")
        self._errors_fd = os.memfd_create("scontrol-errors")
        try:
            self._child = subprocess.Popen(
                [program, *words],
                stdin=subprocess.DEVNULL, stdout=self._output_fd, stderr=self._errors_fd,
                env=_environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._close()
            raise
        bound = OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX
        with suppress(OSError):  # it is over already, or became another account's
            resource.prlimit(self._child.pid, resource.RLIMIT_FSIZE, bound)

    def said(self) -> _Said | None:
        """Return what it said, once; None while it is at work."""
        status = self._child.poll()
        if status is None:
            return None
        cut = os.fstat(self._output_fd).st_size >= OUTPUT_BYTES_MAX
        output, errors = (
            os.pread(fd, OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace")
            for fd in (self._output_fd, self._errors_fd)
        )
        self._close()
        return _Said(status, output, errors, cut)

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


class Question:
    """What Slurm says of one attempt, and of an end whether it is the job's own Slurm.

    A slurm.conf of another cluster would make every job here an unknown one.
    """

    def __init__(self, program: Path, attempt: Attempt) -> None:
        """Start asking; only the job's number, digits, goes onto a command line.

        Raises:
            OSError: there is no such program, or no process could be had.
        """
        self.attempt = attempt
        self._program = program
        self._deadline = time.monotonic() + ANSWER_S
        self._asks_cluster = False
        self._at_work = _Scontrol(program, "--oneliner", "show", "job", str(attempt.job_id))

    def answer(self) -> tuple[Answer, str] | None:
        """Return the answer and, where there is none, why; None while scontrol is at work."""
        said = self._at_work.said()
        if said is None:
            if time.monotonic() < self._deadline:
                return None
            self.stop()
            return Answer.NONE, f"no answer in {ANSWER_S:.0f} s"
        if self._asks_cluster:
            return self._confirm(said)
        if said.cut:
            return Answer.ALIVE, "more records than can be judged"
        answer = judge(said.status, said.output, said.errors, self.attempt)
        if answer is not Answer.ENDED or not self.attempt.cluster:
            return answer, said.words
        try:
            self._at_work = _Scontrol(self._program, "show", "config")
        except OSError as err:
            return Answer.NONE, f"{self._program}: {err.strerror}"
        self._asks_cluster = True
        return None

    def _confirm(self, said: _Said) -> tuple[Answer, str]:
        """Return an end as such only when it was the job's own cluster that told it."""
        name = cluster_name(said.output) if said.status == 0 else ""
        if not name:
            return Answer.NONE, f"the cluster's name is not known: {said.words}"
        if name.casefold() == self.attempt.cluster.casefold():
            return Answer.ENDED, ""
        return Answer.OTHER, f"scontrol asks cluster {name!a}, which is not the job's"

    def stop(self) -> None:
        """End it, with whatever it has started."""
        self._at_work.stop()
