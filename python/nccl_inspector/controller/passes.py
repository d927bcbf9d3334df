# SPDX-License-Identifier: Apache-2.0
"""Look at the queue, and make the reports that are due, each in a child, some at the same time.

From time to time another child removes what is too old.

The loop itself opens nothing but the queue. Everything on shared storage and every path of a user
is opened by a child (children.py). If the files of a job make a child hang or crash, the service
goes on with the next job and tries that one again a few times.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from nccl_inspector.controller.children import Children, NoAnswerError, Started
from nccl_inspector.controller.due_reports import Due, ToDo, group
from nccl_inspector.controller.job_survey import look_at
from nccl_inspector.controller.late_entries import enter
from nccl_inspector.controller.missed_ends import LostEnds
from nccl_inspector.controller.notes import Notes
from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.pruning import prune
from nccl_inspector.controller.queue import Entry, Queue
from nccl_inspector.controller.reused_uids import revoke
from nccl_inspector.controller.shares import Shares, in_turns
from nccl_inspector.controller.suspects import list_suspects
from nccl_inspector.controller.unentered import are_noted
from nccl_inspector.report.output import CPU_S as OUTPUT_CPU_S
from nccl_inspector.settings.config import Config

PASS_S = 5.0
PASS_MAX_S = 30.0  # then the queue is read again and users are ordered again
LOOK_AGAIN_S = 60.0  # the longest pause, even if nothing has come for long
TRIES_MAX = 5
ENTER_S = 60.0  # between attempts to enter reports into an index that could not be written
PRUNE_S, PRUNE_AGAIN_S = 3600.0, 120.0  # between removals of old files; the second if some are left
RETRY_S = 30.0  # after the first try; doubled after each further one
RETRY_MAX_S = 600.0  # the longest pause if the job is not the cause
LOOK_JOBS = 64  # jobs that one child looks at
REPORTS_MAX = 4  # children that make reports at the same time, if there are as many cores
# Of a report with more bytes of summaries no second one is made beside it, because of the memory.
LARGE_BYTES = 64 << 20
VISIT_ALONE_S = 1.0  # a user whose path takes longer to open waits for that before the next report
_SAID_MAX = 100

Make = Callable[[Due], Outcome]
log = logging.getLogger("nccl-inspector-controller")


def reports_at_once() -> int:
    """Return how many children may make reports at the same time: one for each core, up to some."""
    return min(REPORTS_MAX, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class _Report:
    """A report that is being made; `marked`: its entries with the number of this try."""

    leader: int
    due: Due
    marked: Sequence[Entry]
    tries: int
    begun_s: float  # of time.monotonic()
    entries: Sequence[Entry]  # all ends of the job

    @property
    def user(self) -> int:
        return _user(self.due.entries[0])

    @property
    def is_large(self) -> bool:
        return self.due.size > LARGE_BYTES


def _user(entry: Entry) -> int:
    """Return the user whose share a report uses; if it is not known, a number for the job."""
    return -entry.leader if entry.uid is None else entry.uid


class Controller:
    """The service: the queue, and what it remembers between two passes."""

    def __init__(
        self,
        config: Config,
        queue: Queue,
        make: Make,
        children: Children | None = None,
        may_work: Callable[[], bool] = lambda: True,
        at_the_same_time: int = 1,
    ) -> None:
        """Begin with an empty memory. `may_work`: asked again and again, ends a pass early.

        `at_the_same_time`: how many reports may be made at the same time.
        """
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
        self._may_work = may_work
        self._grouped: tuple[list[Entry] | None, dict[int, list[Entry]]] = None, {}
        self._room = at_the_same_time
        self._at_work: dict[Started, _Report] = {}
        self.is_behind = False  # the last pass ended before it had looked at all jobs

    def one_pass(self, *, at_once: bool = False) -> int:
        """Make what is due; return how many ends are left. `at_once`: do not wait for pauses."""
        entries, problems = self._queue.scan()
        for problem in problems:
            log.warning("%s", problem)
        self._say_once(self._lost.look(entries, at_once=at_once))
        groups = self._groups(entries, at_once)
        for known in (self._looked, self._not_before_s):
            for leader in known.keys() - groups.keys():
                del known[leader]
        begun_s = time.monotonic()
        self._shares.keep(groups, begun_s)
        left = len(entries) - self._make_due(groups, begun_s, at_once)
        if self._may_work() and (at_once or time.monotonic() >= self._enter_next_s):
            self._enter()
        if self._may_work() and (at_once or time.monotonic() >= self._prune_next_s):
            self._tidy({number for one in entries for number in (one.job_id, one.leader)})
        if self._may_work():  # or another service writes them
            self._say_once(self._notes.write(left, self._queue.take_dropped(), self._lost))
        return left

    def _groups(self, entries: list[Entry], at_once: bool) -> dict[int, list[Entry]]:
        """Return the ends by job; those of the last pass if nothing has come or gone."""
        before, groups = self._grouped
        if before is not entries or at_once:
            groups = group(self._waiting(entries, at_once))
            # A time in the future is another one in each pass.
            now_s = time.time()
            lasts = not at_once and all(one.queued_s <= now_s for one in entries)
            self._grouped = (entries if lasts else None), groups
        return groups

    def _make_due(self, groups: Mapping[int, list[Entry]], begun_s: float, at_once: bool) -> int:
        """Look at the jobs whose time it is; return how many ends are settled."""
        self.is_behind = False
        settled = 0
        due = (one for one in self._in_turns(groups) if at_once or self._is_time(one))
        try:
            while self._goes_on() and (batch := list(islice(due, LOOK_JOBS))):
                looks = self._look({leader: groups[leader] for leader in batch})
                if not looks:
                    break
                for leader in batch:
                    if not self._goes_on():
                        self._looked.pop(leader, None)  # the next pass looks at it
                        continue
                    settled += self._settle(leader, groups[leader], looks.get(leader))
                    if len(self._at_work) >= self._room:
                        settled += self._take_ended()
                    # So that a new user has a turn soon, however many ends others have queued.
                    self.is_behind = not at_once and time.monotonic() > begun_s + PASS_MAX_S
        finally:
            while self._at_work:
                settled += self._take_ended()
        return settled

    def _goes_on(self) -> bool:
        return self._may_work() and not self.is_behind

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
        work = partial(look_at, groups, config, time.time())
        try:
            return self.children.ask(work, "looks at summaries")
        except NoAnswerError as err:
            self._say_once(f"{config.report_dir} or {config.store_dir}: {err}")
            self._storage_next_s = time.monotonic() + LOOK_AGAIN_S
            return {}

    def _settle(self, leader: int, entries: list[Entry], found: ToDo | str | None) -> int:
        """Do or begin what can be done for one job; return how many ends are settled meanwhile."""
        settled = 0
        while isinstance(found, ToDo):
            if found.due:
                return settled + self._begin(leader, entries, found.due)
            gone = self._drop(found.empty)
            settled += len(gone)
            entries = [one for one in entries if one not in gone]
            if not gone or not entries:
                return settled
            found = self._look({leader: entries}).get(leader)
        self._say_once(found or "")
        return settled

    def _has_room(self, due: Due) -> bool:
        """Tell whether a report may be made beside those that are being made."""
        if len(self._at_work) >= self._room:
            return False
        is_large, user = due.size > LARGE_BYTES, _user(due.entries[0])
        return not any(
            (is_large and one.is_large)
            or (one.user == user and child.visits_for_s() > VISIT_ALONE_S)
            for child, one in self._at_work.items()
        )

    def _begin(self, leader: int, entries: Sequence[Entry], due: Due) -> int:
        """Begin a report that is due, when there is room; return how many ends others settled."""
        settled = self._take_ended(wait=False)
        while not self._has_room(due):
            settled += self._take_ended()
        tries = max(one.tries for one in due.entries) + 1
        marked = [self._queue.count_try(one, tries) for one in due.entries]
        report = _Report(leader, due, marked, tries, time.monotonic(), entries)
        work = partial(self._make, self._within_share(due))
        begun = self.children.begin(work, f"makes the report of job {leader}")
        if isinstance(begun, Outcome):
            return settled + self._ended(report, begun)
        self._at_work[begun] = report
        return settled

    def _take_ended(self, wait: bool = True) -> int:
        """Take what children have made; return how many ends are settled. `wait`: for one."""
        found = self.children.outcomes(self._at_work, wait=wait) if self._at_work else {}
        reports = [(self._at_work.pop(child), outcome) for child, outcome in found.items()]
        return sum(self._ended(report, outcome) for report, outcome in reports)

    def _ended(self, report: _Report, outcome: Outcome) -> int:
        """Take one report, and go on with further ends of its job."""
        gone = self._report(report, outcome)
        left = [one for one in report.entries if one not in gone]
        if not gone or not left:
            return len(gone)
        found = self._look({report.leader: left}).get(report.leader)
        return len(gone) + self._settle(report.leader, left, found)

    def _drop(self, empty: tuple[Entry, ...]) -> tuple[Entry, ...]:
        for entry in empty:
            log.debug("job %d: no summary came: it did not use NCCL", entry.job_id)
            self._queue.remove(entry)
        return empty

    def _report(self, report: _Report, outcome: Outcome) -> tuple[Entry, ...]:
        """Note how a report ended; return the ends that are settled, with or without success."""
        leader, due, marked, tries = report.leader, report.due, report.marked, report.tries
        now_s = time.monotonic()
        self._shares.add(report.user, leader, now_s - report.begun_s, now_s)
        if outcome.word == DONE:
            for entry in marked:
                self._queue.remove(entry)
            some = "" if due.complete else ", without the nodes that sent no summary"
            log.info("job %d: report of attempt %d stored%s", leader, due.attempt, some)
            self._say_once(outcome.detail)
            return due.entries
        if outcome.word == LATER or not self._may_work():  # systemd ends the child together with us
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
