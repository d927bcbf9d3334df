# SPDX-License-Identifier: Apache-2.0
"""Read what others wrote in children with limits of processor time, memory and waiting.

Such a child opens the file, too: a request to a dead or hostile file system waits in the child, and
nobody waits for the child's end.
"""

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.printable import plain

_CHUNK_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 1 << 30
_NAP_S, _NAPS = 0.01, 100  # until a killed child has ended
_DONE, _REFUSED, _END = b"+", b"-", b"."  # around an answer, which may be cut

Work = Callable[[], bytes]


class LateError(RefusedError):
    """There was no answer in time; `pid` may still hang on what it opened."""

    def __init__(self, pid: int) -> None:
        super().__init__("too_slow", "reading it took too long")
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Limits:
    """What one child may use; memory is what it may add to what its parent has.

    `file_bytes`: the size of a file that it may write.
    """

    cpu_s: int = 60
    wall_s: float = 120.0
    memory_bytes: int = 2 << 30
    file_bytes: int = 0


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit(limits: Limits) -> None:
    room = _address_space() + limits.memory_bytes
    for kind, most in (
        (resource.RLIMIT_AS, room),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
    ):
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, hard))


def _attempt(work: Work) -> tuple[bytes, bytes]:
    try:
        return _DONE, work()
    except RefusedError as err:
        reason, detail = err.reason, str(err).removeprefix(err.reason).removeprefix(": ")
    except OSError as err:
        reason, detail = "unreadable", str(err.strerror or err)
    except MemoryError:
        reason, detail = "too_big", "it needs too much memory"
    return _REFUSED, f"{reason}\n{detail}".encode()


class _Child:
    """A child that does one piece of work."""

    def __init__(self, number: int, work: Work, limits: Limits) -> None:
        self.number = number
        self.deadline = time.monotonic() + limits.wall_s
        self.fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(write_fd)
            raise
        if not self.pid:
            status = 1
            try:
                _limit(limits)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                with os.fdopen(write_fd, "wb") as stream:
                    stream.writelines((*_attempt(work), _END))
                status = 0
            finally:
                os._exit(status)  # do not flush the caller's buffers a second time
        os.close(write_fd)
        self._parts: list[bytes] = []
        self._bytes = 0

    def take(self) -> bool:
        """Take what has come; return whether that was all."""
        part = os.read(self.fd, _CHUNK_BYTES)
        self._parts.append(part)
        self._bytes += len(part)
        return not part or self._bytes > _ANSWER_BYTES_MAX

    def end(self) -> bytes | RefusedError:
        """Return the answer; a child that has given none yet is killed and not waited for."""
        data = b"".join(self._parts)
        whole = len(data) > 1 and data.endswith(_END)
        late = not whole and time.monotonic() > self.deadline
        os.close(self.fd)
        signal_number = self._reap(late)
        if whole and data[:1] == _DONE:
            return data[1:-1]
        if whole:
            reason, _, detail = data[1:-1].decode("utf-8", "replace").partition("\n")
            return RefusedError(reason, plain(detail))
        if late:
            return LateError(self.pid)
        if signal_number == signal.SIGXCPU:
            return RefusedError("too_slow", "reading it took too much processor time")
        return RefusedError("unreadable", "its reader ended without an answer")

    def stop(self) -> None:
        """End the child, whatever it does."""
        os.close(self.fd)
        self._reap(late=True)

    def _reap(self, late: bool) -> int:
        """Kill the child if it is late, and return the signal that ended it.

        A child that hangs in the kernel is not waited for.
        """
        with suppress(ProcessLookupError, ChildProcessError):
            if late:
                os.kill(self.pid, signal.SIGKILL)
            for _ in range(_NAPS if late else 1):
                pid, status = os.waitpid(self.pid, os.WNOHANG if late else 0)
                if pid:
                    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                time.sleep(_NAP_S)
        return 0


def run_limited(
    works: Sequence[Work], limits: Limits | None = None, at_once: int = 0
) -> Generator[tuple[int, bytes | RefusedError], None, None]:
    """Yield the number of each piece of work and what it returned, or why there is nothing.

    `at_once`: how many run at a time; 0: as many as there are processors. They come in the order in
    which they end.
    """
    limits = limits or Limits()
    rest = list(enumerate(works))[::-1]
    running: dict[int, _Child] = {}
    most = at_once or max(1, len(os.sched_getaffinity(0)))
    try:
        while rest or running:
            while rest and len(running) < most:
                number, work = rest.pop()
                try:
                    child = _Child(number, work, limits)
                except OSError as err:
                    yield number, RefusedError("unreadable", f"no process: {err.strerror}")
                    continue
                running[child.fd] = child
            now = time.monotonic()
            least = min((one.deadline for one in running.values()), default=now)
            ready = select.select(list(running), [], [], max(0.0, least - now))[0]
            over = [fd for fd in ready if running[fd].take()]
            now = time.monotonic()
            over += [fd for fd in running.keys() - over if now > running[fd].deadline]
            for fd in over:
                child = running.pop(fd)
                yield child.number, child.end()
    finally:
        for child in running.values():
            child.stop()
