# SPDX-License-Identifier: Apache-2.0
"""Compute by how much a counter rose between two readings."""

from dataclasses import dataclass

from nccl_inspector.counters.counter_table import CounterSpec

RESET, STUCK = "reset", "stuck"


@dataclass(frozen=True, slots=True)
class Rise:
    """An amount in the counter's own unit; with a flag, it is the least possible amount."""

    amount: int
    flag: str = ""  # RESET, STUCK or empty


def rise(counter: CounterSpec, before: int, after: int) -> Rise:
    """Return the rise from one reading to the next.

    If the reading fell, a counter that wraps is taken to have wrapped when that gives less than
    half its range, and to have been reset to 0 otherwise. A reading above the table's width means
    that the counter is wider on this machine; then it is not taken to wrap or to stick.
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
