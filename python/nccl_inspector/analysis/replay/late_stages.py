# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline that are slower than the others: for some time, or always.

All ranks of a stage do the same work, and no other rank does it: if all of them are slow, nobody is
beside them to tell what is usual. But the stage itself shows it, at other times. What all stages
have in common, such as longer sequences, does not count. A stage that always computes longer than
the others may have more layers, or an embedding: that is uneven work, and nobody's fault.
"""

from dataclasses import dataclass, replace

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    distinct_pairs,
    first_rows,
    number_rows,
    quantiles,
)
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
_UNEVEN_MIN = 1.03  # times the median work of the other stages
_COST_ERRORS = 4.0  # standard errors that a cost must be above 0


@dataclass(frozen=True, slots=True)
class _Growth:
    """Stages x pieces: gaps / what they are in the better pieces, beside the other stages."""

    stages: Ints
    times: Floats
    base: Floats  # by row: the usual gap in the better pieces; NaN: not known


def _growth(records: Records, order: Order, gaps: Gaps, part: Ints) -> _Growth | None:
    """Return how much longer each stage's gaps are in each piece; None: there is one stage.

    `part`: the processes of one part of the job. Others are no stages of its pipeline.
    """
    numbers = np.unique(order.stage[part])
    pieces = int(records.piece.max()) + 1
    rows = np.flatnonzero(
        ~np.isnan(gaps.usual) & (order.cause >= 0) & np.isin(records.member, part)
    )
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


def _members(records: Records, order: Order, stage: int) -> Ints:
    """Return the processes of a stage that have records."""
    members = np.flatnonzero(order.stage == stage)
    found: Ints = members[np.isin(members, records.member)]
    return found


def _uneven_stage(records: Records, order: Order, replay: Replay, growth: _Growth) -> Cause | None:
    """Return the stage that always computes longest, and what it costs beside the others."""
    rows = np.flatnonzero(~np.isnan(growth.base))
    # Of the gaps that are counted from one operation, the longest includes all others.
    run = number_rows(records.member[rows], order.cause[rows])
    work = np.zeros(int(run.max(initial=-1)) + 1)
    np.maximum.at(work, run, growth.base[rows])
    of_run = np.zeros(len(work), np.int64)
    of_run[run] = np.searchsorted(growth.stages, order.stage[records.member[rows]])
    parts = [_members(records, order, stage) for stage in growth.stages.tolist()]
    every = np.bincount(of_run, work, minlength=len(growth.stages))
    each: Floats = every / np.maximum([len(one) for one in parts], 1)
    most = int(each.argmax())
    usual = float(np.median(np.delete(each, most)))
    if usual <= 0 or each[most] < _UNEVEN_MIN * usual or len(parts[most]) < 2:
        return None
    mine = np.isin(records.member, parts[most]) & ~np.isnan(growth.base)
    gap = np.where(mine, np.nan_to_num(growth.base) * (usual / each[most] - 1), 0.0)
    pieces = np.arange(growth.times.shape[1])
    cause = _cause(replay, gap, tuple(parts[most].tolist()), np.ones(len(pieces)), pieces)
    if cause is None:
        return None
    return replace(cause, uneven=True, whole=True, ratio=float(each[most] / usual))


def late_stages(records: Records, order: Order, gaps: Gaps, replay: Replay) -> list[Cause]:
    """Return the stages that were slower for some time, and those that always have more to do."""
    present = np.unique(records.member)
    part_of = replay.part[present]
    parts, _ = distinct_pairs(part_of, order.stage[present])
    several = np.flatnonzero(np.bincount(parts) > 1)  # parts of the job with several stages
    found: list[Cause] = []
    for part in several.tolist():
        growth = _growth(records, order, gaps, present[part_of == part])
        if growth is not None:
            found += _of_pipeline(records, order, gaps, replay, growth)
    return found


def _of_pipeline(
    records: Records, order: Order, gaps: Gaps, replay: Replay, growth: _Growth
) -> list[Cause]:
    found = []
    for at, stage in enumerate(growth.stages[:_STAGES_MAX].tolist()):
        beside = _beside_others(growth.times, at)
        slow = slow_pieces(growth.times[at], beside)
        members = _members(records, order, stage)
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
    uneven = _uneven_stage(records, order, replay, growth)
    return [*found, *([uneven] if uneven is not None else [])]


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
