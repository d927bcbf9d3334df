# SPDX-License-Identifier: Apache-2.0
"""The first steps of a job, in which programs compile, allocate and fill caches."""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Mask, number_rows, order_within
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_STEPS = 3
_NUMBERS_MAX = 480  # of operations in these: of a step as long as a pattern may be (pattern.py)


def in_first_steps(records: Records, order: Order) -> Mask:
    """Return which operations are of the first steps: the first of their place in the pattern.

    Where the first records are of a later time, none is.
    """
    place = number_rows(records.member, records.comm, order.spot)
    rows = order_within(place, records.begin.astype(float))
    size = np.bincount(place)
    first = np.cumsum(size) - size
    turn = np.empty(len(records), np.int64)
    turn[rows] = np.arange(len(records)) - first[place[rows]]
    found: Mask = (turn < _STEPS) & (records.number <= _NUMBERS_MAX)
    return found
