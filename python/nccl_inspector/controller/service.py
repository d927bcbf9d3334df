# SPDX-License-Identifier: Apache-2.0
"""The main loop: look at the queue, and make the reports that are due, one at a time in a child.

From time to time another child removes what is too old.

The loop itself opens nothing but the queue. Everything on shared storage and every path of a user
is opened by a child (children.py). If the files of a job make a child hang or crash, the service
goes on with the next job and tries that one again a few times.
"""

import faulthandler
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

from nccl_inspector.controller.children import Children, NoAnswerError
from nccl_inspector.controller.due_reports import Due, ToDo, group
from nccl_inspector.controller.job_survey import look_at
from nccl_inspector.controller.missed_ends import LostEnds
from nccl_inspector.controller.notes import Notes
from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.pruning import prune
from nccl_inspector.controller.queue import Entry, Queue
from nccl_inspector.controller.report_child import Makers, make_report
from nccl_inspector.controller.reused_uids import revoke
from nccl_inspector.controller.shares import Shares, in_turns
from nccl_inspector.controller.suspects import list_suspects
from nccl_inspector.controller.unentered import are_noted, enter
from nccl_inspector.errors import InspectorError
from nccl_inspector.report.output import CPU_S as OUTPUT_CPU_S
from nccl_inspector.settings.config import Config
from nccl_inspector.system.notify import Notifier
from nccl_inspector.system.wakeup import Wakeup

PASS_S = 5.0
PASS_MAX_S = 30.0  # then the queue is read again and users are ordered again
LOOK_AGAIN_S = 60.0  # the longest pause, even if nothing has come for long
TRIES_MAX = 5
ENTER_S = 60.0  # between attempts to enter reports into an index that could not be written
PRUNE_S, PRUNE_AGAIN_S = 3600.0, 120.0  # between removals of old files; the second if some are left
RETRY_S = 30.0  # after the first try; doubled after each further one
RETRY_MAX_S = 600.0  # the longest pause if the job is not the cause
LOOK_JOBS = 64  # jobs that one child looks at
_SAID_MAX = 100

Make = Callable[[Due], Outcome]
log = logging.getLogger("nccl-inspector-controller")


def _user(entry: Entry) -> int:
    """Return the user whose share a report uses; if it is not known, a number for the job."""
    return -entry.leader if entry.uid is None else entry.uid


