# SPDX-License-Identifier: Apache-2.0
"""Jobs' directories whose epilog never came: end them, and never one of a job that lives.

Another boot of the node is enough. Else Slurm is asked, and only about a job of
which no process has held a box for a while; without an answer everything stays.
"""

import logging
import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.config import Config
from nccl_inspector.hostile import entry_names
from nccl_inspector.jobdir import Look, look, move_to_ended
from nccl_inspector.scontrol import Question
from nccl_inspector.slurmjob import Answer, Attempt
from nccl_inspector.tally import Tally

# How long a directory without a manifest is left alone: a prolog needs milliseconds for one.
TORN_S = 3600.0
# Questions about a job that lives become rarer, down to one in this time.
ALIVE_LAST_S = 3600.0
# So do all of them while Slurm does not answer.
SILENT_FIRST_S, SILENT_LAST_S = 60.0, 600.0
# Locks are looked at so often, however long sweep_after is.
LOOK_S = 60.0
# What a single collection spends on questions in all.
ONCE_S = 60.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_JOB = re.compile(r"[1-9][0-9]{0,17}")
_POLL_S = 0.02

log = logging.getLogger("nccl-inspector")


@dataclass(slots=True)
class _Watch:
    """A directory in which nothing lives; times are of time.monotonic()."""

    seen: Look
    asked: float  # when Slurm may be asked, at the earliest
    delay_s: float
    looked: float


def _jittered(seconds: float) -> float:
    """Spread by half: a thousand nodes must not ask at once."""
    return seconds * (1 + random.random() / 2)  # noqa: S311


