# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on arrays that are cut into groups, and that numpy does not have."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_TABLE_MAX = 1 << 22


def _dense(values: Ints) -> tuple[Ints, int]:
    """Return the values as numbers from 0 in their order, and how many different ones there are."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > max(_TABLE_MAX, 4 * len(values)):
        distinct, found = np.unique(values, return_inverse=True)
        return found.astype(np.int64), len(distinct)
    there = np.zeros(span, dtype=bool)
    there[values - low] = True
    numbers = np.cumsum(there) - 1
    return numbers[values - low], int(numbers[-1]) + 1


def number_rows(*columns: Ints) -> Ints:
    """Return for each row the number of its group: rows with the same values share one, from 0."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    found, _ = _dense(columns[0])
    for column in columns[1:]:
        more, size = _dense(column)
        found, _ = _dense(found * size + more)
    return found


def medians(groups: Ints, values: Floats, count: int) -> Floats:
    """Return the median of the values of each of `count` groups; NaN for one without values."""
    found = np.full(count, np.nan)
    if not len(groups):
        return found
    order = np.lexsort((values, groups))
    numbers, first, size = np.unique(groups[order], return_index=True, return_counts=True)
    ordered = values[order]
    low, high = first + (size - 1) // 2, first + size // 2
    found[numbers] = (ordered[low] + ordered[high]) / 2
    return found


def medians_of_others(groups: Ints, values: Floats) -> Floats:
    """Return for each row the median of the other rows of its group; NaN where it is alone."""
    found = np.full(len(groups), np.nan)
    if not len(groups):
        return found
    order = np.lexsort((values, groups))
    _, first, size = np.unique(groups[order], return_index=True, return_counts=True)
    start, many = np.repeat(first, size), np.repeat(size, size)
    place = np.arange(len(order)) - start
    ordered = values[order]

    def other(middle: Ints) -> Floats:
        at: Ints = start + middle + (middle >= place)
        taken: Floats = ordered[np.minimum(at, len(ordered) - 1)]
        return taken

    both = (other((many - 2) // 2) + other((many - 1) // 2)) / 2
    found[order] = np.where(many > 1, both, np.nan)
    return found


def last_before(
    owner: Ints, time: Ints, of_owner: Ints, until: Ints, *, strictly: bool = False
) -> Ints:
    """Return for each question the row of the latest event of its owner that is not later.

    `owner` and `time` are of the events, `of_owner` and `until` of the questions; all times are
    nanoseconds. -1 where the owner has no such event. `strictly`: earlier than `until`.
    """
    found = np.full(len(of_owner), -1, np.int64)
    if not len(owner) or not len(of_owner):
        return found
    order = np.lexsort((time, owner))
    low = min(int(time.min()), int(until.min()))
    span = max(int(time.max()), int(until.max())) - low + 2
    key = owner[order].astype(object) if span > (1 << 62) // (int(owner.max()) + 2) else None
    if key is not None:  # days of nanoseconds times thousands of owners: coarser then
        return last_before(owner, time >> 10, of_owner, until >> 10, strictly=strictly)
    keys = owner[order] * span + (time[order] - low)
    asked = of_owner * span + (until - low)
    at = np.searchsorted(keys, asked, side="left" if strictly else "right") - 1
    inside = at >= 0
    rows = order[np.maximum(at, 0)]
    good = inside & (owner[rows] == of_owner)
    found[good] = rows[good]
    return found
