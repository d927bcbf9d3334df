# SPDX-License-Identifier: Apache-2.0
"""The loop: look at the queue, make what is due, one report at a time, each in a child.
Now and then another child removes what is too old.

A child has bounds of time and memory. Whatever a job's files make it do, hang and crash
included, the service goes on with the next job and comes back to that one a few times.
"""

import fcntl
import logging
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from nccl_inspector.childprocess import start_child
from nccl_inspector.config import Config
from nccl_inspector.controller.due import Due, group, look
from nccl_inspector.controller.making import DONE, FAILED, LATER, Makers, Outcome, make_report
from nccl_inspector.controller.pruning import prune
from nccl_inspector.controller.queue import Entry, Queue
from nccl_inspector.errors import InspectorError
from nccl_inspector.printable import printable
from nccl_inspector.wakeup import Wakeup

PASS_S = 5.0
LOOK_AGAIN_S = 60.0  # at the latest, however long nothing has come
TRIES_MAX = 5
PRUNE_S, PRUNE_AGAIN_S = 3600.0, 120.0  # between looks for what is too old; while there is more
RETRY_S = 30.0  # after the first try, doubled with each
RETRY_MAX_S = 600.0  # of what is no fault of the job: longer the longer it lasts
CHILD_S = 300
CHILD_BYTES = 4 << 30  # of addresses; a report of 8,192 ranks takes less than 1 GiB of memory
_SAID_MAX = 100
_MESSAGE_BYTES_MAX = 1024

Work = Callable[[], Outcome]
Make = Callable[[Due], Outcome]
log = logging.getLogger("nccl-inspector-controller")


def _child(pipe_fd: int, work: Work) -> None:
    signal.alarm(CHILD_S)
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
    outcome = work()
    os.write(pipe_fd, f"{outcome.word} {outcome.detail}".encode()[:_MESSAGE_BYTES_MAX])


def _read_outcome(pipe_fd: int, pid: int) -> Outcome:
    """Wait for the child's word; one that does not come in time is killed."""
    data = b""
    if select.select([pipe_fd], [], [], CHILD_S + 10)[0]:
        data = os.read(pipe_fd, _MESSAGE_BYTES_MAX)
    else:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    word, _, detail = data.decode("utf-8", "replace").partition(" ")
    if word in (DONE, LATER, FAILED):
        return Outcome(word, printable(detail))
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome(FAILED, f"the process that did it was ended by {name}")
    return Outcome(FAILED, "the process that did it broke off: see the lines before")


