# SPDX-License-Identifier: Apache-2.0
"""What chance adds to a gap of which queueing hides how long it was.

A rank whose operation had to queue was ready before that, and nobody knows when. If each of many
such ranks is taken to have been as fast as its peers usually are, the latest of them is too early
in a job without the rank that all waited for, and that rank costs too much. So such a gap is longer
than usual by as much as chance gives at its place of the pattern, but ends before it was seen to.

What chance gives is known from the gaps that are not hidden, and from each hidden one, which was no
longer than seen: the product-limit estimate of Kaplan and Meier (1958), of values that are censored
from above.
"""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, number_rows
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_CLEAR_MIN = 16  # gaps seen at a place; fewer tell nothing
_ODD_TIMES = 4.0  # median deviations by which a process with a cause of its own differs
_LEAST = -50.0  # logarithm of a share that is as good as none
_APART = 1e3  # between two groups' logarithms


def own_with_chance(
    records: Records, order: Order, own: Floats, expected: Floats, spot: Ints
) -> Floats:
    """Return own gaps in ns with what chance adds to those that queueing hides.

    `own`: as in `Gaps`, without that; `expected`: without any chance. `spot`: rows at one place of
    the pattern whose gaps are counted from one place.
    """
    known = ~np.isnan(own) & ~np.isnan(expected) & ~np.isnan(order.gap)
    seen = np.flatnonzero(known & ~order.queued)
    hidden = np.flatnonzero(known & order.queued & (own < order.gap))
    if not len(seen) or not len(hidden):
        return own
    more, most = own - expected, order.gap - own
    chance = np.random.default_rng(len(hidden)).random(len(hidden))
    # As itself elsewhere, or as most others where it is not seen often enough.
    like_most = _like_most(records, seen, more[seen])[records.member]
    drawn_more = np.full(len(hidden), np.nan)
    for groups, some in (
        (spot, seen[like_most[seen]]),
        (number_rows(spot, records.member), seen),
    ):
        enough = np.bincount(groups[some], minlength=int(groups.max()) + 1) >= _CLEAR_MIN
        there = np.flatnonzero(enough[groups[hidden]])
        some = some[enough[groups[some]]]
        if len(there):
            rows = hidden[there]
            drawn_more[there] = drawn(groups[some], more[some], groups[rows], most[rows],
                                      chance[there])  # fmt: skip
    found = own.copy()
    found[hidden] = np.clip(own[hidden] + np.nan_to_num(drawn_more), 0.0, order.gap[hidden])
    return found


def _like_most(records: Records, seen: Ints, more: Floats) -> Mask:
    """Tell which processes' gaps are longer than usual by no more than those of most are.

    By the mean, because who is late rarely and for long is not late by chance either.
    """
    member = records.member[seen]
    every = np.bincount(member, minlength=records.members)
    mean = np.bincount(member, more, minlength=records.members) / np.maximum(every, 1)
    there = every > 0
    apart = mean - np.median(mean[there])
    found: Mask = apart <= _ODD_TIMES * np.median(np.abs(apart[there]))
    return found


def drawn(groups: Ints, values: Floats, hidden: Ints, most: Floats, chance: Floats) -> Floats:
    """Return for each hidden value one of its group's distribution that is no more than `most`.

    `groups`, `values`: those that were seen. `hidden`: the groups of those that were not, each with
    values in it. `chance`: from 0 to 1, one for each.
    """
    group, value = np.concatenate((groups, hidden)), np.concatenate((values, most))
    is_seen = np.arange(len(group)) < len(groups)
    order = np.lexsort((~is_seen, -value, group))  # the largest value of a group first
    group, is_seen = group[order], is_seen[order]
    new = np.append(True, group[1:] != group[:-1])
    number, first = np.cumsum(new) - 1, np.flatnonzero(new)
    begin, end = first[number], np.append(first[1:], len(group))[number]
    left = end - np.arange(len(group))  # values that are no larger
    with np.errstate(divide="ignore"):
        steps = np.where(is_seen, np.maximum(np.log1p(-1.0 / left), _LEAST), 0.0)
        below = np.maximum(np.log(chance), _LEAST)
    # Logarithm of the share of values that are smaller than each one.
    total = np.cumsum(steps)
    smaller = total - np.where(begin > 0, total[begin - 1], 0.0)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    asked = place[len(groups) :]
    wanted = smaller[asked] + below
    # The first one, from the largest down, of which no larger share is smaller.
    at = np.flatnonzero(is_seen)
    first_at = np.searchsorted(_APART * number[at] - smaller[at], _APART * number[asked] - wanted)
    one = at[np.minimum(first_at, len(at) - 1)]
    # Below the smallest one that was seen, nothing is known: it is taken, if that is not more.
    lowest = np.minimum(value[order[end[asked] - 1]], 0.0)
    inside = (first_at < len(at)) & (group[one] == group[asked])
    found: Floats = np.where(inside, value[order[one]], lowest)
    return found