class Controller:
    """The service: the queue, and what it remembers between two passes."""

    def __init__(
        self, config: Config, queue: Queue, make: Make, children: Children | None = None
    ) -> None:
        self._config, self._queue, self._make = config, queue, make
        self.children = children or Children()
        self._notes = Notes(config.controller_dir, self.children)
        self._lost = LostEnds(config, queue, self.children, self._notes.accounted_s)
        self._looked: dict[int, tuple[float, float]] = {}  # when to look next, and the pause
        self._not_before_s: dict[int, float] = {}  # by job, after a failure
        self._said: set[str] = set()
        self._first_seen_s: dict[str, float] = {}  # by file of the queue, of time.monotonic()
        self._prune_next_s = 0.0  # of time.monotonic()
        self._enter_next_s = 0.0  # likewise
        self._storage_next_s = 0.0  # likewise, after the storage did not answer
        self._shares = Shares()
        self.stopping = False
        self.is_behind = False  # the last pass ended before it had looked at all jobs

    def one_pass(self, *, at_once: bool = False) -> int:
        """Make what is due; return how many ends are left. `at_once`: do not wait for pauses."""
        entries, problems = self._queue.scan()
        for problem in problems:
            log.warning("%s", problem)
        self._say_once(self._lost.look(entries, at_once=at_once))
        groups = group(self._waiting(entries, at_once))
        for known in (self._looked, self._not_before_s):
            for leader in known.keys() - groups.keys():
                del known[leader]
        left, begun_s = len(entries), time.monotonic()
        self._shares.keep(groups, begun_s)
        self.is_behind = False
        due = (one for one in self._in_turns(groups) if at_once or self._is_time(one))
        while not (self.stopping or self.is_behind) and (batch := list(islice(due, LOOK_JOBS))):
            looks = self._look({leader: groups[leader] for leader in batch})
            if not looks:
                break
            for leader in batch:
                if self.stopping or self.is_behind:
                    self._looked.pop(leader, None)  # the next pass looks at it
                    continue
                left -= self._settle(leader, groups[leader], looks.get(leader))
                # So that a new user has a turn soon, however many ends others have queued.
                self.is_behind = not at_once and time.monotonic() > begun_s + PASS_MAX_S
        if not self.stopping and (at_once or time.monotonic() >= self._enter_next_s):
            self._enter()
        if not self.stopping and (at_once or time.monotonic() >= self._prune_next_s):
            self._tidy({number for one in entries for number in (one.job_id, one.leader)})
        self._say_once(self._notes.write(left, self._queue.take_dropped(), self._lost))
        return left

    def _in_turns(self, groups: Mapping[int, Sequence[Entry]]) -> list[int]:
        """Return the jobs in the order in which to look at them, fair to their users."""
        now_s = time.monotonic()
        users = {leader: _user(its[0]) for leader, its in groups.items()}
        return in_turns(users, lambda user: self._shares.used_s(user, now_s))

    def _within_share(self, due: Due) -> Due:
        """Return what is due, with the job's output limited to the time that its user has left."""
        user, now_s = _user(due.entries[0]), time.monotonic()
        left_s = self._shares.left_s(user, due.leader, now_s)
        return due if left_s >= OUTPUT_CPU_S else replace(due, output_s=left_s)

    def _waiting(self, entries: Sequence[Entry], at_once: bool) -> list[Entry]:
        """Return the entries; one with a time in the future counts from when it was first seen.

        Such an entry is from before the clock was set back. With `at_once` it counts as old,
        because no later pass will see it.
        """
        seen_s, now_s = time.monotonic(), time.time()
        names = [one.file.partition(".try")[0] for one in entries]
        self._first_seen_s = {name: self._first_seen_s.get(name, seen_s) for name in names}
        return [
            replace(one, queued_s=0 if at_once else now_s - (seen_s - self._first_seen_s[name]))
            if one.queued_s > now_s
            else one
            for name, one in zip(names, entries, strict=True)
        ]

    def _enter(self) -> None:
        """Enter reports into the index that could not be written when they were made."""
        if not are_noted(self._config.controller_dir):
            return
        outcome = self.children.run(partial(enter, self._config), "enters reports into the index")
        if outcome.word == DONE:
            log.info("%s", outcome.detail)
        else:
            self._say_once(outcome.detail)
        # What is left after a child's time goes on at once.
        self._enter_next_s = time.monotonic() + (ENTER_S if outcome.detail else 0.0)

    def _tidy(self, queued: Collection[int]) -> None:
        """Close reports of former users, remove what is too old, list the suspect nodes."""
        kept = {*queued, *self._queue.failed_jobs()}
        pause_s = PRUNE_S
        for work, about in (
            (partial(revoke, self._config), "closes reports of former users"),
            (partial(prune, self._config, time.time(), kept), "removes what is too old"),
            (partial(list_suspects, self._config, time.time()), "lists suspect nodes"),
        ):
            outcome = self.children.run(work, about)
            if outcome.word != DONE:
                pause_s = PRUNE_AGAIN_S
                self._say_once(outcome.detail)
            elif outcome.detail:
                log.info("%s", outcome.detail)
        self._prune_next_s = time.monotonic() + pause_s

    def _is_time(self, leader: int) -> bool:
        now_s = time.monotonic()
        next_s, pause_s = self._looked.get(leader, (0.0, PASS_S / 2))
        if now_s < max(next_s, self._not_before_s.get(leader, 0.0)):
            return False
        pause_s = min(2 * pause_s, LOOK_AGAIN_S)
        self._looked[leader] = now_s + pause_s, pause_s
        return True

    def _look(self, groups: Mapping[int, Sequence[Entry]]) -> dict[int, ToDo | str]:
        """Return what can be done for each job; nothing while the storage does not answer."""
        if time.monotonic() < self._storage_next_s:
            return {}
        config = self._config
        work = partial(
            look_at, groups, config.report_dir, config.store_dir, time.time(),
            config.controller_wait_s,
        )  # fmt: skip
        try:
            return self.children.ask(work, "looks at summaries")
        except NoAnswerError as err:
            self._say_once(f"{config.report_dir} or {config.store_dir}: {err}")
            self._storage_next_s = time.monotonic() + LOOK_AGAIN_S
            return {}

    def _settle(self, leader: int, entries: list[Entry], found: ToDo | str | None) -> int:
        """Do what can be done for one job; return how many of its ends are settled."""
        settled = 0
        while isinstance(found, ToDo):
            gone = self._report(leader, found.due) if found.due else self._drop(found.empty)
            settled += len(gone)
            entries = [one for one in entries if one not in gone]
            if not gone or not entries:
                return settled
            found = self._look({leader: entries}).get(leader)
        self._say_once(found or "")
        return settled

    def _drop(self, empty: tuple[Entry, ...]) -> tuple[Entry, ...]:
        for entry in empty:
            log.debug("job %d: no summary came: it did not use NCCL", entry.job_id)
            self._queue.remove(entry)
        return empty

    def _report(self, leader: int, due: Due) -> tuple[Entry, ...]:
        """Make a report that is due; return the ends that are settled, with or without success."""
        tries = max(one.tries for one in due.entries) + 1
        marked = [self._queue.count_try(one, tries) for one in due.entries]
        begun_s, work = time.monotonic(), partial(self._make, self._within_share(due))
        outcome = self.children.run(work, f"makes the report of job {leader}")
        now_s = time.monotonic()
        self._shares.add(_user(due.entries[0]), leader, now_s - begun_s, now_s)
        if outcome.word == DONE:
            for entry in marked:
                self._queue.remove(entry)
            some = "" if due.complete else ", without the nodes that sent no summary"
            log.info("job %d: report of attempt %d stored%s", leader, due.attempt, some)
            self._say_once(outcome.detail)
            return due.entries
        if outcome.word == LATER or self.stopping:  # systemd ends the child together with us
            for entry in marked:
                self._queue.count_try(entry, tries - 1)
            self._say_once(f"job {leader}: not yet: {outcome.detail}")
            waited_s = max(0.0, time.time() - max(one.queued_s for one in due.entries))
            pause_s = min(max(RETRY_S, waited_s / 4), RETRY_MAX_S)
            self._not_before_s[leader] = time.monotonic() + pause_s
            return ()
        log.warning("job %d: try %d of %d: %s", leader, tries, TRIES_MAX, outcome.detail)
        if tries < TRIES_MAX:
            self._not_before_s[leader] = time.monotonic() + RETRY_S * 2 ** (tries - 1)
            return ()
        log.warning("job %d: set aside in %s/failed", leader, self._config.controller_dir)
        for entry in marked:
            self._queue.set_aside(entry, outcome.detail)
        return due.entries

    def _say_once(self, words: str) -> None:
        """Log a message only once, if it would otherwise come with every job."""
        if words and words not in self._said:
            if len(self._said) >= _SAID_MAX:
                self._said.clear()
            self._said.add(words)
            log.warning("%s", words)


