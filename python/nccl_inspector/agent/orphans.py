# SPDX-License-Identifier: Apache-2.0
"""End directories of jobs whose epilog never ran, but never that of a living job.

Slurm is asked, and only about a job of which no process has held a box for a while. If Slurm does
not answer, nothing is removed. A reboot is no evidence of its own: it leaves nothing on a tmpfs.
No process holds what it left on a disk, so Slurm is asked about that, too.
"""

import logging
import os
import random
import time
from dataclasses import dataclass

from nccl_inspector.agent.job_dir import DisplacedError, JobDirState, look, move_to_ended
from nccl_inspector.agent.last_question import read_last_question, write_last_question
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.attempt import Answer, Attempt, Question
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.safe_files import entry_names, open_directory

# How long a directory without a manifest is left alone; a prolog needs milliseconds to write one.
TORN_S = 3600.0
# Questions about a job become rarer, until there is one in this time plus up to half of it.
ALIVE_LAST_S = 3600.0
# While Slurm does not answer, all questions become rarer between these.
SILENT_FIRST_S, SILENT_LAST_S = 60.0, 600.0
# After this many questions without an answer, the cause is Slurm and not a single job.
UNHEARD_MAX = 3
# Locks are checked at least this often, however long sweep_after is.
LOOK_S = 60.0
# The time that a collection without an agent spends on all questions.
ONCE_S = 60.0

_POLL_S = 0.02

log = logging.getLogger("nccl-inspector")


@dataclass(slots=True)
class _OrphanWatch:
    """A directory in which nothing lives; times are of a clock that nobody can set."""

    seen: JobDirState
    asked: float  # the earliest time to ask Slurm
    delay_s: float
    looked: float
    unheard: bool = False  # the last question about it was not answered


def _jittered(seconds: float) -> float:
    """Return the time plus up to half of it, so that a thousand nodes do not ask at once."""
    return seconds * (1 + random.random() / 2)  # noqa: S311


def _order(found: tuple[float, str, JobDirState, float]) -> tuple[float, str]:
    return found[:2]


def _attempt(name: str, seen: JobDirState) -> Attempt:
    manifest = seen.manifest
    if manifest is None:
        return Attempt(int(name))
    return Attempt(int(name), manifest.node, manifest.restart, manifest.cluster)


