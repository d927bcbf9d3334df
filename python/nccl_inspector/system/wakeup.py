# SPDX-License-Identifier: Apache-2.0
"""Wait in the main thread until a signal comes.

threading.Event does not work here: if a signal arrives while its own thread holds the event's lock,
the handler that sets the event never returns.
"""

import os
import select
import signal


class Wakeup:
    """A pipe into which Python writes each signal that has a handler."""

    def __init__(self) -> None:
        """Start listening: the next `wait` notices signals that come from now on."""
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
        """Stop listening."""
        signal.set_wakeup_fd(-1)
        os.close(self._came)
        os.close(self._told)
