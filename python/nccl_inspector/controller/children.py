# SPDX-License-Identifier: Apache-2.0
"""Run work in child processes, so that none of it can block the service for longer than a limit.

Each child has a time limit and a memory limit. A child that exceeds its time is killed. If it does
not end even then, because it hangs in a file system, it is left behind: it is counted, and noticed
when it ends later. Before a child opens a user's path it tells the service
(report/announced_paths.py). So the service knows the user of a path that hangs, and opens no path
of that user for a while (avoided_paths.py).
"""

import os
import pickle
import resource
import select
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nccl_inspector.controller.avoided_paths import Avoided
from nccl_inspector.controller.outcome import FAILED, LATER, Outcome
from nccl_inspector.errors import InspectorError
from nccl_inspector.report.announced_paths import AvoidedError, tell
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.printable import printable

CHILD_S = 300.0
VISIT_S = 75.0  # to open and read a path that a user chose; report/output.py gives up earlier
ASK_S = 120.0
BEAT_S = 3.0
REAP_S = 3.0  # a killed process ends within milliseconds, or hangs
LEFT_MAX = 16
LEFT_VISITS_MAX = 8  # from so many on, no user's path is opened
# Limit of the address space. A report of 8,192 ranks needs less than 1 GiB of memory; threads that
# read summaries reserve as much again without using it.
CHILD_BYTES = 5 << 30
_DETAIL_CHARS_MAX = 1000
_ANSWER_BYTES_MAX = 256 << 20
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.002
_FRAME = struct.Struct("!cIq")  # kind, bytes that follow, uid
_BEGIN, _END, _HUNG, _ANSWER = b"b", b"e", b"h", b"a"

Work = Callable[[], Outcome]
_Found = TypeVar("_Found")


class NoAnswerError(InspectorError):
    """A child gave no answer; the text says why. `is_stuck`: it hangs in a file system."""

    def __init__(self, why: str, *, is_stuck: bool = False) -> None:
        super().__init__(why)
        self.is_stuck = is_stuck


@dataclass(frozen=True, slots=True)
class Visited:
    """A user's path that a child has begun to open; `since_s` is a time of time.monotonic()."""

    uid: int
    path: Path
    since_s: float


@dataclass(frozen=True, slots=True)
class LeftChild:
    """A child that could not be ended. `uid`: whose path it opened; None: no user's path."""

    pid: int
    about: str
    since_s: float  # of time.monotonic()
    uid: int | None = None


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _send(fd: int, kind: bytes, payload: bytes = b"", uid: int = 0) -> None:
    _write_all(fd, _FRAME.pack(kind, len(payload), uid) + payload)


