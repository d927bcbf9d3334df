# SPDX-License-Identifier: Apache-2.0
"""Clocks for what reads time from a Clock only: two that a test moves."""

from nccl_inspector.system.clock import Clock


class SteppedClock(Clock):
    """This machine's clocks, as far ahead as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0  # of every clock: so much time has passed
        self.set_s = 0.0  # of Unix time alone: somebody has set it

    def unix_ns(self) -> int:
        return super().unix_ns() + int((self.ahead_s + self.set_s) * 1e9)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def boot_s(self) -> float:
        return super().boot_s() + self.ahead_s


class StillClock(Clock):
    """Clocks on which time passes only when a test says so, also while somebody works."""

    def __init__(self, uptime_s: float = 1000.0) -> None:
        self.now_s = uptime_s
        self.used_s = 0.0  # CPU time
        self.booted_s = 1.7e9  # Unix time at the start of the machine

    def unix_ns(self) -> int:
        return int((self.booted_s + self.now_s) * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def cpu_s(self) -> float:
        return self.used_s
