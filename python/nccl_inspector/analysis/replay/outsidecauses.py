# SPDX-License-Identifier: Apache-2.0
"""Times in which all ranks took longer between their operations."""

from dataclasses import replace

import numpy as np

from nccl_inspector.analysis.replay.cause import HABIT_TIMES, OUTSIDE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.changes import GROWN, Changes
from nccl_inspector.analysis.replay.costs import cost_then, replayed_s, saved_share, slow_times
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.whatif import Question, Replay

# What all ranks do between operations differs by chance, too: it is grown beside much that is not.
_OUTSIDE_PIECES_MIN, _OUTSIDE_SHARE_MAX = 8, 0.6


def outside_causes(records: Records, replay: Replay, changes: Changes) -> list[Cause]:
    """Return the times in which all ranks took longer, with what that cost."""
    grown_at = changes.grown[np.isfinite(changes.grown)]
    grown_often = float(np.mean(grown_at >= GROWN)) if len(grown_at) else 0.0
    if len(grown_at) < _OUTSIDE_PIECES_MIN or not 0 < grown_often <= _OUTSIDE_SHARE_MAX:
        return []
    answers = replay.ask([Question(gap=changes.gap)])
    _, _, rows = saved_share(answers, 1)
    found = []
    for slow in slow_times(rows):
        # Where all ranks wait by chance for one thing, who waited how long is mostly hidden.
        cost = cost_then(records, answers, rows, slow, times_most=np.inf)
        pieces = [answers[at].piece for at in slow]
        grown = changes.grown[pieces]
        ends = slow[0] > 0 and slow[-1] < len(rows) - 1
        # Longer by as much everywhere in a step is more work, as of longer sequences.
        ends = ends and float(np.mean(changes.evenly[pieces])) < 0.5
        if cost >= TOLD_MIN and np.isfinite(grown).any():
            found.append(
                Cause(
                    OUTSIDE,
                    cost,
                    0.0,
                    rows[slow[0]][0],
                    rows[slow[-1]][1],
                    not ends,
                    ratio=float(np.nanmedian(grown)),
                    late_share=len(slow) / len(rows),
                    saved_s=cost * replayed_s(answers),
                    once=len(slow) == 1,
                )
            )
    if sum(not one.whole for one in found) >= HABIT_TIMES:
        return [replace(one, rare=True) for one in found]
    return found
