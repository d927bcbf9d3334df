# SPDX-License-Identifier: Apache-2.0
"""Run a part of a computation on another processor, in a forked child."""

import fcntl
import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

_Found = TypeVar("_Found")
_PIPE_BYTES = 1 << 20  # as much as Linux allows; a large job's records are 60 MB


class Forked(Generic[_Found]):
    """A child that computes `work()` while the caller goes on; leaving the block ends it.

    `work` must change nothing that the caller needs. If there is only one processor, no process can
    be started, or the child dies, then `result` computes it in the caller. Limits on the caller's
    time and memory do not limit the child.
    """

    def __init__(self, work: Callable[[], _Found], *, worthwhile: bool = True) -> None:
        """Start nothing yet; `worthwhile` False: never start a child."""
        self._work = work
        self._worthwhile = worthwhile and len(os.sched_getaffinity(0)) > 1
        self._fd, self._pid = -1, 0

    def __enter__(self) -> Self:
        """Start the child."""
        if self._worthwhile:
            with suppress(OSError):
                self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the child if `result` was not asked for."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()
            os.close(self._fd)

    def _begin(self) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        with suppress(OSError):  # the user has many pipes already
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            pid = os.fork()
        except OSError:
            os.close(read_fd)
            os.close(write_fd)
            raise
        if not pid:
            status = 1
            try:
                with os.fdopen(write_fd, "wb") as stream:
                    pickle.dump(self._work(), stream, pickle.HIGHEST_PROTOCOL)
                status = 0
            finally:
                os._exit(status)  # do not flush the caller's buffers a second time
        os.close(write_fd)
        self._fd, self._pid = read_fd, pid

    def _reap(self) -> bool:
        """Wait for the child's end and return whether it exited with 0."""
        pid, self._pid = self._pid, 0
        try:
            return not os.waitpid(pid, 0)[1]
        except ChildProcessError:  # SIGCHLD is ignored: there is no status
            return False

    def result(self) -> _Found:
        """Return what `work` returns, when the child has it. Call this once.

        Raises:
            Exception: what `work` raises.
        """
        if self._pid:
            with os.fdopen(self._fd, "rb", closefd=False) as stream:
                data = stream.read()
            good = self._reap()
            os.close(self._fd)
            if good:
                found: _Found = pickle.loads(data)  # noqa: S301 - our own child's
                return found
        return self._work()