def read_boot_id() -> str:
    """Return this boot's id; empty where the kernel does not say it."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _attempt(name: str, seen: Look) -> Attempt:
    manifest = seen.manifest
    return Attempt(int(name), manifest.node, manifest.restart) if manifest else Attempt(int(name))


class Sweeper:
    """The watch over `jobs/`, one question to Slurm at a time."""

    def __init__(self, run_fd: int, config: Config, tally: Tally) -> None:
        """Watch below `run_fd`, which stays the caller's.

        Raises:
            OSError: there is no `jobs`.
        """
        self._run_fd = run_fd
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._jobs_fd = os.open("jobs", flags, dir_fd=run_fd)
        self._config = config
        self._tally = tally
        self._boot_id = read_boot_id()
        self._watched: dict[str, _Watch] = {}
        self._question: tuple[Question, Look] | None = None  # with what it was asked about
        self._silent_s = 0.0
        self._silent_until = 0.0

    def close(self) -> None:
        """Close the directory; a question at work is given up."""
        if self._question:
            self._question[0].stop()
            self._question = None
        os.close(self._jobs_fd)

    def run_pass(self) -> None:
        """Look at every directory, hear what Slurm has said, ask the next question.

        Raises:
            OSError: `jobs` cannot be listed.
        """
        names = set(filter(_JOB.fullmatch, entry_names(self._jobs_fd)))
        for name in self._watched.keys() - names:
            del self._watched[name]
        for name in sorted(names):
            self._look(name)
        self._hear()
        self._ask()

    def run_once(self) -> None:
        """Ask about every directory that has been still for sweep_after, for ONCE_S in all.

        The age is that of the youngest file. The clock may have been set: only Slurm's
        answer ends a job, the age just spares questions.

        Raises:
            OSError: `jobs` cannot be listed.
        """
        deadline = time.monotonic() + ONCE_S
        for name in sorted(filter(_JOB.fullmatch, entry_names(self._jobs_fd))):
            seen = self._see(name)
            if seen is None or seen.locked or self._rebooted(name, seen):
                continue
            age_s = abs(time.time() - seen.newest_s)
            if age_s < (self._config.sweep_after_s if seen.manifest else TORN_S):
                continue
            self._start(name, seen)
            while self._question and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                self._hear()
            if self._silent_s or time.monotonic() >= deadline:
                return

    def _see(self, name: str) -> Look | None:
        try:
            return look(name, self._jobs_fd)
        except OSError as err:
            self._tally.say(int(name), f"its directory cannot be looked at: {err.strerror}")
            return None

    def _rebooted(self, name: str, seen: Look) -> bool:
        """End the directory of an attempt that another boot of the node has seen."""
        manifest = seen.manifest
        if not manifest or not manifest.boot_id or not self._boot_id or seen.locked:
            return False
        if manifest.boot_id == self._boot_id:
            return False
        self._end(name, seen, "the node was rebooted while it ran")
        return True

    def _look(self, name: str) -> None:
        """Keep the watch over one directory up to date."""
        now, watch = time.monotonic(), self._watched.get(name)
        every_s = min(LOOK_S, self._config.sweep_after_s / 10)
        if watch and now < watch.looked + every_s:
            return
        seen = self._see(name)
        if seen is None or self._rebooted(name, seen):
            self._watched.pop(name, None)
            return
        if watch and seen.same(watch.seen) and not seen.locked:
            watch.looked = now
            return
        first_s = self._config.sweep_after_s if seen.manifest else TORN_S
        self._watched[name] = _Watch(seen, now + _jittered(first_s), first_s, now)

    def _ask(self) -> None:
        """Start the question that has waited longest, if one is due."""
        now = time.monotonic()
        if self._question or now < self._silent_until or not self._watched:
            return
        name = min(self._watched, key=lambda one: self._watched[one].asked)
        watch = self._watched[name]
        if now < watch.asked:
            return
        self._start(name, watch.seen)

    def _start(self, name: str, seen: Look) -> None:
        try:
            self._question = Question(self._config.scontrol, _attempt(name, seen)), seen
        except OSError as err:
            self._tally.answers[Answer.NONE.value] += 1
            self._silence(f"{self._config.scontrol}: {err.strerror}")

    def _hear(self) -> None:
        """Act on the answer, if it is there."""
        if self._question is None:
            return
        question, seen = self._question
        heard = question.answer()
        if heard is None:
            return
        answer, words = heard
        self._question = None
        self._tally.answers[answer.value] += 1
        if answer is Answer.NONE:
            self._silence(words)
            return
        if self._silent_s:
            log.warning("Slurm answers again")
        self._silent_s = self._silent_until = 0.0
        name = str(question.attempt.job_id)
        if answer is Answer.ALIVE:
            self._put_off(name)
            return
        # Meanwhile the job may have been started again, or a process of it.
        now = self._see(name)
        if now and seen.same(now) and not now.locked:
            self._end(name, now, "Slurm says that it has ended, and no epilog came")
        self._watched.pop(name, None)

    def _put_off(self, name: str) -> None:
        """Ask about a job that lives again, but more rarely."""
        if watch := self._watched.get(name):
            last_s = max(ALIVE_LAST_S, self._config.sweep_after_s)
            watch.asked = time.monotonic() + _jittered(watch.delay_s)
            watch.delay_s = min(watch.delay_s * 2, last_s)

    def _silence(self, why: str) -> None:
        """Leave Slurm alone for a while; said once until it answers."""
        if not self._silent_s:
            log.warning("cannot ask Slurm about jobs without an epilog, they stay: %s", why)
        first_s = min(SILENT_FIRST_S, self._config.sweep_after_s)
        self._silent_s = min(self._silent_s * 2, SILENT_LAST_S) or first_s
        self._silent_until = time.monotonic() + _jittered(self._silent_s)

    def _end(self, name: str, seen: Look, why: str) -> None:
        try:
            moved = move_to_ended(name, seen, self._run_fd)
        except OSError as err:
            self._tally.say(int(name), f"{why}, but its directory stays: {err.strerror}")
            return
        if moved:
            self._tally.swept += 1
            torn = "" if seen.manifest else "; its manifest cannot be read"
            self._tally.say(int(name), f"{why}{torn}: its directory is collected")
