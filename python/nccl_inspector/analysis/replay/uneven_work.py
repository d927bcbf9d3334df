# SPDX-License-Identifier: Apache-2.0
"""Lateness that is the program's: a rank computes longer only on what the others have sent to it.

In a mixture of experts each layer sends its tokens to the ranks with their experts, and back. A
rank whose experts get more computes longer between these two exchanges, and in no other part of the
step. A slow GPU is as slow in the rest of the layer, and a late host is late at any place. So
neither hardware nor host is at fault, however many ranks at the same place of all groups are late.
"""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask, medians, number_rows
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import FUNCS, PEER_NONE

_ALL_TO_ALL = FUNCS.index("AlltoAll")
_SEND = FUNCS.index("Send")
_RANKS_MIN = 3  # with two ranks, all peers are one
_INSIDE_MIN = 0.8  # share of the lateness that lies between two exchanges of one communicator
# Of the work between exchanges the experts' is a part, of a GPU all of it is slow: this share of it
# is not late, by less than this share of what the latest places are.
_REST_MIN, _REST_LATE_MAX = 0.2, 0.35
_PLACES_MIN = 2  # forward and backward: late once in a step may be any wait


def exchanges(records: Records) -> Mask:
    """Tell which communicators exchange all with all: by AlltoAll, or a Send to each other rank."""
    count = len(records.comms)
    found: Mask = np.bincount(records.comm[records.func == _ALL_TO_ALL], minlength=count) > 0
    sends = np.flatnonzero((records.func == _SEND) & (records.peer != PEER_NONE))
    if len(sends):
        cell = number_rows(records.comm[sends], records.member[sends])
        pair = np.unique(np.stack((cell, records.peer[sends])), axis=1)
        peers = np.bincount(pair[0], minlength=int(cell.max()) + 1)[cell]
        sizes = np.array([one.nranks for one in records.comms], np.int64)[records.comm[sends]]
        all_of = sends[(peers >= sizes - 1) & (sizes >= _RANKS_MIN)]
        found = found | (np.bincount(records.comm[all_of], minlength=count) > 0)
    return found


def is_uneven_work(
    records: Records, order: Order, usual: Floats, rows: Ints, excess: Floats
) -> bool:
    """Tell whether late processes are late only in the part of a layer that is between exchanges.

    `rows`: of these processes, one for each gap; `excess`: by how much each is longer than `usual`.
    """
    between = exchanges(records)[records.comm[rows]]
    cause = order.cause[rows]
    between &= records.comm[cause] == records.comm[rows]
    late = np.maximum(excess, 0.0)
    if not between.any() or late[between].sum() < _INSIDE_MIN * late.sum():
        return False
    rows, cause, excess = rows[between], cause[between], excess[between]
    spot = number_rows(order.spot[rows], order.spot[cause])
    count = int(spot.max()) + 1
    longer = medians(spot, excess / np.maximum(usual[rows], 1.0), count)
    work = np.bincount(spot, usual[rows], minlength=count)
    rest = longer < _REST_LATE_MAX * longer.max()
    places = np.count_nonzero(~rest)
    return bool(places >= _PLACES_MIN and work[rest].sum() >= _REST_MIN * work.sum())