class Sweeper:
    """Watches `jobs/`, and asks Slurm one question at a time."""

    def __init__(
        self, run_fd: int, config: Config, tally: Tally, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Watch below `run_fd`, which remains the caller's.

        Raises:
            OSError: there is no `jobs`.
        """
        self._run_fd = run_fd
        self._jobs_fd = open_directory("jobs", run_fd)
        self._config = config
        self._tally = tally
        self._clock = clock
        self._watched: dict[str, _OrphanWatch] = {}
        self._question: tuple[Question, JobDirState] | None = (
            None  # with the state of the directory
        )
        self._silent_s = 0.0
        self._silent_until = 0.0
        self._unheard = 0  # unanswered questions since the last answer
        self._said_silent = False

    def configure(self, config: Config) -> None:
        """Use another configuration from now on."""
        self._config = config

    def close(self) -> None:
        """Close the directory; a running question is abandoned."""
        if self._question:
            self._question[0].stop()
            self._question = None
        os.close(self._jobs_fd)

    @property
    def is_idle(self) -> bool:
        """Whether no question is running."""
        return self._question is None

    def run_pass(self) -> None:
        """Check every directory, act on Slurm's answer, and ask the next question.

        Raises:
            OSError: `jobs` cannot be listed.
        """
        names = set(filter(JOB_ID.fullmatch, entry_names(self._jobs_fd)))
        for name in self._watched.keys() - names:
            del self._watched[name]
        for name in sorted(names):
            self._look(name)
        self._hear()
        self._ask()

    def run_once(self) -> None:
        """Ask about every directory that has been still for sweep_after, for at most ONCE_S in all.

        The age of a directory is that of its youngest file. The clock may have been set, but only
        Slurm's answer ends a job; the age just saves questions. Later collections ask ever more
        rarely about a job that stays, and after the others.

        Raises:
            OSError: `jobs` cannot be listed.
        """
        deadline = self._clock.monotonic_s() + ONCE_S
        for name, seen, delay_s in self._due_once():
            write_last_question(name, self._jobs_fd, delay_s, self._clock.unix_s())
            there = self._start(name, seen)
            while self._question and self._clock.monotonic_s() < deadline:
                time.sleep(_POLL_S)
                self._hear()
            is_late = self._clock.monotonic_s() >= deadline
            if not there or self._unheard >= UNHEARD_MAX or is_late:
                return

    def _due_once(self) -> list[tuple[str, JobDirState, float]]:
        """Return the jobs to ask about, the longest unasked first, and how long that is good."""
        found, now_s = [], self._clock.unix_s()
        for name in filter(JOB_ID.fullmatch, entry_names(self._jobs_fd)):
            seen = self._see(name)
            if seen is None or seen.locked:
                continue
            first_s = self._first_s(seen)
            if abs(now_s - seen.newest_s) < first_s:
                continue
            last = read_last_question(name, self._jobs_fd)
            if last and last.is_fresh(now_s):
                continue
            delay_s = min(last.delay_s * 2, self._last_s()) if last else first_s
            found.append((last.asked_s if last else 0, name, seen, delay_s))
        return [(name, seen, delay_s) for _, name, seen, delay_s in sorted(found, key=_order)]

    def _first_s(self, seen: JobDirState) -> float:
        return self._config.sweep_after_s if seen.manifest else TORN_S

    def _last_s(self) -> float:
        return max(ALIVE_LAST_S, self._config.sweep_after_s)

    def _see(self, name: str) -> JobDirState | None:
        try:
            return look(name, self._jobs_fd)
        except OSError as err:
            self._tally.say(int(name), f"its directory cannot be looked at: {err.strerror}")
            return None

    def _look(self, name: str) -> None:
        """Update the watch over one directory."""
        now, watch = self._clock.monotonic_s(), self._watched.get(name)
        every_s = min(LOOK_S, self._config.sweep_after_s / 10)
        if watch and now < watch.looked + every_s:
            return
        seen = self._see(name)
        if seen is None:
            self._watched.pop(name, None)
            return
        if watch and seen.same(watch.seen) and not seen.locked:
            watch.looked = now
            return
        first_s = self._first_s(seen)
        self._watched[name] = _OrphanWatch(seen, now + _jittered(first_s), first_s, now)

    def _ask(self) -> None:
        """Start the question that has waited longest, if one is due."""
        now = self._clock.monotonic_s()
        if self._question or now < self._silent_until or not self._watched:
            return
        name = min(self._watched, key=lambda one: self._watched[one].asked)
        watch = self._watched[name]
        if now < watch.asked:
            return
        self._start(name, watch.seen)

    def _start(self, name: str, seen: JobDirState) -> bool:
        """Start a question; return False if there is nothing to ask with."""
        try:
            attempt = _attempt(name, seen)
            self._question = Question(self._config.scontrol, attempt, self._clock), seen
        except OSError as err:
            self._tally.answers[Answer.NONE.value] += 1
            self._silence(name, f"{self._config.scontrol}: {err.strerror}")
            return False
        return True

    def _hear(self) -> None:
        """Act on the answer, if there is one."""
        if self._question is None:
            return
        question, seen = self._question
        heard = question.answer()
        if heard is None:
            return
        answer, words = heard
        self._question = None
        self._tally.answers[answer.value] += 1
        name = str(question.attempt.job_id)
        if answer is Answer.NONE:
            self._silence(name, words)
            return
        self._end_silence(name)
        if answer is Answer.OTHER:
            self._tally.say(question.attempt.job_id, f"its directory stays: {words}")
        if answer is not Answer.ENDED:
            self._put_off(name)
            return
        # Meanwhile the job, or a process of it, may have been started again.
        now = self._see(name)
        if now and seen.same(now) and not now.locked:
            self._end(name, now, "Slurm says that it has ended, and no epilog came")
        self._watched.pop(name, None)

    def _put_off(self, name: str) -> None:
        """Ask about a job again later, more rarely, and after those that already wait."""
        if watch := self._watched.get(name):
            watch.asked = self._clock.monotonic_s() + _jittered(watch.delay_s)
            watch.delay_s = min(watch.delay_s * 2, self._last_s())

    def _silence(self, name: str, why: str) -> None:
        """Stop asking Slurm for a while; log it once until Slurm answers.

        It is not logged again for a single job about which Slurm does not answer.
        """
        watch = self._watched.get(name)
        self._unheard += 1
        known = watch is not None and watch.unheard and self._unheard < UNHEARD_MAX
        if not self._said_silent and not known:
            log.warning(
                "cannot ask Slurm about jobs without an epilog, so they are not collected yet: %s",
                why,
            )
            self._said_silent = True
        if watch:
            watch.unheard = True
        self._put_off(name)
        first_s = min(SILENT_FIRST_S, self._config.sweep_after_s)
        self._silent_s = min(self._silent_s * 2, SILENT_LAST_S) or first_s
        self._silent_until = self._clock.monotonic_s() + _jittered(self._silent_s)

    def _end_silence(self, name: str) -> None:
        """Note that Slurm has answered, and about which job."""
        if self._said_silent:
            log.warning("Slurm answers again")
        self._said_silent, self._unheard = False, 0
        self._silent_s = self._silent_until = 0.0
        if watch := self._watched.get(name):
            watch.unheard = False

    def _end(self, name: str, seen: JobDirState, why: str) -> None:
        try:
            moved = move_to_ended(name, seen, self._run_fd, self._clock.unix_ns())
        except DisplacedError as err:
            self._tally.swept += 1
            self._tally.say(
                int(name),
                f"{why}; but another attempt's directory was moved and cannot be moved back: {err}",
            )
            return
        except OSError as err:
            self._tally.say(int(name), f"{why}, but its directory stays: {err.strerror}")
            return
        if moved:
            self._tally.swept += 1
            torn = "" if seen.manifest else "; its manifest cannot be read"
            self._tally.say(int(name), f"{why}{torn}: its directory is collected")
