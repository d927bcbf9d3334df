# SPDX-License-Identifier: Apache-2.0
"""Turn the boxes of ended jobs into node summaries on shared storage, then delete the boxes."""

import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.ended_job import (
    LINGER_S,
    Ended,
    EndedReading,
    Made,
    NotYetError,
    parse_ended,
)
from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.errors import RefusedError
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.job_objects import SUMMARIES, key_of, user_word
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.object_store import ObjectStore
from nccl_inspector.system.remove_tree import remove_tree
from nccl_inspector.system.safe_files import directory, entry_names, open_directory
from nccl_inspector.system.write_as_user import (
    DONE,
    DONE_WITHOUT_ACL,
    Child,
    Target,
    reap,
    start,
    wait,
    write_report_file,
)

# How long a directory with a torn manifest is kept: its job is not known, but somebody may want to
# look at it.
TORN_S = 3600
# The longest time of one pass, so that publishing goes on.
PASS_S = 5
RETRY_FIRST_S, RETRY_LAST_S = 5, 600

_DONE_PREFIX = ".done-"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Ended jobs that a pass has left, by reason."""

    failed: int  # could not be handed over; will be tried again
    untried: int  # there was no time left for them
    waiting: int  # for their processes, or for the time to delete a torn manifest

    @property
    def overdue(self) -> int:
        """How many should be gone by now."""
        return self.failed + self.untried


def put_summary(config: Config, manifest: Manifest, name: str, data: bytes) -> bytes:
    """Write a summary into the site's object store, under the name that the prolog was told.

    Raises:
        OSError: the store does not answer, or refuses.
        InspectorError: a setting is wrong, or the library is missing.
    """
    key = key_of(SUMMARIES, manifest.job_id, user_word(manifest.user, manifest.uid), name)
    ObjectStore(config.object_url, config.object_keys).put(key, data)
    return DONE


@dataclass(frozen=True, slots=True)
class _Retry:
    due: float  # monotonic time
    delay_s: int


def _follows_held(ended: Ended, known: list[Ended], held: Collection[str]) -> bool:
    """Tell whether an earlier directory of the same job id is held back.

    Its summary may have the same file name, and the summary that is handed over last remains.
    """
    before = known[: known.index(ended)]
    return any(one.job_id == ended.job_id and one.name in held for one in before)


class Collector:
    """The ended jobs of this node; one at a time is handed over."""

    def __init__(
        self,
        run_fd: int,
        config: Config,
        tally: Tally,
        at_work: AtWork,
        *,
        watching: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Open `ended` below the run directory.

        `watching`: the waiting time of a job is measured by our own clock, which nobody can set. A
        collector for a single pass only has the time in the directory's name.

        Raises:
            OSError: there is no such directory.
        """
        self._ended_fd = open_directory("ended", run_fd)
        self._config = config
        self._tally = tally
        self._clock = clock
        self._retries: dict[str, _Retry] = {}
        self._working: tuple[Ended, Child] | None = None
        self._cut_short = False
        self._waiting: set[str] = set()  # names that were not due yet in the last pass
        self._reading: EndedReading | None = None
        self._watching = watching
        self._at_work = at_work
        self._first_seen: dict[str, float] = {}  # monotonic time, by name
        self._done: set[str] = set()  # done, but not renamed yet
        self._deadline = 0.0
        self._answered: list[int] = []
        self._users: dict[str, int] = {}  # by name; -1: nobody that is known
        self._used_s: dict[int, float] = {}  # by user, while jobs of theirs wait
        self._said_no_acl = False
        self._why_failed = ""  # the last failure, since which nothing was handed over

    def configure(self, config: Config) -> None:
        """Use another configuration from now on."""
        self._config = config

    def close(self) -> None:
        """Close the directory."""
        self._reading = None
        os.close(self._ended_fd)

    @property
    def wants_more(self) -> bool:
        """Whether the last pass ended because its time was up, and not because storage hangs."""
        return self._cut_short and self._working is None

    def left(self) -> Backlog:
        """Return the jobs that the last pass has left."""
        names = {ended.name for ended in self._list()}
        failed, waiting = names & self._retries.keys(), names & self._waiting
        return Backlog(len(failed), len(names - failed - waiting), len(waiting))

    @property
    def trouble(self) -> str:
        """Why ended jobs wait that were tried; empty: none does, or the last try worked."""
        return self._why_failed if self._retries else ""

    def jobs(self) -> set[int]:
        """Return the ids of the waiting jobs."""
        return {ended.job_id for ended in self._list()}

    def run_pass(self, wait_s: float, held: Collection[str] = ()) -> int:
        """Collect what is due, waiting up to `wait_s` for a child; return how many jobs are left.

        `held`: names that somebody else still writes to; they are not due.
        """
        self._deadline = self._clock.monotonic_s() + PASS_S
        self._answered = reap(self._answered)
        self._remove_done()
        known = self._list()
        now = self._clock.monotonic_s()
        self._first_seen = {one.name: self._first_seen.get(one.name, now) for one in known}
        self._users = {one.name: self._user_of(one) for one in known}
        waiting = set(self._users.values())
        self._used_s = {uid: used for uid, used in self._used_s.items() if uid in waiting}
        self._retries = {
            ended.name: self._retries[ended.name] for ended in known if ended.name in self._retries
        }
        self._waiting = {ended.name for ended in known if ended.name in held}
        self._cut_short = True
        if self._working is None or self._finish(wait_s):
            for ended in self._due([one for one in known if one.name not in held]):
                if _follows_held(ended, known, held):
                    self._waiting.add(ended.name)
                    continue
                begun_s, user = self._clock.monotonic_s(), self._users[ended.name]
                is_done = self._try(ended, wait_s)
                used_s = self._clock.monotonic_s() - begun_s
                self._used_s[user] = self._used_s.get(user, 0.0) + used_s
                if not is_done or self._clock.monotonic_s() > self._deadline:
                    break
            else:
                self._cut_short = False
        return len(self._list())

    def _list(self) -> list[Ended]:
        found = (parse_ended(name) for name in entry_names(self._ended_fd))
        waiting = (ended for ended in found if ended and ended.name not in self._done)
        return sorted(waiting, key=lambda ended: (ended.end_s, ended.name))

    def _user_of(self, ended: Ended) -> int:
        known = self._users.get(ended.name)
        if known is not None:
            return known
        try:
            with directory(ended.name, os.fstat(self._ended_fd).st_uid, self._ended_fd) as job_fd:
                return read_manifest(job_fd)[0].uid
        except (OSError, RefusedError):
            return -1

    def _age_s(self, ended: Ended) -> float:
        """Return how many seconds the job has waited here; negative if the clock was set back."""
        if self._watching:
            return self._clock.monotonic_s() - self._first_seen[ended.name]
        return self._clock.unix_s() - ended.end_s

    def _due(self, known: list[Ended]) -> list[Ended]:
        """Return the jobs to try: one that was partly read, then one of each user in turns.

        The user whose jobs have taken the least time comes first, so that nobody's hundred large
        jobs keep another's small one waiting. A user's own jobs keep their order.
        """
        half = self._reading.ended.name if self._reading else ""
        now = self._clock.monotonic_s()
        due = [
            ended
            for ended in known
            if ended.name not in self._retries or self._retries[ended.name].due <= now
        ]
        before: Counter[int] = Counter()
        turns: list[tuple[bool, int, float, Ended]] = []
        for ended in due:
            user = self._users[ended.name]
            turns.append((ended.name != half, before[user], self._used_s.get(user, 0.0), ended))
            before[user] += 1
        return [ended for *_, ended in sorted(turns, key=lambda one: one[:3])]

    def _try(self, ended: Ended, wait_s: float) -> bool:
        """Collect one directory; return False if the work, or its child, is not finished."""
        try:
            made = self._read(ended)
            if made is None:
                return False
            if not made.data:
                self._discard(ended)
                return True
            self._start(ended, made)
        except NotYetError:
            self._waiting.add(ended.name)
            return True
        except RefusedError as err:
            self._give_up(ended, err)
            return True
        except OSError as err:
            self._fail(ended, str(err))
            return True
        return self._finish(wait_s)

    def _read(self, ended: Ended) -> Made | None:
        """Return the summary of a job, or None if the pass ends before it is complete.

        Raises:
            RefusedError: there is no manifest that can be trusted.
            NotYetError: processes of the job are still running.
        """
        if self._reading and self._reading.ended != ended:
            self._reading = None
        lingers = self._age_s(ended) < LINGER_S
        reading = self._reading or EndedReading(
            ended, self._ended_fd, self._tally, lingers, counters=self._config.counters
        )
        self._reading = None
        with self._at_work.on(f"collect {ended.name}", NotYetError):
            for _ in reading.steps:
                if self._clock.monotonic_s() > self._deadline:
                    self._reading = reading
                    return None
        return reading.made

    def _start(self, ended: Ended, made: Made) -> None:
        manifest = made.manifest
        name = f"{manifest.node}.{manifest.restart}.nodesummary"
        config = self._config
        if config.object_url:
            where = config.object_url
            work = partial(put_summary, config, manifest, name, made.data)
        else:
            where = str(config.report_dir)
            target = Target(config.report_dir, manifest.job_id, name, manifest.uid)
            work = partial(write_report_file, target, made.data)
        self._working = ended, start(config.report_user, where, work)

    def _give_up(self, ended: Ended, err: RefusedError) -> None:
        old = self._age_s(ended) > TORN_S
        self._tally.say(
            ended.job_id,
            f"cannot be collected ({err}); its directory is removed "
            f"{'now' if old else 'in an hour'}",
        )
        if old:
            self._discard(ended)
        else:
            self._waiting.add(ended.name)

    def _fail(self, ended: Ended, why: str) -> None:
        last = self._retries.get(ended.name)
        delay_s = min(last.delay_s * 2, RETRY_LAST_S) if last else RETRY_FIRST_S
        self._retries[ended.name] = _Retry(self._clock.monotonic_s() + delay_s, delay_s)
        self._why_failed = f"the summaries of ended jobs are not handed over: {why}"
        self._tally.collect_failures += 1
        self._tally.say(ended.job_id, f"its summary is not handed over, will try again: {why}")

    def _discard(self, ended: Ended) -> None:
        """Remove a directory that is done; from now on it is never summarized again."""
        self._done.add(ended.name)
        self._remove_done()

    def _remove_done(self) -> None:
        """Remove directories that are done; the next pass tries again if one cannot be removed."""
        for name in sorted(self._done):
            with suppress(OSError):
                os.rename(
                    name,
                    _DONE_PREFIX + name,
                    src_dir_fd=self._ended_fd,
                    dst_dir_fd=self._ended_fd,
                )
        names = entry_names(self._ended_fd)
        self._done.intersection_update(names)
        for name in names:
            if name.startswith(_DONE_PREFIX):
                with suppress(OSError):
                    remove_tree(name, self._ended_fd)

    def _finish(self, wait_s: float) -> bool:
        """Wait for the running child; return False if it still runs."""
        if self._working is None:
            return True
        ended, child = self._working
        message = wait(child, wait_s)
        if message is None:
            return False
        self._working = None
        self._answered = reap([*self._answered, child.pid])
        if message not in (DONE, DONE_WITHOUT_ACL):
            self._fail(ended, message.decode("ascii", "replace") or "the child that writes it died")
            return True
        if message == DONE_WITHOUT_ACL and not self._said_no_acl:
            self._said_no_acl = True
            self._tally.say(ended.job_id, message.decode("ascii"))
        self._why_failed = ""
        self._discard(ended)
        return True
