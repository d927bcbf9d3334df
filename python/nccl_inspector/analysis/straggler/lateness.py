# SPDX-License-Identifier: Apache-2.0
"""When a rank came late: the rules, on the ranks' medians of the same operations.

A collective ends on all ranks at about the same time, so the rank with the least median came last,
by as much as the others' medians are above its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median

# A rank waits for all others only in these: elsewhere an early rank is not a late one.
SYNCHRONISING = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
LATE_NS_MIN = 200_000
LATE_SHARE_MIN = 0.03  # of T: the histogram knows a median to half of that
Z_MIN = 5.0
Z_RANKS_MIN = 4  # fewer have no spread to speak of
ERRORS_MIN = 5.0  # of the difference of two medians: chance alone does not get there
OPERATIONS_MIN = 5  # the first ones carry the start-up of the job
# A rank that was killed, or is read while it runs, has some operations less than its peers.
OPERATIONS_APART_MIN, OPERATIONS_APART_SHARE = 3, 0.05
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Lateness:
    """How a rank stands to the others of its communicator. Times are ns."""

    rank: int
    time_ns: float  # its median
    late_ns: float  # median over the others less its own
    z: float | None  # its distance from the median of all, in their spread; None: too few ranks
    clear: bool  # by all rules: else it is only the last


def floor_ns(time_ns: float) -> float:
    """Return what a lateness must reach to be one, T being `time_ns`."""
    return max(LATE_SHARE_MIN * time_ns, LATE_NS_MIN)


def median_without(ordered: Sequence[float], at: int) -> float:
    """Return the median of sorted values but for one of them."""
    left = len(ordered) - 1

    def value(place: int) -> float:
        return ordered[place + (place >= at)]

    return value(left // 2) if left % 2 else (value(left // 2 - 1) + value(left // 2)) / 2


def find_late(medians: Mapping[int, float], errors: Mapping[int, float]) -> tuple[Lateness, ...]:
    """Return the last of at least two ranks, then all others that are clearly late, the last first.

    Both arguments by rank: the median and its standard error, ns.
    """
    if len(medians) < 2:
        return ()
    order = sorted(medians, key=lambda rank: (medians[rank], rank))
    ordered = [medians[rank] for rank in order]
    shortest, middle, usual_error = ordered[0], median(ordered), median(errors.values())
    # No spread is taken for less than can be measured.
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
    """Return the ranks that counted the same operations, as far as numbers tell; may be none.

    Those with other numbers were not measured all the time, as after a kill switch, while only one
    operation in some was timed, or after a death: their medians are of other operations.
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
