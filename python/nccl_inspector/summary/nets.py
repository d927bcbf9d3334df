# SPDX-License-Identifier: Apache-2.0
"""Network detail in a node summary: a table of directions and peers, then one of queue pairs."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from typing import Any

from nccl_inspector.box.layout import QUEUE_DEVICES, QUEUE_NUMBER_BITS
from nccl_inspector.model.net import Net, NetQueue
from nccl_inspector.summary.columns import pack_columns, refuse, take_columns, unpack_columns

NETS_MAX = 2048  # for a process; the plugin has 256
_QUEUES_MAX = 8 * NETS_MAX
_NAMES = tuple(field.name for field in fields(Net) if field.name != "queues")
# Columns of the table of directions and peers, which has the number of queue pairs of each; and of
# the table of queue pairs.
NET_TABLES = len(_NAMES) + 1, len(NetQueue._fields)


def pack_nets(nets: Sequence[Net]) -> bytes:
    """Return the bytes of network detail."""
    columns: list[Sequence[int]] = [[getattr(net, name) for net in nets] for name in _NAMES]
    columns.append([len(net.queues) for net in nets])
    queues = [queue for net in nets for queue in net.queues]
    of_queues = [[queue[place] for queue in queues] for place in range(len(NetQueue._fields))]
    return pack_columns(columns) + pack_columns(of_queues)


def _take_queues(data: bytes) -> list[NetQueue]:
    devices, numbers, *amounts = unpack_columns(data, len(NetQueue._fields), _QUEUES_MAX)
    largest = max(devices, default=0), max(numbers, default=0)
    if largest[0] >= QUEUE_DEVICES or largest[1] >> QUEUE_NUMBER_BITS:
        raise refuse("a number is too large")
    return [NetQueue(*row) for row in zip(devices, numbers, *amounts, strict=True)]


def unpack_nets(data: bytes) -> tuple[Net, ...]:
    """Return the network detail that `pack_nets` was given.

    Raises:
        RefusedError: the bytes are invalid.
    """
    (*columns, lengths), at = take_columns(data, 0, len(_NAMES) + 1, NETS_MAX)
    if max(columns[_NAMES.index("is_send")], default=0) > 1:
        raise refuse("a number is too large")
    queues = _take_queues(data[at:])
    if sum(lengths) != len(queues):
        raise refuse("the number of rows does not fit the queue pairs")
    ends = [0, *accumulate(lengths)]
    of_nets = [tuple(queues[slice(*place)]) for place in pairwise(ends)]
    rows: Iterable[Any] = zip(*columns, of_nets, strict=True)
    return tuple(Net(*row) for row in rows)
