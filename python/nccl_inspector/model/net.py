# SPDX-License-Identifier: Apache-2.0
"""Network detail of a process: what it did with each peer, as its box tells it."""

from dataclasses import dataclass
from typing import NamedTuple


class NetQueue(NamedTuple):
    """What went over one queue pair of NCCL's InfiniBand transport.

    `device`: which of the adapters that NCCL merged for the connection, from 0. A connection of
    one adapter only has device 0, whichever adapter that is. Each adapter numbers its own pairs.
    """

    device: int
    number: int
    requests: int
    bytes: int  # sent; NCCL does not tell how many a receive takes


@dataclass(frozen=True, slots=True)
class Net:
    """What the network proxy did with one peer in one direction; `comm` is Comm.index.

    Times are of waiting, summed over channels, each by its oldest unfinished step. Only an NCCL
    that was built with NET_PROFILER=1 tells queue pairs and sockets.
    """

    comm: int
    peer: int  # rank
    is_send: int
    steps: int
    gpu_ns: int  # for the GPU's data, or for the GPU to take them
    peer_ns: int  # for the receiver's credit
    wire_ns: int  # sending, or for the data, whoever is late
    flush_ns: int
    bytes: int = 0  # on the network, with the flags of LL and LL128
    refused: int = 0  # what NCCL told of it and cannot be true, or is not known
    socket_requests: int = 0
    other_requests: int = 0  # over queue pairs beyond `queues`
    other_bytes: int = 0
    queues: tuple[NetQueue, ...] = ()

    @property
    def waited_ns(self) -> int:
        """All of the waiting."""
        return self.gpu_ns + self.peer_ns + self.wire_ns + self.flush_ns
