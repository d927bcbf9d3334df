# SPDX-License-Identifier: Apache-2.0
"""Rules for when a rank is late, from the ranks' medians of the same operations.

A collective ends on all ranks at about the same time. So the rank with the lowest median came last,
and it is late by the difference from the others' median.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median

# Only in these a rank waits for all others; elsewhere the lowest time does not mean a late rank.
SYNCHRONISING = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
LATE_NS_MIN = 200_000
LATE_SHARE_MIN = 0.03  # of T; the histogram's median is exact to half of that
Z_MIN = 5.0
Z_RANKS_MIN = 4  # fewer ranks have no meaningful spread
ERRORS_MIN = 5.0  # of the difference of two medians: more than chance alone makes
OPERATIONS_MIN = 5  # the first ones carry the start-up of the job
# A rank that was killed, or is read while it runs, has a few operations less than its peers.
OPERATIONS_APART_MIN, OPERATIONS_APART_SHARE = 3, 0.05
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Lateness:
    """How a rank compares with the others of its communicator; times are ns."""

    rank: int
    time_ns: float  # its median
    late_ns: float  # the median of the others' medians, minus its own
    z: float | None  # distance from the median of all, in their spread; None: too few ranks
    clear: bool  # True: late by all rules; False: it is only the last


def floor_ns(time_ns: float) -> float:
    """Return the least time in ns that counts as late, for a T of `time_ns`."""
    return max(LATE_SHARE_MIN * time_ns, LATE_NS_MIN)


def median_without(ordered: Sequence[float], at: int) -> float:
    """Return the median of sorted values without the one at place `at`."""
    left = len(ordered) - 1

    def value(place: int) -> float:
        return ordered[place + (place >= at)]

    return value(left // 2) if left % 2 else (value(left // 2 - 1) + value(left // 2)) / 2


def find_late(medians: Mapping[int, float], errors: Mapping[int, float]) -> tuple[Lateness, ...]:
    """Return the last of at least two ranks, then all others that are clearly late, the last first.

    Both arguments are by rank: the median and its standard error, in ns.
    """
    if len(medians) < 2:
        return ()
    order = sorted(medians, key=lambda rank: (medians[rank], rank))
    ordered = [medians[rank] for rank in order]
    shortest, middle, usual_error = ordered[0], median(ordered), median(errors.values())
    # The spread is at least what can be measured.
    finest = max(LATE_SHARE_MIN * shortest / Z_MIN, 1.0)
    spread = max(MAD_TO_SIGMA * median(abs(value - middle) for value in ordered), finest)
    found: list[Lateness] = []
    for at, rank in enumerate(order):
        own = medians[rank]
        late_ns = median_without(ordered, at) - own
        z = (middle - own) / spread if len(order) >= Z_RANKS_MIN else None
        chance_ns = ERRORS_MIN * hypot(errors[rank], usual_error)
        clear = late_ns >= max(floor_ns(shortest), chance_ns) and (z is None or z > Z_MIN)
        if at and not clear:
            break
        found.append(Lateness(rank, own, late_ns, z, clear))
    return tuple(found)


def comparable(operations: Mapping[int, int], nranks: int) -> frozenset[int]:
    """Return the ranks that counted the same operations, judged by their numbers; may be empty.

    Ranks with other numbers were not measured all the time, for example after a kill switch, while
    only some operations were timed, or after a death. Their medians are of other operations.
    """
    if not operations:
        return frozenset()
    middle = median(operations.values())
    apart = max(OPERATIONS_APART_MIN, OPERATIONS_APART_SHARE * middle)
    alike = frozenset(
        rank
        for rank, count in operations.items()
        if count >= OPERATIONS_MIN and abs(count - middle) <= apart
    )
    return alike if len(alike) >= 2 and 2 * len(alike) >= nranks else frozenset()
