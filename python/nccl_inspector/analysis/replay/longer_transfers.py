# SPDX-License-Identifier: Apache-2.0
"""Transfers that took longer at some times than at others, and what they would have taken.

Each kind of operation is compared with itself at the best of times. What is slow all the time has
no better time to be compared with. Slow times of a piece or more show by the medians of pieces,
shorter ones (congestion for some seconds) by operations that are slow one after the other.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    medians,
    number_rows,
    order_rows,
    quantiles,
)
from nccl_inspector.analysis.replay.order import Order, cost_of_bytes
from nccl_inspector.analysis.replay.paths import path_numbers, transfer_times
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

LONGER = 1.15  # T of a piece / its baseline, from which on the piece is slow
_STILL_LONGER = 1.04  # the same for a neighbour of a slow piece
_BASE_QUANTILE = 0.25  # the baseline's quantile over the pieces: the median of the better half
_PIECES_MIN = 4
_PATH_ROWS_MIN = 8  # median rows of one path per piece that are enough to judge the path alone
_EDGE_PARTS = 8  # parts of a piece in which a slow time begins or ends
# The best state of a job that changes all the time: the best of so many parts of it, each of some
# pieces.
_STATES, _STATE_PIECES_MIN = 16, 3
# Short slow times: of each kind of operation at its place in the pattern that many are needed.
_PLACE_ROWS_MIN = 8
_BRIEF_SHARE_MAX = 0.4  # share of slow operations, above which their time is not short
# If slow operations come together by chance, `share` of them follow a slow one. These many times
# more, and by this many standard deviations, is no chance.
_TOGETHER_TIMES, _TOGETHER_Z = 3.0, 4.0
_BRIEF_MIN = 2  # operations that are slow one after the other


@dataclass(frozen=True, slots=True)
class Longer:
    """Factors by row that make T that of the best times; 1: it is as usual.

    `lasting`: by the medians of pieces; `brief`: by operations that are slow one after the other,
    if that is no chance.
    """

    lasting: Floats
    brief: Floats


def undo_longer(records: Records, order: Order) -> Longer:
    """Return for each row the factors that make its T that of other times."""
    kind = _kinds(records)
    factor = np.ones(len(records))
    times, bound = transfer_times(records, order)
    rows = np.flatnonzero(~np.isnan(times) & (times > 0) & ~bound)
    if not len(rows):
        return Longer(factor, factor)
    rate = cost_of_bytes(records, times)[rows]
    factor[rows] = _undo_lasting(records, rows, kind[rows], rate)
    brief = np.ones(len(records))
    brief[rows] = _undo_brief(records, order, rows, kind[rows], rate)
    return Longer(factor, brief)


def _undo_lasting(records: Records, rows: Ints, kind: Ints, rate: Floats) -> Floats:
    """Return the factors of slow times that the medians of pieces show, for some rows."""
    count = int(kind.max()) + 1
    cell = number_rows(kind, records.piece[rows])
    middle = medians(cell, rate, int(cell.max()) + 1)
    one = first_rows(cell)
    kinds, pieces = kind[one], records.piece[rows][one]
    best = _best_state(kinds, pieces, middle, count)
    base = np.fmin(quantiles(kinds, middle, count, _BASE_QUANTILE), best)
    enough = np.bincount(kinds, minlength=count) >= _PIECES_MIN
    ratio = np.where(enough[kinds], middle / base[kinds], np.nan)
    slow = _in_slow_runs(ratio, kinds, pieces)
    # It would have been what it was at all other times, or at the best of them if it was never the
    # same for long.
    fine = ~slow
    fair = np.fmin(medians(kinds[fine], middle[fine], count), best)
    with np.errstate(invalid="ignore"):
        undo = np.fmin(np.where(slow, fair[kinds] / middle, 1.0), 1.0)
    factor = undo[cell]
    edges = np.flatnonzero(_at_edges(slow, kinds, pieces)[cell])
    if len(edges):
        part = number_rows(cell[edges], parts_of_pieces(records, rows, _EDGE_PARTS)[edges])
        middles = medians(part, rate[edges], int(part.max()) + 1)[part]
        fair_then = fair[kinds][cell[edges]]
        with np.errstate(invalid="ignore"):
            longer = middles >= LONGER * fair_then
        factor[edges] = np.where(longer, fair_then / middles, 1.0)
    return factor


def _best_state(kinds: Ints, pieces: Ints, middle: Floats, count: int) -> Floats:
    """Return for each kind its median in the best part of the job; NaN: there are too few pieces.

    What gets slower all the time has no usual state. `kinds`, `pieces`: of each cell.
    """
    many = int(pieces.max()) + 1
    states = min(_STATES, many // _STATE_PIECES_MIN)
    if states < 2:
        return np.full(count, np.nan)
    state = number_rows(kinds, pieces * states // many)
    value = medians(state, middle, int(state.max()) + 1)
    enough = np.bincount(state) >= _STATE_PIECES_MIN
    of_state = kinds[first_rows(state)]
    return quantiles(of_state[enough], value[enough], count, 0.0)


def _undo_brief(records: Records, order: Order, rows: Ints, kind: Ints, rate: Floats) -> Floats:
    """Return the factors of slow times however short, for some rows.

    An operation is compared with the same one of other steps, because a step may have longer and
    shorter ones of a kind. That some take longer says nothing; that those which do come together,
    does.
    """
    operation = number_rows(records.joined[rows])
    head = first_rows(operation)
    same = number_rows(kind[head], order.spot[rows[head]])
    many = int(same.max()) + 1
    usual = medians(same, rate[head], many)
    ratio = np.where(np.bincount(same)[same] >= _PLACE_ROWS_MIN, rate[head] / usual[same], 1.0)
    slow = ratio >= LONGER
    share = np.bincount(kind[head], slow) / np.maximum(np.bincount(kind[head]), 1)
    slow &= share[kind[head]] <= _BRIEF_SHARE_MAX
    at = order_rows(kind[head], records.begin[rows[head]], records.begin[rows[head]])
    of_kind, in_run = kind[head][at], records.run[rows[head]][at]
    follows = (of_kind[1:] == of_kind[:-1]) & (in_run[1:] == in_run[:-1])
    both = follows & slow[at][1:] & slow[at][:-1]
    expected = np.bincount(of_kind[1:], follows * share[of_kind[1:]] ** 2, minlength=len(share))
    together = np.bincount(of_kind[1:], both, minlength=len(share))
    by_chance = expected + _TOGETHER_Z * np.sqrt(np.maximum(expected, 1.0))
    both &= (together >= np.maximum(_TOGETHER_TIMES * expected, by_chance))[of_kind[1:]]
    run = np.append(0, np.cumsum(~both))[: len(at)]
    long = slow[at] & (np.bincount(run)[run] >= _BRIEF_MIN)
    undo = np.ones(len(head))
    undo[at[long]] = 1 / ratio[at[long]]
    return undo[operation]


def _kinds(records: Records) -> Ints:
    """Return for each row the number of the kind that is compared with its own past.

    Sends of one size and communicator go over several links, one of which may be slow. So each pair
    that sends often enough is a kind of its own.
    """
    kind = number_rows(records.comm, records.func, records.size_class)
    paired = np.flatnonzero(records.peer != PEER_NONE)
    if not len(paired):
        return kind
    finer = number_rows(kind, path_numbers(records))
    cell = number_rows(finer[paired], records.piece[paired])
    one = first_rows(cell)
    count = int(finer.max()) + 1
    often = medians(finer[paired][one], np.bincount(cell).astype(float), count)
    alone = (records.peer != PEER_NONE) & (often[finer] >= _PATH_ROWS_MIN)
    return number_rows(kind, np.where(alone, finer, -1))


def _in_slow_runs(ratio: Floats, kinds: Ints, pieces: Ints) -> Mask:
    """Tell which cells are slow, or next to a slow one and longer than by chance.

    This gives one answer for a slow time whose pieces lie on both sides of the limit.
    """
    order = order_rows(kinds, pieces, pieces)
    longer = ratio[order] >= _STILL_LONGER
    same = longer[1:] & longer[:-1] & (kinds[order][1:] == kinds[order][:-1])
    run = np.append(0, np.cumsum(~same))[: len(order)]
    has = np.bincount(run, ratio[order] >= LONGER) > 0
    found = np.zeros(len(order), dtype=bool)
    found[order] = longer & has[run]
    return found


def _at_edges(slow: Mask, kinds: Ints, pieces: Ints) -> Mask:
    """Tell which cells are the first or last of a slow time, or next to one of these.

    A slow time seldom begins with a piece. A piece that is slow for less than half of its
    operations looks fine as a whole; if it is slow for more, the rest of it must not be made
    faster.
    """
    order = order_rows(kinds, pieces, pieces)
    same = kinds[order][1:] == kinds[order][:-1]
    differ = np.flatnonzero(same & (slow[order][1:] != slow[order][:-1]))
    found = np.zeros(len(order), dtype=bool)
    found[order[differ]] = found[order[differ + 1]] = True
    return found


def parts_of_pieces(records: Records, rows: Ints, parts: int) -> Ints:
    """Return for each of some rows in which of `parts` equal parts of its piece's time it begins.

    The length of a piece is that of the rows in it.
    """
    piece, begin = records.piece[rows], records.begin[rows]
    many = int(piece.max(initial=-1)) + 1
    first, last = np.full(many, np.inf), np.full(many, -np.inf)
    np.minimum.at(first, piece, begin)
    np.maximum.at(last, piece, begin)
    place = (begin - first[piece]) / np.maximum(last - first, 1.0)[piece]
    found: Ints = np.minimum((place * parts).astype(np.int64), parts - 1)
    return found