class _ChildMessage:
    """What a child has sent so far."""

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.visited: Visited | None = None
        self.hung: list[tuple[Visited, int]] = []  # with the pid of the hanging process
        self._data = bytearray()

    def take(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _FRAME.size:
            kind, length, uid = _FRAME.unpack_from(self._data)
            end = _FRAME.size + length
            if length > _ANSWER_BYTES_MAX or len(self._data) < end:
                return
            payload = bytes(self._data[_FRAME.size : end])
            del self._data[:end]
            if kind == _BEGIN:
                self.visited = Visited(uid, Path(os.fsdecode(payload)), time.monotonic())
            elif kind == _END:
                self.visited = None
            elif kind == _HUNG and self.visited is not None:
                self.hung.append((self.visited, int(payload)))
            elif kind == _ANSWER:
                self.answer = payload


def _reap(pid: int, seconds: float) -> int | None:
    """Return the wait status of a child that ends within so many seconds; None: it does not."""
    until_s, pause_s = time.monotonic() + seconds, 0.0
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= until_s:
            return None
        pause_s = min(pause_s + _POLL_S, 0.1)
        time.sleep(pause_s)


def _why_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"the child process was ended by {name}"
    return "the child process failed: see the lines before"


def _outcome(found: Outcome) -> Outcome:
    return Outcome(found.word, printable(found.detail[:_DETAIL_CHARS_MAX]))


def _no_outcome(err: NoAnswerError) -> Outcome:
    return Outcome(LATER if err.is_stuck else FAILED, printable(str(err)))


@dataclass(eq=False, slots=True)
class Started:
    """A child at work."""

    pid: int
    pipe_fd: int
    about: str
    until_s: float  # of time.monotonic()
    heard: _ChildMessage = field(default_factory=_ChildMessage)

    def due_s(self) -> float:
        """Return when it must have answered, or finished with a user's path."""
        visited = self.heard.visited
        return min(self.until_s, visited.since_s + VISIT_S) if visited else self.until_s

    def visits_for_s(self) -> float:
        """Return for how long it has been opening a user's path; 0: it is not."""
        visited = self.heard.visited
        return time.monotonic() - visited.since_s if visited else 0.0


class Children:
    """Starts children, waits for them, and remembers those that it had to leave behind."""

    def __init__(
        self,
        reap: Callable[[int, float], int | None] = _reap,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin without children. `reap` waits so many seconds for the end of a child.

        `beat` is called at least each BEAT_S while a child works: the wait for it has a limit.
        """
        self._reap_child, self._beat = reap, beat
        self._left: dict[int, LeftChild] = {}
        self.avoided = Avoided()
        self.left_in_all = 0

    @property
    def left(self) -> tuple[LeftChild, ...]:
        """Return the children that still hang."""
        return tuple(self._left.values())

    def collect(self) -> None:
        """Forget the children left behind that have ended since."""
        for pid in list(self._left):
            try:
                is_there = os.waitpid(pid, os.WNOHANG)[0] == 0
            except ChildProcessError:  # it was started by one of our children
                is_there = Path(f"/proc/{pid}").exists()
            if not is_there:
                del self._left[pid]

    def run(self, work: Work, about: str) -> Outcome:
        """Do a piece of work in a child; `about` describes it, for messages."""
        try:
            return _outcome(self._answer(work, about, CHILD_S))
        except NoAnswerError as err:
            return _no_outcome(err)

    def ask(self, work: Callable[[], _Found], about: str) -> _Found:
        """Return what `work` returns in a child.

        Raises:
            NoAnswerError: `work` raised an error, the child died, or it took too long.
        """
        return self._answer(work, about, ASK_S)

    def begin(self, work: Work, about: str) -> Started | Outcome:
        """Start a piece of work beside others; what cannot be started has an outcome at once."""
        try:
            return self._start(work, about, CHILD_S)
        except NoAnswerError as err:
            return _no_outcome(err)

    def outcomes(self, started: Collection[Started], *, wait: bool) -> dict[Started, Outcome]:
        """Return the outcomes of those that have ended. `wait`: until there is one."""
        found = {}
        for child, in_time in self._listen(started, wait=wait).items():
            try:
                found[child] = _outcome(pickle.loads(self._end(child, in_time)))  # noqa: S301 - ours
            except NoAnswerError as err:
                found[child] = _no_outcome(err)
        return found

    def _answer(self, work: Callable[[], _Found], about: str, seconds: float) -> _Found:
        child = self._start(work, about, seconds)
        in_time = self._listen([child])[child]
        found: _Found = pickle.loads(self._end(child, in_time))  # noqa: S301 - our own child's
        return found

    def _start(self, work: Callable[[], Any], about: str, seconds: float) -> Started:
        self.collect()
        if len(self._left) >= LEFT_MAX:
            raise NoAnswerError(f"{len(self._left)} processes hang in a file system", is_stuck=True)
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError as err:
            raise NoAnswerError(f"no child process: {err.strerror}", is_stuck=True) from err
        try:
            pid = start_child(partial(self._child, writing, work, seconds), [writing])
        except OSError as err:
            os.close(reading)
            raise NoAnswerError(f"no child process: {err.strerror}", is_stuck=True) from err
        finally:
            os.close(writing)
        return Started(pid, reading, about, time.monotonic() + seconds + 10)

    def _child(self, pipe_fd: int, work: Callable[[], Any], seconds: float) -> None:
        signal.alarm(int(seconds) + 1)
        resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
        tell(
            partial(self._visit, pipe_fd),
            lambda uid, _path, hung: _send(pipe_fd, _HUNG, str(hung).encode(), uid),
        )
        _send(pipe_fd, _ANSWER, pickle.dumps(work(), pickle.HIGHEST_PROTOCOL))

    @contextmanager
    def _visit(self, pipe_fd: int, uid: int, path: Path) -> Iterator[None]:
        """In the child: announce that it opens a user's path, or refuse to open it."""
        why = self.avoided.why_not(uid, path, time.monotonic())
        if not why and len(self._left) >= LEFT_VISITS_MAX:
            why = f"not opened: {len(self._left)} processes hang in a file system"
        if why:
            raise AvoidedError(why)
        _send(pipe_fd, _BEGIN, os.fsencode(path), uid)
        try:
            yield
        finally:
            _send(pipe_fd, _END)

    def _end(self, child: Started, in_time: bool) -> bytes:
        """Return the answer of a child. Afterwards the child has ended or is left behind."""
        os.close(child.pipe_fd)
        status = self._reap_child(child.pid, REAP_S) if in_time else None
        if status is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            status = self._reap_child(child.pid, REAP_S)
        heard = child.heard
        visited = heard.visited
        for hung_on, hung in heard.hung:
            self.avoided.add(hung_on.uid, hung_on.path, time.monotonic())
            if Path(f"/proc/{hung}").exists():
                self._leave(hung, "reads a job's output", hung_on.uid)
        if status is None:
            self._leave(child.pid, child.about, visited.uid if visited else None)
        if heard.answer is not None:
            return heard.answer
        if visited is not None and (not in_time or status is None):
            self.avoided.add(visited.uid, visited.path, time.monotonic())
            raise NoAnswerError(f"{visited.path}: no answer in {VISIT_S:g} s", is_stuck=True)
        if status is None:
            raise NoAnswerError("the child process hangs in a file system", is_stuck=True)
        raise NoAnswerError(_why_ended(status))

    def _leave(self, pid: int, about: str, uid: int | None) -> None:
        """Remember a process that could not be ended."""
        self.left_in_all += 1
        self._left[pid] = LeftChild(pid, about, time.monotonic(), uid)

    def _listen(self, started: Collection[Started], *, wait: bool = True) -> dict[Started, bool]:
        """Read from children until one has answered, ended or used up its time.

        Returns those that have, and whether that was in time. Without `wait` it reads what is there
        now.
        """
        while True:
            self._beat()
            left_s = {child: child.due_s() - time.monotonic() for child in started}
            if ended := {child: True for child in started if child.heard.answer is not None}:
                return ended
            if late := {child: False for child in started if left_s[child] <= 0}:
                return late
            by_fd = {child.pipe_fd: child for child in started}
            pause_s = min(BEAT_S, *left_s.values()) if wait else 0.0
            ready = select.select(list(by_fd), [], [], pause_s)[0]
            for fd in ready:
                data = os.read(fd, _CHUNK_BYTES)
                if data:
                    by_fd[fd].heard.take(data)
                else:
                    ended[by_fd[fd]] = True
            if ended or not (wait or ready):
                return ended
