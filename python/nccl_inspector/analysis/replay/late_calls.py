# SPDX-License-Identifier: Apache-2.0
"""Whether a late process called its operations late, or its GPU began late what was called in time.

Between the end of what an operation depends on and its begin there are two times: until the process
calls the operation, and from the call until its kernel begins. A process that calls later than its
peers by as much as its operations begin later has a late host. If it calls as its peers do, and
mostly before its GPU is done with the operation before, its GPU is late.

A program may wait for its GPU before it calls (it reads the loss, it has no work to do meanwhile),
and a CUDA graph calls when the GPU gets there. Then a slow GPU makes the calls late, too. That part
of the gap is what peers spend before their calls: the larger it is, the less late calls tell.
Something is told if the GPU is as slow behind the calls, or if it is at its peers' pace in the
operations that follow and were called in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    medians,
    medians_of_others,
    number_rows,
)
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.card import GPU, HOST, UNKNOWN
from nccl_inspector.model.sample_columns import AT_LEAST_NS

# What judges. Each was chosen from how a host and a GPU differ, and tried in tests/simulator.
_LATE_NS_MIN = 200_000  # ns: a shorter delay is within what two clocks and a launch differ by
SHORT_SHARE = 1 / 3  # of what is typical of its lateness: shorter delays are another matter
_EXACT_MIN = 8  # operations whose calls were timed; with fewer, those known from rounds count, too
_FEW = 3  # operations; of fewer each must be late for long
_LONG_NS = 100_000_000  # ns: such a delay is no chance, even if it happened once
_ALIKE, _NEARLY_NONE = 1.05, 0.1  # of the usual gap; of the lateness
GPU_MAX = 0.5  # share of the lateness that is before the call: most of it is behind it
_HIDDEN_MAX = 0.7  # share of its gap that a peer spends before the call: calls tell too little
_BEHIND_MIN = 0.1  # share of its gap that a peer spends behind the call, to compare with it
_AS_SLOW = 0.5  # slowness behind the call, as a part of that before it
_SIGMAS = 2.0  # of the share
# The operations that follow a late one, in which a GPU would show that it is slow.
_FOLLOWING = 16  # operations: about a step
_OPEN_MAX = 0.3  # share of the gap before the call, so that the GPU is seen in the rest
_OPEN_MIN = 8  # such operations
_AT_PACE = 0.25  # share of the slowness that would explain late calls; a GPU below it is not slow
_HOST_MIN = 0.75  # share of the lateness that is before the call, if the GPU is seen


@dataclass(frozen=True, slots=True)
class LateCalls:
    """When a process called the operations that it began late; times are means in ns."""

    kind: str  # HOST, GPU or UNKNOWN
    operations: int  # that this is based on
    late_ns: float  # by how much they began later than its peers'
    called_late_ns: float  # by how much they were called later
    error_ns: float  # of that, two sigma
    queued_ns: float  # from the call to the begin
    peers_queued_ns: float | None  # the same of its peers; None: not known
    hidden: float  # share of the usual gap that peers spend before the call


@dataclass(frozen=True, slots=True)
class _Calls:
    """By row in ns: its own gap, what is usual, and the part of the own gap before the call.

    `gap` is counted from the operation before on the same stream if nothing else is known: a rank
    that stands still for long has no records for so long.
    """

    gap: Floats
    usual: Floats  # NaN: not known
    known: Mask
    exact: Mask
    before: Floats  # if it is not exact, the middle of what it may be
    unsure: Floats  # variance of that


def before_call(gap: Floats, queued: Ints | Floats, within: Floats) -> tuple[Floats, Mask, Floats]:
    """Return the part of a gap before its call, whether it is known, and its variance; ns.

    `queued`: from the call to the begin, which `within` may be too long at most (AT_LEAST_NS: it is
    a lower bound). The part is the middle of what it may be.
    """
    bound = within == AT_LEAST_NS
    before = gap - (queued - np.where(bound, 0.0, within / 2))
    known = (queued > 0) & (~bound | (before <= 0))  # else it may have been called at any time
    return before, known, np.where(bound, 0.0, np.square(within) / 12)


def _calls(records: Records, order: Order, usual: Floats) -> _Calls:
    within = np.zeros(len(records)) if records.within is None else records.within.astype(float)
    lone = np.isnan(order.gap) | np.isnan(usual)
    back = np.maximum(order.before, 0)
    stream = (records.begin - records.end[back]).astype(float)
    stream[order.before < 0] = np.nan
    gap = np.where(lone, stream, order.gap)
    usual = np.where(lone, medians_of_others(order.place, stream), usual)
    before, known, unsure = before_call(gap, records.queued, within)
    known &= ~np.isnan(gap)
    exact = known & ((within == 0) | (within == AT_LEAST_NS))
    # Whoever calls before the operation before is over keeps nobody waiting.
    return _Calls(gap, usual, known, exact, np.maximum(before, 0.0), unsure)


def _usual_calls(order: Order, calls: _Calls, mine: Mask, rows: Ints) -> Floats:
    """Return what peers spend before the call, for some rows: at that place, or at others."""
    told = np.flatnonzero(calls.exact & ~mine)
    if not len(told):
        return np.full(len(rows), np.nan)
    gaps = float(np.maximum(calls.gap[told], 0.0).sum())
    share = min(1.0, float(calls.before[told].sum()) / gaps) if gaps else 0.0
    found: Floats = np.minimum(np.nan_to_num(calls.usual[rows]), calls.gap[rows]) * share
    for groups in (order.spot, order.place):  # the nearest counts
        middle = medians(groups[told], calls.before[told], int(groups.max()) + 1)[groups[rows]]
        found = np.where(np.isnan(middle), found, middle)
    return found


def called_later(records: Records, order: Order, usual: Floats) -> Floats:
    """Return for each row how much later than peers its process calls at its place (ns).

    It is what is typical of that process at that place of the pattern. NaN: not known, or peers
    spend most of the gap before the call, so that a slow GPU makes calls late, too.
    """
    calls = _calls(records, order, usual)
    found = np.full(len(records), np.nan)
    told = np.flatnonzero(calls.exact)
    if not len(told):
        return found
    cell = number_rows(order.spot, records.member)
    many = int(cell.max()) + 1
    before, gap = (medians(cell[told], some[told], many) for some in (calls.before, calls.gap))
    one = first_rows(cell)  # in the order of cells
    seen = np.flatnonzero(~np.isnan(before))
    spot = order.spot[one[seen]]
    peers, theirs = (medians_of_others(spot, some[seen]) for some in (before, gap))
    later = np.full(many, np.nan)
    with np.errstate(invalid="ignore"):
        later[seen] = np.where(peers <= _HIDDEN_MAX * theirs, before[seen] - peers, np.nan)
    return later[cell]


def _pace(order: Order, calls: _Calls, mine: Mask, late: Mask) -> tuple[float, float]:
    """Return how much slower than its peers' a GPU is where that shows, and for how long (ns).

    Of the operations that follow late ones, those are looked at that peers call when the operation
    before is not over, so that only the GPU can be slow in them. Where peers never do, all that
    follow are looked at, except those whose time begins where that of a late one does, and each
    time only once: whoever calls late in them, a GPU at its peers' pace has no part in the
    lateness.
    """
    told = np.flatnonzero(calls.exact & ~mine)
    many = int(order.spot.max()) + 1
    before = medians(order.spot[told], calls.before[told], many)[order.spot]
    gap = medians(order.spot[told], calls.gap[told], many)[order.spot]
    row = np.arange(len(mine))
    last = np.maximum.accumulate(np.where(late, row, -1 - _FOLLOWING))
    follows = mine & ~late & (row - last <= _FOLLOWING)
    follows &= ~order.queued & (calls.usual > 0) & ~np.isnan(calls.gap)
    seen = np.flatnonzero(follows & (before <= _OPEN_MAX * gap))
    if len(seen) < _OPEN_MIN:
        apart = follows & (order.cause >= 0) & ~np.isin(order.cause, order.cause[late])
        rows = np.flatnonzero(apart)
        longest = rows[np.lexsort((-calls.usual[rows], order.cause[rows]))]
        seen = longest[first_rows(order.cause[longest])] if len(longest) else longest
    if len(seen) < _OPEN_MIN:
        return 0.0, 0.0
    usual = float(calls.usual[seen].sum())
    return float(calls.gap[seen].sum()) / usual - 1, usual


def kind_of(share: float, error: float, hidden: float) -> str:
    """Return what made a process late, from the share of its lateness that is before the call."""
    if share + error <= GPU_MAX:
        return GPU
    # A GPU that is slow all the time makes calls late by the share of the gap before the call.
    if hidden <= _HIDDEN_MAX and share - error >= (1 + hidden) / 2:
        return HOST
    # It is as slow behind the call, where no host has a part in it.
    behind = (1 - share - error) * hidden
    seen = hidden <= 1 - _BEHIND_MIN
    if seen and behind > 0 and behind >= _AS_SLOW * (share + error) * (1 - hidden):
        return GPU
    return UNKNOWN


def hidden_share(records: Records, order: Order, usual: Floats, members: Sequence[int]) -> float:
    """Return the share of their gaps that other processes spend before their calls."""
    calls = _calls(records, order, usual)
    told = calls.exact & ~np.isin(records.member, members)
    gaps = float(np.maximum(calls.gap[told], 0.0).sum())
    return min(1.0, float(calls.before[told].sum()) / gaps) if gaps > 0 else 1.0


def judge_calls(
    records: Records, order: Order, usual: Floats, members: Sequence[int], late_ns: float
) -> LateCalls | None:
    """Return when late processes called; None: not known of any operation that made them late.

    `usual`: the gaps at their peers' pace. `late_ns`: by how much they are late when it matters.
    """
    mine = np.isin(records.member, members)
    calls = _calls(records, order, usual)
    excess = np.nan_to_num(calls.gap - calls.usual)
    late = mine & (excess >= max(_LATE_NS_MIN, SHORT_SHARE * late_ns)) & ~order.queued
    exact = late & calls.exact
    rows = np.flatnonzero(exact if np.count_nonzero(exact) >= _EXACT_MIN else late & calls.known)
    peers = _usual_calls(order, calls, mine, rows)
    # Peers that spend more before their calls than what is usual in all had another gap.
    alike = peers <= np.maximum(_ALIKE * calls.usual[rows], _NEARLY_NONE * excess[rows])
    rows, peers = rows[alike], peers[alike]
    count, late_by = len(rows), excess[rows]
    if not count or (count < _FEW and late_by.mean() < _LONG_NS):
        return None
    later = calls.before[rows] - peers
    total = float(late_by.sum())
    share = float(later.sum()) / total
    spread = float(np.square(later - share * late_by).sum())
    error = _SIGMAS * sqrt(spread + float(calls.unsure[rows].sum())) / total
    gaps = float(np.nan_to_num(calls.usual[rows]).sum())
    hidden = min(1.0, float(peers.sum()) / gaps) if gaps > 0 else 0.0
    kind = kind_of(share, error, hidden)
    if kind == UNKNOWN and share - error >= _HOST_MIN:
        slower, seen_ns = _pace(order, calls, mine, late)
        if seen_ns >= peers.sum() and slower * peers.sum() <= _AT_PACE * later.sum():
            kind = HOST
    of_peers = calls.exact & ~mine & np.isin(order.spot, order.spot[rows])
    return LateCalls(
        kind,
        count,
        total / count,
        share * total / count,
        error * total / count,
        max(float(np.median(calls.gap[rows] - calls.before[rows])), 0.0),
        float(np.median(records.queued[of_peers])) if of_peers.any() else None,
        hidden,
    )
