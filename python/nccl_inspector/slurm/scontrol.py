# SPDX-License-Identifier: Apache-2.0
"""Ask scontrol about a job without waiting for it: a child at work, looked at again later."""

import time
from pathlib import Path

from nccl_inspector.slurm.command import ANSWER_S, Command, Said
from nccl_inspector.slurm.ended_job import Answer, Attempt, cluster_name, judge


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
        self._at_work = Command(program, "--oneliner", "show", "job", str(attempt.job_id))

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
            self._at_work = Command(self._program, "show", "config")
        except OSError as err:
            return Answer.NONE, f"{self._program}: {err.strerror}"
        self._asks_cluster = True
        return None

    def _confirm(self, said: Said) -> tuple[Answer, str]:
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
