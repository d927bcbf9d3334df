# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline that became slower than the other stages for some time.

All ranks of a stage do the same work, and no other rank does it: if all of them are slow, nobody is
beside them to tell what is usual. But the stage itself shows it, at other times. What all stages
have in common, such as longer sequences, does not count.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, first_rows, number_rows, quantiles
from nccl_inspector.analysis.replay.cause import LATE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.changes import GAP_NS_MIN
from nccl_inspector.analysis.replay.costs import felt_later, period_of, replayed_s, saved_share
from nccl_inspector.analysis.replay.culprits import LATE_NS_MIN
from nccl_inspector.analysis.replay.gaps import Gaps
from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.what_if import Replay, WhatIf
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA

_STAGES_MAX = 32  # stages that are asked
_PIECES_MIN = 8
_BASE = 0.25  # quantile over the pieces: the median of the better half
_GROWN_MIN = 1.02  # how many times longer than at other times a stage's gaps must be
_ERRORS = 5.0  # standard deviations of the other pieces by which they must be longer
_SPREAD_MIN = 0.002
_SLOW_MIN = 2  # pieces
_COST_ERRORS = 4.0  # standard errors that a cost must be above 0


@dataclass(frozen=True, slots=True)
class _Growth:
    """Stages x pieces: gaps / what they are in the better pieces, beside the other stages."""

    stages: Ints
    times: Floats
    base: Floats  # by row: the usual gap in the better pieces; NaN: not known


def _growth(records: Records, order: Order, gaps: Gaps) -> _Growth | None:
    """Return how much longer each stage's gaps are in each piece; None: there is one stage."""
    numbers = np.unique(order.stage[np.unique(records.member)])
    pieces = int(records.piece.max()) + 1
    rows = np.flatnonzero(~np.isnan(gaps.usual) & (order.cause >= 0))
    if len(numbers) < 2 or pieces < _PIECES_MIN or not len(rows):
        return None
    # Only gaps that are counted from the same place are compared.
    spot = number_rows(order.spot[rows], order.spot[order.cause[rows]])
    usual = gaps.usual[rows]
    cell = number_rows(spot, records.piece[rows])
    count = np.bincount(cell)
    mean = np.bincount(cell, usual) / count
    one = first_rows(cell)
    base = quantiles(spot[one], mean, int(spot.max()) + 1, _BASE)[spot]
    long_ = base >= GAP_NS_MIN
    at = np.searchsorted(numbers, order.stage[records.member[rows]]) * pieces
    at += records.piece[rows]
    size = len(numbers) * pieces
    now = np.bincount(at[long_], usual[long_], minlength=size)
    was = np.bincount(at[long_], base[long_], minlength=size)
    times = np.divide(now, was, out=np.full(size, np.nan), where=was > 0)
    times = times.reshape(len(numbers), pieces)
    of_row = np.full(len(records), np.nan)
    of_row[rows] = np.where(long_, base, np.nan)
    return _Growth(numbers, times, of_row)


def _beside_others(times: Floats, stage: int) -> Floats:
    """Return by piece how much longer a stage's gaps are than what all stages have in common."""
    others = np.delete(times, stage, axis=0)
    known = np.isfinite(others).any(axis=0)
    common = np.full(times.shape[1], np.nan)
    common[known] = np.nanmedian(others[:, known], axis=0)
    found: Floats = times[stage] / common
    return found


def slow_pieces(times: Floats, beside: Floats) -> Ints:
    """Return the pieces in which a stage was slower than at other times, beyond chance.

    It must be so by its own clock (`times`), too: beside a stage that was slow for some time, the
    other one of two seems slow at all other times.
    """
    known = beside[np.isfinite(beside)]
    if len(known) < _PIECES_MIN:
        return np.zeros(0, np.int64)
    usual = float(np.quantile(known, _BASE))
    # The better half tells the chance: the other may be slow.
    better = known[known <= np.median(known)]
    spread = max(float(np.median(np.abs(better - usual))) * MAD_TO_SIGMA, _SPREAD_MIN)
    with np.errstate(invalid="ignore"):
        slow = beside / usual >= max(_GROWN_MIN, 1 + _ERRORS * spread)
        return np.flatnonzero(slow & (times >= _GROWN_MIN))


def late_stages(records: Records, order: Order, gaps: Gaps, replay: Replay) -> list[Cause]:
    """Return the stages that were slower for some time, with the cost and the time of each."""
    growth = _growth(records, order, gaps)
    if growth is None:
        return []
    found = []
    for at, stage in enumerate(growth.stages[:_STAGES_MAX].tolist()):
        beside = _beside_others(growth.times, at)
        slow = slow_pieces(growth.times[at], beside)
        members = np.flatnonzero(order.stage == stage)
        members = members[np.isin(members, records.member)]
        if len(slow) < _SLOW_MIN or len(members) < 2:
            continue
        mine = np.isin(records.member, members) & np.isin(records.piece, slow)
        common = (growth.times[at] / beside)[records.piece]
        with np.errstate(invalid="ignore", divide="ignore"):
            more = gaps.own * (growth.base * common / gaps.usual - 1)
        gap = np.where(mine & np.isfinite(more), np.minimum(more, 0.0), 0.0)
        cause = _cause(replay, gap, tuple(members.tolist()), beside, slow)
        if cause is not None:
            found.append(cause)
    return found


def _cause(
    replay: Replay, gap: Floats, members: tuple[int, ...], beside: Floats, slow: Ints
) -> Cause | None:
    """Return what a stage cost by its gaps being longer (`gap`: ns to add); None: next to nothing.

    `beside`, `slow`: how much longer by piece, and the slow ones.
    """
    answers = replay.ask([WhatIf(gap=gap)])
    cost, error, rows = saved_share(answers, 1)
    if cost < max(TOLD_MIN, _COST_ERRORS * error):
        return None
    first_half = np.where(replay.in_first_half(), gap, 0.0)
    factor = felt_later(replay, WhatIf(gap=gap), WhatIf(gap=first_half))
    start, end, whole = period_of(rows)
    late = -gap[gap < -LATE_NS_MIN]
    return Cause(
        LATE,
        cost * factor,
        error * factor,
        start,
        end,
        whole,
        members=members,
        among=LateSet(members, Sort.STAGE, ""),
        ratio=float(np.median(beside[slow])),
        late_ns=float(np.median(late)) if len(late) else 0.0,
        late_share=len(slow) / len(beside),
        saved_s=cost * factor * replayed_s(answers),
    )
