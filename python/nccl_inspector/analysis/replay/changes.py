# SPDX-License-Identifier: Apache-2.0
"""What changed over a job's time: transfers that took longer, own gaps of all ranks that grew.

Both are held against the job itself: the same operation at the same place of the pattern in its
better pieces of time. What is slow all the time has no better time to be compared with.
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
from nccl_inspector.analysis.replay.longer import parts_of_pieces, undo_longer
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

GROWN = 1.10  # the own gaps of all ranks, likewise
_BASE_QUANTILE = 0.25  # of the pieces, the middle of whose better half is the baseline
_PIECES_MIN = 4
GAP_NS_MIN = 50_000.0  # shorter own gaps are launches, not work
_ALIKE_PARTS = 0.7  # of what parts of a step added, in proportion to what they are usually
_LENGTHS = (0.5, 0.9)  # quantiles that part short, longer and the longest parts of one place
_PARTS = 32  # of a piece, by which it is told how much of its growth may be chance
_ALIKE_MAX = 3.0  # the upper quarter of a place's gaps beside the lower, where it can be compared


@dataclass(frozen=True, slots=True)
class Changes:
    """Factors and differences that undo what changed, by row, and how large it was by piece.

    `transfer`: factor of T; `gap`: ns to add to own gaps. `grown`: own gaps of all ranks by piece,
    beside what is usual (NaN: nothing to compare); `error`: how far that may be off by chance.
    """

    transfer: Floats
    gap: Floats
    grown: Floats
    error: Floats
    evenly: Mask  # by piece: gaps grew in proportion, as with more work, or it cannot be told


def find_changes(records: Records, order: Order, gaps: Gaps) -> Changes:
    """Return what was slower at some times than at others."""
    pieces = int(records.piece.max()) + 1
    return Changes(undo_longer(records, order), *_gaps(records, order, gaps, pieces))


def _by_run(records: Records, order: Order, rows: Ints) -> tuple[Ints, Mask]:
    """Return some rows in the order of runs with one cause and of time, and which begin a run."""
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
    # Where the program does now this and now that, nothing is usual.
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = (base >= GAP_NS_MIN) & (high / base <= _ALIKE_MAX)
    enough = (np.bincount(spots, minlength=count) >= _PIECES_MIN) & alike
    # Of the gaps that are counted from one operation the longest has all the others in it.
    in_run, begins = _by_run(records, order, rows)
    longest = in_run[np.append(begins[1:], True)]
    longest = longest[enough[order.spot[rows[longest]]]]
    all_longest = np.bincount(cell[longest], minlength=size)
    was = np.bincount(at_piece, all_longest * np.nan_to_num(base[spots]), minlength=pieces)
    # All of them: one long stop between two steps is no middle of anything.
    now = np.bincount(records.piece[rows[longest]], usual[rows[longest]], minlength=pieces)
    grown = np.divide(now, was, out=np.full(pieces, np.nan), where=was > 0)
    expected = base[spots][cell[longest]] * grown[records.piece[rows[longest]]]
    error = _by_chance(records, rows[longest], usual[rows[longest]] - expected, was)
    # Where places are mixed up, the better half of each is better than any whole piece.
    better = _better_half(grown)
    grown, error, base = grown / better, error / better, base * better
    found = np.zeros(len(records))
    slow = grown[records.piece] >= GROWN
    # In proportion: what holds all ranks up holds up one more than another.
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
    """Return how much of what each piece has grown by may be chance, in the same measure.

    `more`: how much longer gaps (of some rows) are than their piece's growth makes them, ns; `was`:
    what all of a piece usually are. Gaps of one time are one event, of whichever ranks: parts of a
    piece are independent of each other, steps that are longer than these hardly occur.
    """
    piece = records.piece[rows]
    part = parts_of_pieces(records, rows, _PARTS)
    sums = np.bincount(piece * _PARTS + part, more, minlength=len(was) * _PARTS)
    squares = (sums.reshape(len(was), _PARTS) ** 2).sum(axis=1)
    found: Floats = np.divide(np.sqrt(squares), was, out=np.full(len(was), np.nan), where=was > 0)
    return found


def _better_half(grown: Floats) -> float:
    """Return what the better pieces have of what is usual at each place alone; 1 at least."""
    known = grown[np.isfinite(grown)]
    return max(1.0, float(np.quantile(known, _BASE_QUANTILE))) if len(known) else 1.0


@dataclass(frozen=True, slots=True)
class _Cells:
    """Parts of one sort in a piece: the cell of each row, and what cells are."""

    of_row: Ints
    sort: Ints
    piece: Ints


def _cells(cell: Ints, spots: Ints, pieces: Ints, part: Floats) -> _Cells:
    """Return cells of which each has parts of about the same length, too.

    `cell`: of each row, by its place of the pattern (`spots`) and piece (`pieces`). Where the
    pattern is not known, many short parts of a step and a long one are at one place.
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
    """Tell by piece whether all parts of a step grew alike, as with more work.

    A wait for storage is at one place. It is in all gaps that are counted from there, so `part` is
    what each row adds to the gap before it, ns. True where that cannot be told.
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
