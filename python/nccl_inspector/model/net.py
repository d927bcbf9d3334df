# SPDX-License-Identifier: Apache-2.0
"""Network detail of a process, from its box: what it exchanged with each peer."""

from dataclasses import dataclass
from typing import NamedTuple


class NetQueue(NamedTuple):
    """What went over one queue pair of NCCL's InfiniBand transport.

    `device` counts the adapters that NCCL merged for the connection, from 0. A connection over a
    single adapter has only device 0, whichever adapter that is. Each adapter numbers its own queue
    pairs.
    """

    device: int
    number: int
    requests: int
    bytes: int  # sent; for receives NCCL does not tell it


@dataclass(frozen=True, slots=True)
class Net:
    """What the network proxy did with one peer in one direction; `comm` is Comm.index.

    The times are waiting times, summed over channels; on each channel the oldest unfinished step
    counts. NCCL tells queue pairs and sockets only if it was built with NET_PROFILER=1.
    """

    comm: int
    peer: int  # rank
    is_send: int
    steps: int
    gpu_ns: int  # for the GPU to give or take the data
    peer_ns: int  # for the receiver's credit
    wire_ns: int  # sending, or waiting for data, for whatever reason it is late
    flush_ns: int
    bytes: int = 0  # on the network, including the flags of LL and LL128
    refused: int = 0  # events of NCCL that are implausible or of an unknown kind
    socket_requests: int = 0
    other_requests: int = 0  # over queue pairs beyond `queues`
    other_bytes: int = 0
    queues: tuple[NetQueue, ...] = ()

    @property
    def waited_ns(self) -> int:
        """The sum of all waiting times."""
        return self.gpu_ns + self.peer_ns + self.wire_ns + self.flush_ns
