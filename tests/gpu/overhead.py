# SPDX-License-Identifier: Apache-2.0
"""A training-like loop with and without the plugin, in turns: what the plugin costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.gpu.checks import Check

RATIO_MAX = 1.02  # of the median step; or within what the runs without it differ among themselves
CALL_NS_MAX = 5000  # more a call of NCCL: its own work for a profiler is in it, too


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the loop: medians over its steps and ranks, ns."""

    plugin: bool
    step_ns: float
    call_ns: float  # of a call of ncclAllReduce, through ctypes


def order_of_turns(pairs: int) -> list[bool]:
    """Return whether each turn has the plugin: pairs whose first changes, so that drift is even."""
    return [(turn % 2 == 0) == (turn // 2 % 2 == 0) for turn in range(2 * pairs)]


def check_overhead(turns: Sequence[Turn], operations: int, shares_a_gpu: bool) -> Check:
    """The step takes no longer with the plugin than the runs without differ, or than the limit."""
    check = Check("overhead", "Does a training-like loop take as long with the plugin as without?")
    bare = [turn for turn in turns if not turn.plugin]
    with_it = [turn for turn in turns if turn.plugin]
    if not bare or not with_it:
        check.problems.append("no turn of each kind came to its end")
        return check
    bare_ns = [turn.step_ns for turn in bare]
    ratio = median(turn.step_ns for turn in with_it) / median(bare_ns)
    spread = max(bare_ns) / median(bare_ns)
    added_ns = median(turn.call_ns for turn in with_it) - median(turn.call_ns for turn in bare)
    check.figures = {
        "turns": [
            [turn.plugin, round(turn.step_ns / 1e6, 3), round(turn.call_ns)] for turn in turns
        ],
        "turns_are": ["with the plugin", "median step, ms", "median call, ns"],
        "ratio_of_steps": round(ratio, 4),
        "longest_over_median_without": round(spread, 4),
        "added_per_call_ns": round(added_ns),
        "operations_per_turn": operations,
        # Then their kernels take turns, which is most of the time and of its spread.
        "ranks_share_a_gpu": shares_a_gpu,
    }
    check.demand(
        ratio <= max(RATIO_MAX, spread),
        f"the step takes {ratio:.3f} times as long; without it the longest is {spread:.3f}",
    )
    check.demand(added_ns <= CALL_NS_MAX, f"a call takes {added_ns:.0f} ns more")
    return check
