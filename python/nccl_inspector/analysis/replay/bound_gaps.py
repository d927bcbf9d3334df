# SPDX-License-Identifier: Apache-2.0
"""Gaps of ranks that wait for transfers although nothing shows it.

A program may gather its next layers while it computes, and need them for the computation. If its
transfers fill nearly all of the time, most of them begin as soon as the stream is free. One that
begins a little later then seems to depend on nothing but the start of the step, and a replay with
faster transfers would still count all of its gap as its own time.
"""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, number_rows, order_rows
from nccl_inspector.analysis.replay.gaps import Gaps
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records

_FILLED = 0.95  # share of a gap that operations of its own stream fill; this much is no coincidence


def gaps_if_faster(records: Records, order: Order, gaps: Gaps) -> Floats:
    """Return for each row what to add to its own gap (ns, at most 0) if transfers are faster.

    If operations of the row's own communicator nearly fill its gap, only the time between them is
    left.
    """
    run = number_rows(records.member, order.cause, records.comm)
    in_run = order_rows(run, records.begin, records.end)
    times = (records.end - records.begin)[in_run].astype(float)
    before = np.append(0.0, np.cumsum(times))[:-1]
    first = np.append(True, run[in_run][1:] != run[in_run][:-1])[: len(in_run)]
    start = np.maximum.accumulate(np.where(first, np.arange(len(in_run)), 0))
    busy = np.empty(len(in_run))
    busy[in_run] = before - before[start]
    with np.errstate(invalid="ignore"):
        filled = busy >= _FILLED * order.gap
        left = np.maximum(order.gap - busy, 0.0)
        return np.where(filled & (left < gaps.own), left - gaps.own, 0.0)