def run_in_child(work: Work) -> Outcome:
    """Do one thing in a process of its own."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        pid = start_child(partial(_child, writing, work), [writing])
    except OSError as err:
        os.close(reading)
        return Outcome(LATER, f"no process: {err.strerror}")
    finally:
        os.close(writing)
    try:
        return _read_outcome(reading, pid)
    finally:
        os.close(reading)


class Controller:
    """The queue and what is remembered of it between two passes."""

    def __init__(self, config: Config, queue: Queue, make: Make) -> None:
        self._config, self._queue, self._make = config, queue, make
        self._looked: dict[int, tuple[float, float]] = {}  # when next, and how long the pause is
        self._not_before_s: dict[int, float] = {}  # by job, after a failure
        self._said: set[str] = set()
        self._first_seen_s: dict[str, float] = {}  # by file of the queue, of time.monotonic()
        self._prune_next_s = 0.0  # of time.monotonic()
        self.stopping = False

    def one_pass(self, *, at_once: bool = False) -> int:
        """Make what is due; `at_once`: pauses count as over. Returns how many ends are left."""
        entries, problems = self._queue.scan()
        for problem in problems:
            log.warning("%s", problem)
        groups = group(self._waiting(entries, at_once))
        for known in (self._looked, self._not_before_s):
            for leader in known.keys() - groups.keys():
                del known[leader]
        left = len(entries)
        for leader, its in groups.items():
            if self.stopping:
                break
            if at_once or self._is_time(leader):
                left -= self._settle(leader, its)
        if not self.stopping and (at_once or time.monotonic() >= self._prune_next_s):
            self._prune({number for one in entries for number in (one.job_id, one.leader)})
        return left

    def _waiting(self, entries: Sequence[Entry], at_once: bool) -> list[Entry]:
        """Return the entries; one of the future, by a clock set back, waits since it was seen.

        `at_once`: nobody will see it again, so it has waited.
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

    def _prune(self, queued: Collection[int]) -> None:
        kept = {*queued, *self._queue.failed_jobs()}
        outcome = run_in_child(partial(prune, self._config, time.time(), kept))
        pause_s = PRUNE_S if outcome.word == DONE else PRUNE_AGAIN_S
        self._prune_next_s = time.monotonic() + pause_s
        if outcome.word == DONE and outcome.detail:
            log.info("%s", outcome.detail)
        elif outcome.word != DONE:
            self._say_once(outcome.detail)

    def _is_time(self, leader: int) -> bool:
        now_s = time.monotonic()
        next_s, pause_s = self._looked.get(leader, (0.0, PASS_S / 2))
        if now_s < max(next_s, self._not_before_s.get(leader, 0.0)):
            return False
        pause_s = min(2 * pause_s, LOOK_AGAIN_S)
        self._looked[leader] = now_s + pause_s, pause_s
        return True

    def _settle(self, leader: int, entries: list[Entry]) -> int:
        """Do what can be done for one job; returns how many of its ends are settled."""
        config, settled = self._config, 0
        while entries:
            try:
                found = look(
                    entries, config.report_dir, config.store_dir, time.time(),
                    config.controller_wait_s,
                )  # fmt: skip
            except InspectorError as err:
                self._say_once(str(err))
                return settled
            gone = self._report(leader, found.due) if found.due else self._drop(found.empty)
            if not gone:
                return settled
            settled += len(gone)
            entries = [one for one in entries if one not in gone]
        return settled

    def _drop(self, empty: tuple[Entry, ...]) -> tuple[Entry, ...]:
        for entry in empty:
            log.debug("job %d: no summary of it came: it did not use NCCL", entry.job_id)
            self._queue.remove(entry)
        return empty

    def _report(self, leader: int, due: Due) -> tuple[Entry, ...]:
        """Make a report that is due; returns the ends that are settled, well or not."""
        tries = max(one.tries for one in due.entries) + 1
        marked = [self._queue.count_try(one, tries) for one in due.entries]
        outcome = run_in_child(partial(self._make, due))
        if outcome.word == DONE:
            for entry in marked:
                self._queue.remove(entry)
            some = "" if due.complete else ", of those nodes that told"
            log.info("job %d: report of attempt %d stored%s", leader, due.attempt, some)
            self._say_once(outcome.detail)
            return due.entries
        if outcome.word == LATER or self.stopping:  # systemd ends the child with us
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
        """Log what would else be said with every job."""
        if words and words not in self._said:
            if len(self._said) >= _SAID_MAX:
                self._said.clear()
            self._said.add(words)
            log.warning("%s", words)


@contextmanager
def alone(config: Config) -> Iterator[Queue]:
    """Give the queue to one service only.

    Raises:
        InspectorError: there is no queue, another one is at work, or we are root.
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
        raise InspectorError(f"another one is at work on {config.controller_dir}") from err
    finally:
        queue.close()


def run_controller(config: Config, makers: Makers, once: bool) -> int:
    """Serve until a signal comes, or make one pass; returns how many ended jobs are left.

    Raises:
        InspectorError: as `alone`.
    """
    with alone(config) as queue:
        controller = Controller(config, queue, lambda due: make_report(due, config, makers))
        if once:
            return controller.one_pass(at_once=True)

        def stop(_number: int, _frame: object) -> None:
            controller.stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        wakeup = Wakeup()
        log.info("at work on %s", config.controller_dir)
        left = 0
        while not controller.stopping:
            left = controller.one_pass()
            wakeup.wait(PASS_S)
        wakeup.close()
        return left
