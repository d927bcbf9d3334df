# SPDX-License-Identifier: Apache-2.0
"""Transfers that took longer at some times than at others, and what they would have taken.

Each kind of operation is compared with itself in the better pieces of time. What is slow all the
time has no better time to be compared with.
"""

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
from nccl_inspector.analysis.replay.paths import path_numbers
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

LONGER = 1.15  # T of a piece / its baseline, from which on the piece is slow
_STILL_LONGER = 1.07  # the same for a neighbour of a slow piece
_BASE_QUANTILE = 0.25  # the baseline's quantile over the pieces: the median of the better half
_PIECES_MIN = 4
_PATH_ROWS_MIN = 8  # median rows of one path per piece that are enough to judge the path alone
_EDGE_PARTS = 8  # parts of a piece in which a slow time begins or ends


def undo_longer(records: Records, order: Order) -> Floats:
    """Return for each row the factor that makes its T that of other times; 1: it is as usual."""
    kind = _kinds(records)
    count = int(kind.max()) + 1
    factor = np.ones(len(records))
    rows = np.flatnonzero(~np.isnan(order.transfer) & (order.transfer > 0))
    if not len(rows):
        return factor
    rate = cost_of_bytes(records, order.transfer)[rows]
    cell = number_rows(kind[rows], records.piece[rows])
    middle = medians(cell, rate, int(cell.max()) + 1)
    one = first_rows(cell)
    kinds, pieces = kind[rows][one], records.piece[rows][one]
    base = quantiles(kinds, middle, count, _BASE_QUANTILE)
    enough = np.bincount(kinds, minlength=count) >= _PIECES_MIN
    ratio = np.where(enough[kinds], middle / base[kinds], np.nan)
    slow = _in_slow_runs(ratio, kinds, pieces)
    # It would have been what it was at all other times, better and worse ones.
    fine = ~slow
    fair = medians(kinds[fine], middle[fine], count)
    with np.errstate(invalid="ignore"):
        undo = np.fmin(np.where(slow, fair[kinds] / middle, 1.0), 1.0)
    factor[rows] = undo[cell]
    edges = np.flatnonzero(_at_edges(slow, kinds, pieces)[cell])
    if len(edges):
        part = number_rows(cell[edges], parts_of_pieces(records, rows, _EDGE_PARTS)[edges])
        middles = medians(part, rate[edges], int(part.max()) + 1)[part]
        fair_then = fair[kinds][cell[edges]]
        with np.errstate(invalid="ignore"):
            longer = middles >= LONGER * fair_then
        factor[rows[edges]] = np.where(longer, fair_then / middles, 1.0)
    return factor


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
