# SPDX-License-Identifier: Apache-2.0
"""What is measured: sizes, warm-up, and how often, so that it ends in time."""

from dataclasses import dataclass
from math import ceil

SIZE_MIN, SIZE_MAX = 1 << 20, 1 << 30
SIZES_MAX = 32
WARMUPS = 5  # operations before the first that counts: connections, buffers, clocks of the GPU
REPETITIONS_MIN, REPETITIONS_MAX = 5, 20
# A shorter timing would measure the barrier and the clock, too.
_REPETITION_S = 0.02
_OPERATIONS_MAX = 1000


def sizes(least: int, most: int) -> list[int]:
    """Return sizes in bytes from `least` to `most`, each twice the one before; `most` is one."""
    found: list[int] = []
    while least < most and len(found) < SIZES_MAX:
        found.append(least)
        least *= 2
    return [*found, most]


@dataclass(frozen=True, slots=True)
class Repeats:
    """So many timings of so many operations each; the barrier is before each timing."""

    repetitions: int
    operations: int


def repeats(operation_s: float, budget_s: float) -> Repeats:
    """Return how often to time operations that take so long, in `budget_s` or with the fewest."""
    operation_s = max(operation_s, 1e-7)
    operations = min(max(1, ceil(_REPETITION_S / operation_s)), _OPERATIONS_MAX)
    fitting = int(budget_s / (operation_s * operations))
    return Repeats(min(max(fitting, REPETITIONS_MIN), REPETITIONS_MAX), operations)


def least_s(operation_s: float) -> float:
    """Return the least time in s that a size needs whose operation takes so long."""
    return operation_s * (WARMUPS + REPETITIONS_MIN)


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of `count` members in rounds of disjoint pairs: a round-robin tournament.

    An even count needs `count` - 1 rounds; of an odd one a member rests in each of `count` rounds.
    """
    places: list[int | None] = [*range(count)]
    if count % 2:
        places.append(None)
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found
