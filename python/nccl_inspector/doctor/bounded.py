# SPDX-License-Identifier: Apache-2.0
"""Run readers side by side, each in a child process that is left behind if it hangs.

A reader that opens a file on a dead file system cannot be interrupted, not even by SIGKILL.
Therefore nobody waits for the end of a child, only for its answer.
"""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nccl_inspector.doctor.facts import CannotTell, CannotTellError
from nccl_inspector.errors import InspectorError
from nccl_inspector.system.printable import printable

READER_S = 12.0  # longer than a command of Slurm may take
_CHUNK_BYTES = 1 << 16
_ANSWER_BYTES_MAX = 16 << 20

Reader = Callable[[], Any]


def _attempt(work: Reader) -> Any:
    try:
        return work()
    except OSError as err:
        where = f"{err.filename}: " if err.filename else ""
        return CannotTell(printable(f"{where}{err.strerror or err}"))
    except (CannotTellError, InspectorError) as err:
        return CannotTell(printable(str(err)))


class _Child:
    """A child that runs one reader."""

    def __init__(self, work: Reader) -> None:
        """Start it.

        Raises:
            OSError: no process could be started.
        """
        self.fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self.fd)
                with os.fdopen(write_fd, "wb") as stream:
                    pickle.dump(_attempt(work), stream, pickle.HIGHEST_PROTOCOL)
            finally:
                os._exit(0)  # do not flush the caller's buffers a second time
        os.close(write_fd)
        self._parts: list[bytes] = []
        self._room = _ANSWER_BYTES_MAX

    def take(self) -> bool:
        """Take what has come; return whether that was all."""
        part = os.read(self.fd, _CHUNK_BYTES)
        self._parts.append(part)
        self._room -= len(part)
        return not part or self._room < 0

    def answer(self) -> Any:
        data = b"".join(self._parts)
        if not data.endswith(pickle.STOP) or self._room < 0:
            return CannotTell("its reader failed")
        return pickle.loads(data)  # noqa: S301 - our own child's

    def end(self) -> None:
        """Kill it; one that hangs in the kernel is not waited for."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def gather(readers: Mapping[str, Reader], seconds: float = READER_S) -> dict[str, Any]:
    """Return what each reader returns, or a CannotTell if it failed or gave no answer in time."""
    found: dict[str, Any] = {}
    running: dict[int, tuple[str, _Child]] = {}
    for name, work in readers.items():
        try:
            child = _Child(work)
        except OSError as err:
            found[name] = CannotTell(f"no process could be started: {err.strerror}")
            continue
        running[child.fd] = name, child
    deadline = time.monotonic() + seconds
    while running and (left := deadline - time.monotonic()) > 0:
        for fd in select.select(list(running), [], [], left)[0]:
            name, child = running[fd]
            if child.take():
                found[name] = child.answer()
                child.end()
                del running[fd]
    for name, child in running.values():
        found[name] = CannotTell(f"no answer in {seconds:g} s")
        child.end()
    return found
