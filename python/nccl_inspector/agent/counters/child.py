# SPDX-License-Identifier: Apache-2.0
"""Ask a source that may hang, in a child process that is never waited for."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from nccl_inspector.counters.sample import Sample, decode, encode
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

# NVML with a sick GPU takes seconds, and a command to a NIC's firmware up to a minute.
DEADLINE_S = 10.0
_SAMPLE_BYTES_MAX = 4 << 20

HUNG, DIED = "hung", "died"


class SourceChild:
    """One source, asked by one child at a time."""

    def __init__(
        self,
        read: Callable[[], Sample],
        clock: Clock = SYSTEM_CLOCK,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._read = read
        self._clock = clock
        self._deadline_s = deadline_s
        self._pid = 0
        self._memory_fd = -1
        self._begun = 0.0  # monotonic time
        self._said_hung = False

    @property
    def is_free(self) -> bool:
        """Whether no child runs; a child that even SIGKILL does not end still counts as running."""
        return self._pid == 0

    @property
    def hangs(self) -> bool:
        """Whether the running child has exceeded its time."""
        return self._pid != 0 and self._clock.monotonic_s() - self._begun > self._deadline_s

    def ask(self) -> None:
        """Start a child, unless one is running.

        Raises:
            OSError: no process or memory could be had.
        """
        if self._pid:
            return
        memory_fd = os.memfd_create("nccl-inspector-sample")
        self._begun = self._clock.monotonic_s()
        try:
            self._pid = start_child(partial(self._work, memory_fd), [memory_fd])
        except OSError:
            os.close(memory_fd)
            raise
        self._memory_fd, self._said_hung = memory_fd, False

    def poll(self) -> Sample | str | None:
        """Return the sample; None: not there yet; HUNG (once) or DIED: it will not come."""
        if self._pid == 0:
            return None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            return self._finish(status)
        if not self.hangs:
            return None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        said, self._said_hung = self._said_hung, True
        return None if said else HUNG

    def close(self) -> None:
        """Kill the child, without waiting for one that cannot be killed."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, os.WNOHANG)
            self._forget()

    def _work(self, memory_fd: int) -> None:
        signal.alarm(int(self._deadline_s) + 1)  # a child must not outlive an agent that was killed
        sample = self._read()
        data = encode(replace(sample, took_s=self._clock.monotonic_s() - self._begun))
        with os.fdopen(memory_fd, "wb") as file:
            file.write(data)

    def _finish(self, status: int) -> Sample | str | None:
        said = self._said_hung
        try:
            data = os.pread(self._memory_fd, _SAMPLE_BYTES_MAX, 0)
        finally:
            self._forget()
        if status == 0 and not said:
            with suppress(ValueError):
                return decode(data)
        return None if said else DIED

    def _forget(self) -> None:
        os.close(self._memory_fd)
        self._pid, self._memory_fd = 0, -1
