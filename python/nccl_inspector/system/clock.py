# SPDX-License-Identifier: Apache-2.0
"""The clocks of this machine, as one object that is passed in from outside.

A service reads time only from the clock that it was made with, never from the module `time`. So all
times that it compares are of the same source, and a test can play hours to all of it.
"""

import time


class Clock:
    """What time it is, in seconds. A test overrides what it plays."""

    def unix_ns(self) -> int:
        """Return nanoseconds since 1970; somebody may set this clock at any time."""
        return time.time_ns()

    def unix_s(self) -> float:
        """Return `unix_ns` in seconds."""
        return self.unix_ns() / 1e9

    def monotonic_s(self) -> float:
        """Return the time of a clock that nobody can set; it stands still during suspension."""
        return time.monotonic()

    def boot_s(self) -> float:
        """Return the time since boot, including suspension; nobody can set it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def cpu_s(self) -> float:
        """Return the CPU time of the calling thread."""
        return time.thread_time()


SYSTEM_CLOCK = Clock()
