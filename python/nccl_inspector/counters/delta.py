# SPDX-License-Identifier: Apache-2.0
"""By how much a counter rose between two readings."""

from dataclasses import dataclass

from nccl_inspector.counters.counter_table import CounterSpec

RESET, STUCK = "reset", "stuck"


@dataclass(frozen=True, slots=True)
class Rise:
    """An amount in the counter's own unit; with a flag it is the least that it can have been."""

    amount: int
    flag: str = ""  # RESET, STUCK or nothing


def rise(counter: CounterSpec, before: int, after: int) -> Rise:
    """Return the rise from one reading to the next.

    A counter that wraps is taken to have wrapped where that is less than half its range,
    and to have been set back to 0 otherwise. One that reads more than its width allows
    is wider on this machine than the table says, and is neither.
    """
    top = 1 << counter.bits
    fits = before < top and after < top
    if counter.sticks and fits and after == top - 1:
        return Rise(max(0, after - before), STUCK)
    if after >= before:
        return Rise(after - before)
    around = after - before + top
    if not counter.sticks and fits and counter.bits < 64 and around < top // 2:
        return Rise(around)
    return Rise(after, RESET)
