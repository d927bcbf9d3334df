# SPDX-License-Identifier: Apache-2.0
"""What changed over a job's time: transfers that took longer, own gaps of all ranks that grew.

Both are held against the job itself: the same operation at the same place of the pattern in its
better pieces of time. What is slow all the time has no better time to be compared with.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Mask,
    first_rows,
    medians,
    number_rows,
    quantiles,
)
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

LONGER = 1.15  # T of a piece beside its baseline, from which on it is slow
GROWN = 1.10  # the own gaps of all ranks, likewise
_BASE_QUANTILE = 0.25  # of the pieces, the middle of whose better half is the baseline
_LARGE_CLASS = 20  # from 1 MB on a transfer takes a time by its bytes
_PIECES_MIN = 4
GAP_NS_MIN = 50_000.0  # shorter own gaps are launches, not work
_BASES_APART = 0.8  # short gaps beside long ones, where growth by proportion can be told
_ALIKE_MAX = 3.0  # the upper quarter of a place's gaps beside the lower, where it can be compared


@dataclass(frozen=True, slots=True)
class Changes:
    """Factors and differences that undo what changed, by row, and how large it was by piece.

    `transfer`: factor of T; `gap`: ns to add to own gaps. `grown`: own gaps of all ranks by piece,
    beside what is usual (NaN: nothing to compare).
    """

    transfer: Floats
    gap: Floats
    grown: Floats
    evenly: Mask  # by piece: gaps grew in proportion, as with more work, or it cannot be told


def cost_of_bytes(records: Records, transfer: Floats) -> Floats:
    """Return T, of large operations for each byte: sizes of one class differ by up to two."""
    large = records.size_class >= _LARGE_CLASS
    return np.where(large, transfer / np.maximum(records.bytes, 1), transfer)


def find_changes(records: Records, order: Order, usual: Floats) -> Changes:
    """Return what was slower at some times than at others."""
    pieces = int(records.piece.max()) + 1
    kind = number_rows(records.comm, records.func, records.size_class)
    known = ~np.isnan(order.transfer) & (order.transfer > 0)
    rate = cost_of_bytes(records, order.transfer)
    rows = np.flatnonzero(known)
    cell = number_rows(kind[rows], records.piece[rows])
    size = int(cell.max()) + 1 if len(rows) else 0
    middle = medians(cell, rate[rows], size)
    one = first_rows(cell)
    kinds = kind[rows][one]
    base = quantiles(kinds, middle, int(kind.max()) + 1, _BASE_QUANTILE)
    enough = np.bincount(kinds, minlength=int(kind.max()) + 1) >= _PIECES_MIN
    ratio = np.where(enough[kinds], middle / base[kinds], np.nan)
    factor = np.ones(len(records))
    slow = ratio >= LONGER
    factor[rows] = np.where(slow, 1 / ratio, 1.0)[cell]
    gap, grown, evenly = _gaps(records, order, usual, pieces)
    return Changes(factor, gap, grown, evenly)


def _gaps(
    records: Records, order: Order, usual: Floats, pieces: int
) -> tuple[Floats, Floats, Mask]:
    """Return what to add to own gaps so that all ranks have those of the better pieces."""
    rows = np.flatnonzero(~np.isnan(usual))
    if not len(rows):
        return np.zeros(len(records)), np.full(pieces, np.nan), np.ones(pieces, dtype=bool)
    cell = number_rows(order.spot[rows], records.piece[rows])
    size = int(cell.max()) + 1
    middle = medians(cell, usual[rows], size)
    one = first_rows(cell)
    spots, at_piece = order.spot[rows][one], records.piece[rows][one]
    count = int(order.spot.max()) + 1
    base = quantiles(spots, middle, count, _BASE_QUANTILE)
    high = quantiles(spots, middle, count, 1 - _BASE_QUANTILE)
    # Where the program does now this and now that, nothing is usual.
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = (base >= GAP_NS_MIN) & (high / base <= _ALIKE_MAX)
    enough = (np.bincount(spots, minlength=count) >= _PIECES_MIN) & alike
    seen = np.bincount(cell, minlength=size).astype(float)
    weight = np.where(enough[spots], seen, 0.0)
    was = np.bincount(at_piece, weight * np.nan_to_num(base[spots]), minlength=pieces)
    now = np.bincount(at_piece, weight * middle, minlength=pieces)
    grown = np.divide(now, was, out=np.full(pieces, np.nan), where=was > 0)
    found = np.zeros(len(records))
    slow = grown[records.piece] >= GROWN
    excess = np.where(enough, base, np.nan)[order.spot] - usual
    known = slow & ~np.isnan(excess)
    found[known] = np.minimum(excess[known], 0.0)
    fine = enough[spots]
    longer, usual_there, where = (middle - base[spots])[fine], base[spots[fine]], at_piece[fine]
    short = usual_there <= medians(where, usual_there, pieces)[where]
    with np.errstate(invalid="ignore", divide="ignore"):
        bases = medians(where[short], usual_there[short], pieces)
        bases = bases / medians(where[~short], usual_there[~short], pieces)
        more = medians(where[short], longer[short], pieces)
        more = more / medians(where[~short], longer[~short], pieces)
    # A wait at one place of a step is in all gaps that are counted from there, alike.
    evenly = ~((bases <= _BASES_APART) & (more >= (1 + bases) / 2))
    return found, grown, evenly
