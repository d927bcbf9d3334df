# SPDX-License-Identifier: Apache-2.0
"""Times in which all ranks took longer between their operations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, first_rows, number_rows
from nccl_inspector.analysis.replay.cause import HABIT_TIMES, OUTSIDE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.changes import GROWN, Changes
from nccl_inspector.analysis.replay.costs import cost_then, replayed_s, saved_share, slow_times
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Replay, WhatIf
from nccl_inspector.analysis.slow_times.standstills import Standstill

# What all ranks do between operations also varies by chance. A growth counts only if there are
# enough pieces, and most of them have not grown.
_OUTSIDE_PIECES_MIN, _OUTSIDE_SHARE_MAX = 8, 0.6
# The waits of a server for requests vary, and its slow pieces are scattered. Share of slow pieces
# that a slow time must have, and that other times may have.
_DENSE, _ELSEWHERE = 0.7, 0.3
_ERRORS, _SPREAD_MIN, _REST_MIN = 4.0, 0.01, 4
_ONE_STOP = 0.8  # share of a rank's extra time that is one stop
# Shares of a slow time and of its cost from which on slow transfers explain it, or a slow stage.
_EXPLAINED_TIME, _EXPLAINED_COST, _EXPLAINED_BY_STAGE = 0.5, 0.5, 1 / 1.5
STANDSTILL_S_MIN = 60.0  # shorter ones are normal in many programs


def _stops_once(records: Records, order: Order, more: Floats, pieces: Sequence[int]) -> bool:
    """Tell whether the extra time in some pieces was one single stop of each rank.

    `more`: extra time in ns by row. All gaps that are counted from one operation contain the same
    stop.
    """
    rows = np.flatnonzero(np.isin(records.piece, pieces) & (more > 0))
    if not len(rows):
        return False
    stop = number_rows(records.member[rows], order.cause[rows])
    longest = np.zeros(int(stop.max()) + 1)
    np.maximum.at(longest, stop, more[rows])
    member = records.member[rows][first_rows(stop)]
    every, most = np.zeros(records.members), np.zeros(records.members)
    np.add.at(every, member, longest)
    np.maximum.at(most, member, longest)
    some = every > 0
    return bool(np.median(most[some] / every[some]) >= _ONE_STOP)


def _is_time(grown: Floats, slow: Sequence[int]) -> bool:
    """Tell whether nearly all pieces from the first to the last of a slow time have grown."""
    return bool(np.mean(grown[slow[0] : slow[-1] + 1] >= GROWN) >= _DENSE)


def _stands_out(slow: Floats, errors: Floats, rest: Floats) -> bool:
    """Tell whether a slow time's pieces have grown by more than pieces differ by chance.

    `errors`: what may be chance in each of them. The rest alone cannot tell that, because the slow
    pieces were chosen among many for being slow.
    """
    rest = rest[np.isfinite(rest)]
    if len(rest) < _REST_MIN:
        return True
    # The standard deviation includes the tails: a few long waits do not make a time slow.
    apart = max(float(np.std(rest)), _SPREAD_MIN) * len(slow) ** 0.5
    error = max(apart, float(np.nansum(errors**2)) ** 0.5) / len(slow)
    return bool(np.nanmean(slow) - np.median(rest) >= _ERRORS * error)


def outside_causes(records: Records, order: Order, replay: Replay, changes: Changes) -> list[Cause]:
    """Return the times in which all ranks took longer, with their cost."""
    grown_at = changes.grown[np.isfinite(changes.grown)]
    grown_often = float(np.mean(grown_at >= GROWN)) if len(grown_at) else 0.0
    if len(grown_at) < _OUTSIDE_PIECES_MIN or not 0 < grown_often <= _OUTSIDE_SHARE_MAX:
        return []
    answers = replay.ask([WhatIf(gap=changes.gap)])
    _, _, rows = saved_share(answers, 1)
    grown_in, error_in = (
        values[[one.piece for one in answers]] for values in (changes.grown, changes.error)
    )
    times = [one for one in slow_times(rows) if _is_time(grown_in, one)]
    rest = np.delete(grown_in, [at for one in times for at in range(one[0], one[-1] + 1)])
    if len(rest) and np.mean(rest >= GROWN) > _ELSEWHERE:
        return []
    found = []
    for slow in times:
        pieces = [answers[at].piece for at in slow]
        still = _stops_once(records, order, -changes.gap, pieces)
        some = slice(slow[0], slow[-1] + 1)
        # One stop is not a chance sum of many waits, so no error is assumed.
        errors = np.zeros(1) if still else error_in[some]
        if not _stands_out(grown_in[some], errors, rest):
            continue
        # If all ranks wait for one thing, most of who waited how long is hidden.
        cost = cost_then(records, answers, rows, slow, times_most=np.inf)
        grown = changes.grown[pieces]
        ends = slow[0] > 0 and slow[-1] < len(rows) - 1
        # Equal growth everywhere in a step means more work, such as longer sequences.
        evenly = float(np.mean(changes.evenly[pieces])) >= 0.5
        if cost >= TOLD_MIN and np.isfinite(grown).any():
            found.append(
                Cause(
                    OUTSIDE,
                    cost,
                    0.0,
                    rows[slow[0]][0],
                    rows[slow[-1]][1],
                    not ends,
                    evenly=evenly,
                    still=still,
                    ratio=float(np.nanmedian(grown)),
                    late_share=len(slow) / len(rows),
                    saved_s=cost * replayed_s(answers),
                    once=len(slow) == 1,
                )
            )
    if sum(not one.whole and not one.evenly for one in found) >= HABIT_TIMES:
        return [replace(one, rare=True) for one in found]
    return found


def _is_explained(outside: Cause, by: Sequence[Cause], cost: float) -> bool:
    """Tell whether one of some causes has most of a time, and this share of what it costs."""
    least = _EXPLAINED_TIME * (outside.end - outside.start)
    return any(
        min(one.end, outside.end) - max(one.start, outside.start) >= least
        and one.cost_share >= cost * outside.cost_share
        for one in by
    )


def without_explained(
    outside: Sequence[Cause], transfers: Sequence[Cause], stages: Sequence[Cause]
) -> list[Cause]:
    """Return the slow times outside communication that nothing else explains.

    Gaps contain waits for transfers of which no record tells that they are waits, so they grow with
    T. A stop is nothing that transfers explain. A stage that is slower makes all ranks slower.
    """
    slower = [one for one in stages if not one.uneven]
    return [
        one
        for one in outside
        if not _is_explained(one, slower, _EXPLAINED_BY_STAGE)
        and (one.still or one.rare or not _is_explained(one, transfers, _EXPLAINED_COST))
    ]


def with_standstills(
    causes: Sequence[Cause], standstills: Sequence[Standstill]
) -> tuple[Cause, ...]:
    """Return the causes with the times in which the job stood still, the most costly first.

    Standstills cover the whole job and have exact costs, so they replace what the bursts say about
    the same time. Short ones are one cause together: many programs have them, and what they cost in
    all is worth knowing.
    """
    some = [
        one
        for one in standstills
        if one.end_s - one.start_s >= STANDSTILL_S_MIN and one.lost_share >= TOLD_MIN
    ]
    # A longer slow time whose worst part is a standstill is one cause.
    some = [one for one in some if not any(_holds(cause, one) for cause in causes)]
    short = [
        one
        for one in standstills
        if one not in some and not any(_holds(cause, one) for cause in causes)
    ]
    together = [_short_ones(short)] if sum(one.lost_share for one in short) >= TOLD_MIN else []
    gone = [*some, *(short if together else [])]
    kept = [
        cause
        for cause in causes
        if cause.kind != OUTSIDE or not any(_common_s(cause, one) > 0 for one in gone)
    ]
    found = [
        Cause(
            OUTSIDE,
            one.lost_share,
            0.0,
            one.start_s * 10**9,
            one.end_s * 10**9,
            False,
            rare=sum(other.lost_s >= one.lost_s / 4 for other in standstills) >= HABIT_TIMES,
            ratio=one.ratio,
            saved_s=one.lost_s,
            once=True,
            still=not one.steps,
        )
        for one in some
    ]
    return tuple(sorted([*kept, *found, *together], key=lambda one: -one.cost_share))


def _short_ones(some: Sequence[Standstill]) -> Cause:
    """Return several short standstills as one cause."""
    lost_s = sum(one.lost_s for one in some)
    return Cause(
        OUTSIDE,
        sum(one.lost_share for one in some),
        0.0,
        some[0].start_s * 10**9,
        some[-1].end_s * 10**9,
        False,
        rare=len(some) >= HABIT_TIMES,
        times=len(some),
        late_ns=float(np.median([one.lost_s for one in some])) * 1e9,
        ratio=float(np.median([one.ratio for one in some])),
        saved_s=lost_s,
        once=True,
        still=2 * sum(not one.steps for one in some) >= len(some),
    )


def _common_s(cause: Cause, one: Standstill) -> float:
    """Return for how many seconds a cause and a standstill overlap."""
    return min(cause.end / 1e9, one.end_s) - max(cause.start / 1e9, one.start_s)


def _holds(cause: Cause, one: Standstill) -> bool:
    """Tell whether a cause is a longer slow time that contains a standstill and is as costly."""
    length_s = one.end_s - one.start_s
    return (
        cause.kind == OUTSIDE
        and cause.saved_s >= one.lost_s
        and cause.end - cause.start > 2e9 * length_s
        and _common_s(cause, one) >= length_s / 2
    )
