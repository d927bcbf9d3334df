# SPDX-License-Identifier: Apache-2.0
"""Waiting that a signal ends, in the main thread.

Not an Event: a handler that comes while its own thread is at the lock of one never returns.
"""

import os
import select
import signal


class Wakeup:
    """A pipe into which Python writes each signal that has a handler."""

    def __init__(self) -> None:
        """Signals that come from now on are seen by the next `wait`."""
        self._came, self._told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)

    def wait(self, seconds: float, *descriptors: int) -> bool:
        """Wait for so many seconds at most; tell whether a signal has come.

        Returns early when one of the other descriptors can be read.
        """
        ready = select.select([self._came, *descriptors], [], [], seconds)[0]
        if self._came not in ready:
            return False
        os.read(self._came, 4096)
        return True

    def close(self) -> None:
        """Be told of no more signals."""
        signal.set_wakeup_fd(-1)
        os.close(self._came)
        os.close(self._told)
