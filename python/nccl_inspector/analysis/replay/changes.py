# SPDX-License-Identifier: Apache-2.0
"""What changed over a job's time: transfers that took longer, and own gaps of all ranks that grew.

Each operation is compared with itself, at the same place of the pattern, in the better pieces of
time. What is slow all the time has no better time to be compared with.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    number_rows,
    order_rows,
    order_within,
    quantiles,
)
from nccl_inspector.analysis.replay.gaps import Gaps
from nccl_inspector.analysis.replay.longer_transfers import parts_of_pieces, undo_longer
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

GROWN = 1.10  # own gaps of all ranks this many times the usual are slow
_BASE_QUANTILE = 0.25  # the baseline's quantile over the pieces: the median of the better half
_PIECES_MIN = 4
GAP_NS_MIN = 50_000.0  # shorter own gaps are launches and not work
_ALIKE_PARTS = 0.7  # share of what a step's parts added, in proportion to their usual length
_LENGTHS = (0.5, 0.9)  # quantiles that divide a place's parts into short, longer and longest ones
_PARTS = 32  # parts of a piece, from which the chance in its growth is estimated
_ALIKE_MAX = 3.0  # upper quartile of a place's gaps / lower quartile, if they are to be comparable


@dataclass(frozen=True, slots=True)
class Changes:
    """Factors and differences by row that undo what changed, and how large the change was by piece.

    `transfer`: factor for T; `brief`: the same by each operation, for slow times however short.
    `gap`: ns to add to own gaps. `grown`: own gaps of all ranks by piece / usual gaps (NaN: nothing
    to compare). `error`: the part of that which may be chance.
    """

    transfer: Floats
    brief: Floats
    gap: Floats
    grown: Floats
    error: Floats
    evenly: Mask  # by piece: gaps grew in proportion, as with more work, or it is not known


def find_changes(records: Records, order: Order, gaps: Gaps) -> Changes:
    """Return what was slower at some times than at others."""
    pieces = int(records.piece.max()) + 1
    longer = undo_longer(records, order)
    return Changes(longer.lasting, longer.brief, *_gaps(records, order, gaps, pieces))


def _by_run(records: Records, order: Order, rows: Ints) -> tuple[Ints, Mask]:
    """Return rows ordered by run (of one cause) and time, and a mask of those that begin a run."""
    run = number_rows(records.member[rows], order.cause[rows])
    in_run = order_rows(run, records.begin[rows], records.begin[rows])
    return in_run, np.append(True, run[in_run][1:] != run[in_run][:-1])


def _gaps(
    records: Records, order: Order, gaps: Gaps, pieces: int
) -> tuple[Floats, Floats, Floats, Mask]:
    """Return the fields of Changes from `gap` on."""
    usual = gaps.usual
    rows = np.flatnonzero(~np.isnan(usual))
    if not len(rows):
        nothing = np.full(pieces, np.nan)
        return np.zeros(len(records)), nothing, nothing, np.ones(pieces, dtype=bool)
    cell = number_rows(order.spot[rows], records.piece[rows])
    size = int(cell.max()) + 1
    mean = np.bincount(cell, usual[rows]) / np.bincount(cell)
    one = first_rows(cell)
    spots, at_piece = order.spot[rows][one], records.piece[rows][one]
    count = int(order.spot.max()) + 1
    base = quantiles(spots, mean, count, _BASE_QUANTILE)
    high = quantiles(spots, mean, count, 1 - _BASE_QUANTILE)
    # A place where the program does different things at different times has no usual gap.
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = (base >= GAP_NS_MIN) & (high / base <= _ALIKE_MAX)
    enough = (np.bincount(spots, minlength=count) >= _PIECES_MIN) & alike
    # Of the gaps that are counted from one operation, the longest includes all others.
    in_run, begins = _by_run(records, order, rows)
    longest = in_run[np.append(begins[1:], True)]
    longest = longest[enough[order.spot[rows[longest]]]]
    all_longest = np.bincount(cell[longest], minlength=size)
    was = np.bincount(at_piece, all_longest * np.nan_to_num(base[spots]), minlength=pieces)
    # All gaps are summed: the median would miss one long stop between two steps.
    now = np.bincount(records.piece[rows[longest]], usual[rows[longest]], minlength=pieces)
    grown = np.divide(now, was, out=np.full(pieces, np.nan), where=was > 0)
    expected = base[spots][cell[longest]] * grown[records.piece[rows[longest]]]
    error = _by_chance(records, rows[longest], usual[rows[longest]] - expected, was)
    # If places are mixed up, the better half of each is better than any whole piece.
    better = _better_half(grown)
    grown, error, base = grown / better, error / better, base * better
    found = np.zeros(len(records))
    slow = grown[records.piece] >= GROWN
    # In proportion, because what holds up all ranks holds up one more than another.
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = gaps.own * (np.where(enough, base, np.nan)[order.spot] / usual - 1)
    known = slow & np.isfinite(excess)
    found[known] = np.minimum(excess[known], 0.0)
    part = np.empty(len(rows))
    part[in_run] = usual[rows][in_run]
    part[in_run[1:]] -= np.where(begins[1:], 0.0, usual[rows][in_run[:-1]])
    part = np.maximum(part, 0.0)
    return found, grown, error, _in_proportion(part, _cells(cell, spots, at_piece, part), pieces)


def _by_chance(records: Records, rows: Ints, more: Floats, was: NDArray[Any]) -> Floats:
    """Return how much of each piece's growth may be chance, in the same unit.

    `more`: by how many ns gaps (of the rows) are longer than the growth of their piece explains;
    `was`: the usual sum for each piece. Gaps at one time are one event, whichever ranks have them.
    Parts of a piece are independent of each other, because steps longer than a part hardly occur.
    """
    piece = records.piece[rows]
    part = parts_of_pieces(records, rows, _PARTS)
    sums = np.bincount(piece * _PARTS + part, more, minlength=len(was) * _PARTS)
    squares = (sums.reshape(len(was), _PARTS) ** 2).sum(axis=1)
    found: Floats = np.divide(np.sqrt(squares), was, out=np.full(len(was), np.nan), where=was > 0)
    return found


def _better_half(grown: Floats) -> float:
    """Return what the better pieces have, relative to the usual at each place alone; at least 1."""
    known = grown[np.isfinite(grown)]
    return max(1.0, float(np.quantile(known, _BASE_QUANTILE))) if len(known) else 1.0


@dataclass(frozen=True, slots=True)
class _Cells:
    """Parts of one sort in a piece: the cell of each row, and the sort and piece of each cell."""

    of_row: Ints
    sort: Ints
    piece: Ints


def _cells(cell: Ints, spots: Ints, pieces: Ints, part: Floats) -> _Cells:
    """Return finer cells, in which all parts also have about the same length.

    `cell`: of each row, by place of the pattern (`spots`) and piece (`pieces`). Length matters
    because, if the pattern is not known, many short parts of a step and a long one are at one
    place.
    """
    rank = np.empty(len(cell))
    order = order_within(cell, part)
    size = np.bincount(cell)
    first = np.cumsum(size) - size
    rank[order] = np.arange(len(cell)) - first[cell[order]]
    length = np.searchsorted(_LENGTHS, (rank + 0.5) / size[cell], side="right")
    finer = number_rows(cell, length)
    one = first_rows(finer)
    return _Cells(finer, number_rows(spots[cell[one]], length[one]), pieces[cell[one]])


def _in_proportion(part: Floats, cells: _Cells, pieces: int) -> Mask:
    """Tell by piece whether all parts of a step grew in proportion, as with more work.

    A wait for storage is at one place. All gaps that are counted from there contain it, so `part`
    is what each row adds to the gap before it, in ns. The answer is True if it cannot be told.
    """
    count, now = np.bincount(cells.of_row), np.bincount(cells.of_row, part)
    sorts = int(cells.sort.max()) + 1
    base = quantiles(cells.sort, now / count, sorts, _BASE_QUANTILE)[cells.sort] * count
    more = np.maximum(now - base, 0.0)
    all_more = np.bincount(cells.piece, more, minlength=pieces)[cells.piece]
    all_base = np.bincount(cells.piece, base, minlength=pieces)[cells.piece]
    with np.errstate(invalid="ignore", divide="ignore"):
        common = np.nan_to_num(np.minimum(more / all_more, base / all_base), nan=1.0)
    found: Mask = np.bincount(cells.piece, common, minlength=pieces) >= _ALIKE_PARTS
    return found
