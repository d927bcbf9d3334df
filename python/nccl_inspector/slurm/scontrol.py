# SPDX-License-Identifier: Apache-2.0
"""Ask scontrol about a job without waiting: start it now and look for its answer later."""

import time
from pathlib import Path

from nccl_inspector.slurm.command import ANSWER_S, Command, Said
from nccl_inspector.slurm.ended_job import Answer, Attempt, cluster_name, judge


class Question:
    """Asks Slurm about one attempt; if it ended, also asks whether this Slurm is the job's.

    With a slurm.conf of another cluster, every job here would look unknown.
    """

    def __init__(self, program: Path, attempt: Attempt) -> None:
        """Start asking; of the attempt only the job id, digits, goes onto a command line.

        Raises:
            OSError: there is no such program, or no process could be started.
        """
        self.attempt = attempt
        self._program = program
        self._deadline = time.monotonic() + ANSWER_S
        self._asks_cluster = False
        self._at_work = Command(program, "--oneliner", "show", "job", str(attempt.job_id))

    def answer(self) -> tuple[Answer, str] | None:
        """Return the answer, with the reason if there is none; None while scontrol runs."""
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
        """Return ENDED only if the cluster that told it is the job's own."""
        name = cluster_name(said.output) if said.status == 0 else ""
        if not name:
            return Answer.NONE, f"the cluster's name is not known: {said.words}"
        if name.casefold() == self.attempt.cluster.casefold():
            return Answer.ENDED, ""
        return Answer.OTHER, f"scontrol asks cluster {name!a}, which is not the job's"

    def stop(self) -> None:
        """Kill scontrol and everything in its process group."""
        self._at_work.stop()