@contextmanager
def alone(config: Config) -> Iterator[Queue]:
    """Give the queue, locked so that only one service uses it.

    Raises:
        InspectorError: there is no queue, another service uses it, or this process is root.
    """
    if os.geteuid() == 0:
        raise InspectorError(
            "root does not read users' measurements: run it as report_user or SlurmUser"
        )
    queue = Queue(config.controller_dir)
    try:
        fcntl.flock(queue.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield queue
    except BlockingIOError as err:
        raise InspectorError(f"another controller service runs on {config.controller_dir}") from err
    finally:
        queue.close()


def run_controller(config: Config, makers: Makers, once: bool) -> int:
    """Serve until a signal comes, or make one pass; return how many ended jobs are left.

    systemd hears READY once the queue is ours, because the first pass may take long to make
    reports, and WATCHDOG from the loop, also while it waits for a child.

    Raises:
        InspectorError: as for `alone`.
    """
    notifier = Notifier()
    with alone(config) as queue:
        controller = Controller(
            config,
            queue,
            lambda due: make_report(due, config, makers),
            Children(beat=notifier.beat),
        )
        if once:
            return controller.one_pass(at_once=True)
        faulthandler.enable()

        def stop(_number: int, _frame: object) -> None:
            controller.stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        wakeup = Wakeup()
        log.info("the service runs on %s", config.controller_dir)
        notifier.ready()
        left = 0
        while not controller.stopping:
            left = controller.one_pass()
            notifier.beat()
            wakeup.wait(0.0 if controller.is_behind else PASS_S)
        notifier.stopping()
        wakeup.close()
        return left
