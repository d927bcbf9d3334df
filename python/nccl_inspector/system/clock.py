# SPDX-License-Identifier: Apache-2.0
"""The clocks of this machine, as one object that is passed in from outside.

A service reads time only from the clock that it was made with, never from the module `time`. So all
times that it compares are of the same source, and a test can play hours to all of it.
"""

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what this boot of the machine is known by; empty where that cannot be read."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


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
