# SPDX-License-Identifier: Apache-2.0
"""The first steps of a job, in which programs compile, allocate and fill caches."""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Mask, number_rows, order_within
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_STEPS = 3
# The highest number of an operation in these, for the longest possible pattern (pattern.py).
_NUMBERS_MAX = 480


def in_first_steps(records: Records, order: Order) -> Mask:
    """Return a mask of the operations in the first steps: the first ones at their place.

    If the first records are of a later time, the mask is empty.
    """
    place = number_rows(records.member, records.comm, order.spot)
    rows = order_within(place, records.begin.astype(float))
    size = np.bincount(place)
    first = np.cumsum(size) - size
    turn = np.empty(len(records), np.int64)
    turn[rows] = np.arange(len(records)) - first[place[rows]]
    found: Mask = (turn < _STEPS) & (records.number <= _NUMBERS_MAX)
    return found
