# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays in groups that numpy does not have.

numpy sorts integers ten times as fast as it sorts by several keys. Therefore group and value are
combined into one integer wherever both fit.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_TABLE_MAX = 1 << 18
_WORD_MAX = 1 << 62
_EXACT_MAX = float(1 << 53)  # up to here a float holds every whole number


def _dense(values: Ints) -> tuple[Ints, int]:
    """Return the values as numbers from 0 in the same order, and how many different ones exist."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > max(_TABLE_MAX, 4 * len(values)):
        order = np.argsort(values)
        ordered = values[order]
        found = np.empty(len(values), np.int64)
        found[order] = steps = np.cumsum(np.diff(ordered, prepend=ordered[0]) != 0)
        return found, int(steps[-1]) + 1
    there = np.zeros(span, dtype=bool)
    there[values - low] = True
    numbers = np.cumsum(there) - 1
    return numbers[values - low], int(numbers[-1]) + 1


def number_rows(*columns: Ints) -> Ints:
    """Return for each row the number of its group, from 0; rows with equal values share a group."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    found, _ = _dense(columns[0])
    for column in columns[1:]:
        more, size = _dense(column)
        found, _ = _dense(found * size + more)
    return found


def first_rows(groups: Ints) -> Ints:
    """Return the first row of each group that has rows, in the order of the groups."""
    if not len(groups):
        return np.zeros(0, np.int64)
    first = np.full(int(groups.max()) + 1, -1, np.int64)
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)  # the last assignment stays
    return first[first >= 0]


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return each pair of values that a row has, once and in order; values must not be negative."""
    if not len(first):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    width = int(second.max()) + 1
    pairs = np.unique(first * width + second)
    return pairs // width, pairs % width


def order_groups(groups: Ints) -> Ints:
    """Return the rows ordered by group, in their order within a group. No group is negative."""
    count = len(groups)
    bits = max(count - 1, 1).bit_length()
    if int(groups.max(initial=0)) >= _WORD_MAX >> bits:
        return np.argsort(groups, kind="stable")
    keys = groups << bits | np.arange(count)
    keys.sort()
    found: Ints = keys & ((1 << bits) - 1)
    return found


def order_within(groups: Ints, values: Floats) -> Ints:
    """Return the rows ordered by group, and within a group by value; NaN comes last.

    Rows with equal values in a group are in any order. Groups must not be negative.
    """
    by_value = np.argsort(values)
    found: Ints = by_value[order_groups(groups[by_value])]
    return found


def order_rows(owner: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the rows ordered by owner, begin and end; equal rows keep their order."""
    if not len(owner):
        return np.zeros(0, np.int64)
    low = int(begin.min())
    span = int(begin.max()) - low + 1
    if span > _WORD_MAX // (int(owner.max()) + 1):
        return np.lexsort((end, begin, owner))
    keys = owner * span + (begin - low)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    if same.any():
        at = np.flatnonzero(np.append(same, False) | np.append(False, same))
        tied = order[at]
        order[at] = tied[np.lexsort((end[tied], keys[at]))]
    return order


def _ordered_within(groups: Ints, values: Floats) -> Floats:
    """Return the values ordered by group, and within a group by size."""
    low, high = float(values.min()), float(values.max())
    # NaN makes these comparisons false.
    if high - low < _EXACT_MAX and abs(low) < _EXACT_MAX and (values == np.rint(values)).all():
        bits = int(high - low).bit_length()
        if int(groups.max()) < _WORD_MAX >> bits:
            keys = groups << bits | (values - low).astype(np.int64)
            keys.sort()
            return (keys & ((1 << bits) - 1)).astype(np.float64) + low
    return values[order_within(groups, values)]


def medians(groups: Ints, values: Floats, count: int) -> Floats:
    """Return the median of each of `count` groups; NaN for a group without values."""
    found = np.full(count, np.nan)
    if len(groups):
        ordered, have, first, size = _cut(groups, values, count)
        found[have] = (ordered[first + (size - 1) // 2] + ordered[first + size // 2]) / 2
    return found


def quantiles(groups: Ints, values: Floats, count: int, quantile: float) -> Floats:
    """Return a quantile of each of `count` groups, rounded down to a value; NaN without values."""
    found = np.full(count, np.nan)
    if len(groups):
        ordered, have, first, size = _cut(groups, values, count)
        found[have] = ordered[first + ((size - 1) * quantile).astype(np.int64)]
    return found


def _cut(groups: Ints, values: Floats, count: int) -> tuple[Floats, Ints, Ints, Ints]:
    """Return the ordered values; and of each group with values its number, begin there, size."""
    size = np.bincount(groups, minlength=count)
    have = np.flatnonzero(size)
    size = size[have]
    return _ordered_within(groups, values), have, np.cumsum(size) - size, size


def medians_of_others(groups: Ints, values: Floats) -> Floats:
    """Return for each row the median of the other rows of its group; NaN if it is alone."""
    found = np.full(len(groups), np.nan)
    if not len(groups):
        return found
    order = order_within(groups, values)
    size = np.bincount(groups)
    size = size[size > 0]
    first = np.cumsum(size) - size
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
    """Return for each question the row of its owner's latest event that is not later than `until`.

    `owner` and `time` are of the events, `of_owner` and `until` of the questions; times are ns. The
    row is -1 if the owner has no such event. `strictly`: the event must be earlier than `until`. Of
    events at the same time the last one counts.
    """
    found = np.full(len(of_owner), -1, np.int64)
    if not len(owner) or not len(of_owner):
        return found
    low = min(int(time.min()), int(until.min()))
    span = max(int(time.max()), int(until.max())) - low + 2
    if span > _WORD_MAX // (max(int(owner.max()), int(of_owner.max())) + 2):
        # Days of nanoseconds times thousands of owners do not fit an integer; use coarser times.
        return last_before(owner, time >> 10, of_owner, until >> 10, strictly=strictly)
    keys = owner * span + (time - low)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    asked = of_owner * span + (until - low)
    at = np.searchsorted(keys, asked, side="left" if strictly else "right") - 1
    rows = order[np.maximum(at, 0)]
    good = (at >= 0) & (owner[rows] == of_owner)
    found[good] = rows[good]
    return found
