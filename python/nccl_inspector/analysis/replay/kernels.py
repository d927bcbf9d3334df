# SPDX-License-Identifier: Apache-2.0
"""Which operations are one kernel on the GPU: the Sends and Recvs of one call."""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Ints, number_rows, order_rows
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

_OVERLAP_NS = 1_000  # operations of one stream that overlap by more are one kernel


def streams(records: Records) -> tuple[Ints, Ints]:
    """Return the number of each row's stream, and all rows ordered by stream and time."""
    stream = number_rows(records.run, records.member, records.comm)
    return stream, order_rows(stream, records.begin, records.end)


def kernels(records: Records, stream: Ints, in_stream: Ints, piece: Ints) -> Ints:
    """Return the number of each row's kernel.

    A stream runs one kernel at a time, so Sends and Recvs that overlap on it are one kernel, which
    ends with the last of them. Rows of different pieces (`piece`) are different kernels.
    """
    paired = (records.peer != PEER_NONE)[in_stream]
    same = (stream[in_stream][1:] == stream[in_stream][:-1]) & paired[1:] & paired[:-1]
    same &= piece[in_stream][1:] == piece[in_stream][:-1]
    same &= records.begin[in_stream][1:] < records.end[in_stream][:-1] - _OVERLAP_NS
    found = np.zeros(len(records), np.int64)
    found[in_stream] = np.append(0, np.cumsum(~same))
    return found
