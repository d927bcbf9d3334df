# SPDX-License-Identifier: Apache-2.0
"""How many different series a job may have in Prometheus' head, over its whole life.

The limits of files and jobs apply to one moment. A job that always names its series differently
would keep these limits and still fill the memory of a Prometheus, which holds each series for hours
after its end. So every series counts from its first publication until it has been absent for so
long that Prometheus has forgotten it, too.
"""

from collections.abc import Iterable
from hashlib import blake2b

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.clock import Clock

# Prometheus drops a series from its head up to three hours after its last sample.
FORGET_S = 4 * 3600.0
# How often the existing series are noted.
LOOK_S = 600.0
# A full process has 250 series on its GPU, so this is enough for eight, one after another, in four
# hours.
GPU_SERIES_MAX = 2000
# Assumed if Slurm does not say how many GPUs the job has.
USUAL_GPUS = 8
GPUS_MAX = 16

_HASH_BYTES = 8
FILE_BYTES_MAX = GPUS_MAX * GPU_SERIES_MAX * _HASH_BYTES


def series_limit(gpus: int) -> int:
    """Return how many different series a job may have; `gpus`: on this node, 0: unknown."""
    return min(gpus or USUAL_GPUS, GPUS_MAX) * GPU_SERIES_MAX


def _hash(text: str) -> int:
    # A cryptographic hash, so that a user cannot find two series that count as one.
    return int.from_bytes(blake2b(text.encode(), digest_size=_HASH_BYTES).digest(), "little")


class SeriesBudget:
    """The series of one job that count; times are of a clock that nobody can set."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._seen: dict[int, float] = {}  # by hash: when the series was last seen
        self._looked_s = clock.monotonic_s()
        self.is_changed = False  # a series was admitted; the caller clears this after saving

    def __len__(self) -> int:
        """Return how many series count now."""
        return len(self._seen)

    def admit(self, text: str) -> bool:
        """Return whether a series may be published; `text`: its name and labels."""
        key = _hash(text)
        if key in self._seen:
            return True
        if len(self._seen) >= self._limit:
            return False
        self._seen[key] = self._clock.monotonic_s()
        self.is_changed = True
        return True

    @property
    def wants_look(self) -> bool:
        """Whether `look` should be called."""
        return self._clock.monotonic_s() - self._looked_s >= LOOK_S

    def look(self, present: Iterable[str]) -> None:
        """Note which series exist, and forget those that have been absent for FORGET_S."""
        now_s = self._looked_s = self._clock.monotonic_s()
        for text in present:
            key = _hash(text)
            if key in self._seen:
                self._seen[key] = now_s
        # A series may have ended just after the last look.
        oldest_s = now_s - FORGET_S - LOOK_S
        self._seen = {key: seen_s for key, seen_s in self._seen.items() if seen_s >= oldest_s}

    def encode(self) -> bytes:
        """Return the bytes for the next agent."""
        return b"".join(key.to_bytes(_HASH_BYTES, "little") for key in self._seen)

    def restore(self, data: bytes) -> None:
        """Continue with what an earlier agent has counted, as if all of it was seen just now.

        Raises:
            RefusedError: the data are not from `encode`.
        """
        if len(data) % _HASH_BYTES or len(data) > FILE_BYTES_MAX:
            raise RefusedError("bad_series_budget", f"{len(data)} bytes")
        now_s = self._clock.monotonic_s()
        keys = (data[at : at + _HASH_BYTES] for at in range(0, len(data), _HASH_BYTES))
        self._seen |= {int.from_bytes(key, "little"): now_s for key in keys}
