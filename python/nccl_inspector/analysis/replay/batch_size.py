# SPDX-License-Identifier: Apache-2.0
"""How long ranks that had to queue would have taken, by how large their share of the work was.

If batches differ much from step to step, a rank that does not queue late in a step usually had a
large batch of its own, so what such ranks take is not usual. But everything that a rank does in a
step grows with its batch. How large the batch is shows early in the step, before operations have to
queue.
"""

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
from nccl_inspector.analysis.replay.blocking import QUEUED_NS
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_SEEN_MIN = 4  # times that a process must be seen at a place
_OTHERS_MIN = 2  # other processes that must be seen there
_UNEVEN_MIN = 0.02  # usual relative spread of the first gaps
_BETTER = 0.6  # share of the gaps' spread that is left after division by the first gap
# The same, if chance beside the batches is next to nothing.
NEARLY_ALL = 0.4
_ODD_TIMES = 6.0  # median deviations; a first gap that is further away is not of a large batch


def first_of_run(records: Records, order: Order) -> Ints:
    """Return for each row the first row of its process that has the same cause."""
    run = number_rows(records.member, order.cause)
    by_run = np.lexsort((records.begin, run))
    starts = np.append(True, np.diff(run[by_run]) != 0)[: len(run)]
    at = np.maximum.accumulate(np.where(starts, np.arange(len(run)), 0))
    found = np.empty(len(run), np.int64)
    found[by_run] = by_run[at]
    return found


def _first_gaps(order: Order, first: Ints) -> Floats:
    """Return for each row the first gap since its cause; NaN: not known."""
    short = order.gap[first] < QUEUED_NS
    return np.where(order.queued[first] | short, np.nan, order.gap[first])


def batch_sizes(records: Records, order: Order, first: Ints) -> Floats:
    """Return for each row the logarithm of its batch's size; 0 is what its process usually has.

    By the first gap since the same cause (`first`, of first_of_run). 0 also where that is not
    known, and where it is further away than batches are: then something else made the rank late.
    """
    base = _first_gaps(order, first)
    known = np.flatnonzero(~np.isnan(base) & (order.cause >= 0))
    found = np.zeros(len(records))
    if not len(known):
        return found
    cause_spot = order.spot[np.maximum(order.cause, 0)]
    cell = number_rows(order.spot[first], cause_spot, records.member)[known]
    size, count = np.log(base[known]), int(cell.max()) + 1
    size -= medians(cell, size, count)[cell]
    usual = medians(cell, np.abs(size), count)[cell]
    found[known] = np.where(np.abs(size) <= _ODD_TIMES * usual, size, 0.0)
    return found


def follow_batches(
    cell: Ints, group: Ints, times: Floats, sizes: Floats, groups: int, most: float = _BETTER
) -> Mask:
    """Tell of which groups the logarithms of times are more alike if batches' sizes are taken off.

    `cell`: times of one process at one place, that are compared; `group`: of one place. `most`: of
    their spread, that may be left then.
    """
    cells = int(cell.max(initial=-1)) + 1
    apart, left = (
        medians(group, np.abs(some - medians(cell, some, cells)[cell]), groups)
        for some in (times, times - sizes)
    )
    found: Mask = left <= most * apart
    return found


def _spread(cell: Ints, values: Floats, count: int) -> Floats:
    """Return for each cell the median deviation from the median."""
    return medians(cell, np.abs(values - medians(cell, values, count)[cell]), count)


def ready_by_batch(
    records: Records, order: Order, usual: Floats, first: Ints
) -> tuple[Floats, Floats]:
    """Return what each rank itself took to be ready, and what would have been usual, both in ns.

    `usual`: for each row, what others took at the same time. `first`: of first_of_run. NaN if this
    method does not tell it: the spread of what ranks take at a place must come mostly from their
    batches.
    """
    own = np.full(len(records), np.nan)
    others = own.copy()
    base = _first_gaps(order, first)
    known = (first != np.arange(len(first))) & (order.cause >= 0) & ~np.isnan(base)
    seen = np.flatnonzero(known & ~order.queued & (order.gap > 0))
    if not len(seen):
        return own, others
    spot = number_rows(order.spot, order.spot[first], order.spot[np.maximum(order.cause, 0)])
    cell = number_rows(spot, records.member)
    many = int(cell.max()) + 1
    times = np.log(order.gap[seen] / base[seen])
    often = np.bincount(cell[seen], minlength=many)
    left = _spread(cell[seen], times, many)
    by_batch = left <= _BETTER * _spread(cell[seen], np.log(order.gap[seen]), many)
    by_batch &= _spread(cell[seen], np.log(base[seen]), many) >= _UNEVEN_MIN
    one = first_rows(cell)  # in the order of cells
    told = np.flatnonzero((often >= _SEEN_MIN) & by_batch)
    if not len(told):
        return own, others
    spot_of, spots = spot[one], int(spot.max()) + 1
    middle = medians(cell[seen], times, many)
    factor = medians(spot_of[told], middle[told], spots)[spot_of]
    factor[told] = medians_of_others(spot_of[told], middle[told])
    voices = np.bincount(spot_of[told], minlength=spots)[spot_of]
    voices[told] -= 1
    factor[voices < _OTHERS_MIN] = np.nan
    by_row = np.where(known, np.exp(factor[cell]), np.nan)
    own = np.fmin(order.gap, by_row * base)
    own[np.isnan(by_row)] = np.nan
    return own, by_row * usual[first]
