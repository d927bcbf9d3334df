# SPDX-License-Identifier: Apache-2.0
"""How long a process has not beaten, by our own clock, which nobody can set."""

from collections.abc import Collection, Hashable
from typing import NamedTuple

from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock

# The beat thread beats once a second, but has a low priority, so some beats are late.
STOPPED_S = 15.0


class Now(NamedTuple):
    """A moment on both clocks."""

    real_ns: int  # Unix time
    monotonic_s: float


def now(clock: Clock = SYSTEM_CLOCK) -> Now:
    """Return this moment."""
    return Now(clock.unix_ns(), clock.monotonic_s())


class _Beat(NamedTuple):
    tick: int
    first_s: float  # monotonic time at which this beat was first seen
    aged_s: float  # its age at that time
    latest_s: float  # monotonic time of the latest look


class Beats:
    """The last beat of each process that was looked at."""

    def __init__(self) -> None:
        """Start without any beats."""
        self._beats: dict[Hashable, _Beat] = {}

    def silent_s(self, who: Hashable, tick: int, real_ns: int, at: Now) -> float:
        """Return how many seconds ago the beat was that has this tick and Unix time.

        Unix time only matters at the first look. Later, a new beat must be younger than the look
        before.
        """
        before = self._beats.get(who)
        if before and before.tick == tick:
            beat = before._replace(latest_s=at.monotonic_s)
        else:
            aged_s = max(0.0, (at.real_ns - real_ns) / 1e9)
            if before:
                aged_s = min(aged_s, at.monotonic_s - before.latest_s)
            beat = _Beat(tick, at.monotonic_s, aged_s, at.monotonic_s)
        self._beats[who] = beat
        return beat.aged_s + at.monotonic_s - beat.first_s

    def keep(self, known: Collection[Hashable]) -> None:
        """Forget all processes that are not in `known`."""
        for who in self._beats.keys() - set(known):
            del self._beats[who]

    def drop_before(self, latest_s: float) -> None:
        """Forget processes that were last looked at before this monotonic time."""
        self._beats = {who: one for who, one in self._beats.items() if one.latest_s >= latest_s}
