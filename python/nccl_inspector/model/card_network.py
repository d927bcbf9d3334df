# SPDX-License-Identifier: Apache-2.0
"""The part of a card that network detail gives."""

from dataclasses import dataclass

SEND, RECEIVE = "send", "receive"
DIRECTIONS = SEND, RECEIVE


@dataclass(frozen=True, slots=True)
class QueuePair:
    """A queue pair of NCCL's InfiniBand transport.

    `device` is the adapter's place in the connection, from 0: NCCL merges up to four adapters, or
    ports of one, into a connection, and does not say which they are. `adapter` is the adapter's
    name where only one can be meant, else empty.
    """

    number: int
    device: int
    requests: int
    bytes: int | None  # sent; None: NCCL does not tell it of what is received
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """What the network proxy of one process moved to or from one peer.

    Ranks are those of the communicator. Times are summed over channels. Only an NCCL that was
    built with NET_PROFILER=1 tells queue pairs and sockets.
    """

    process: str
    node: str
    communicator: str  # its id
    rank: int
    peer: int
    peer_node: str  # empty: not known
    direction: str  # of DIRECTIONS
    bytes: int
    steps: int
    gpu_s: float  # waited for the GPU
    credit_s: float  # for the receiver to be ready
    wire_s: float  # for the network, a receiver also for whoever is late
    flush_s: float
    queue_pairs: tuple[QueuePair, ...] = ()
    other_requests: int = 0  # over queue pairs beyond these
    socket_requests: int = 0
    refused: int = 0  # events about it that cannot be believed


@dataclass(frozen=True, slots=True)
class PortBytes:
    """What the InfiniBand ports of a node sent, and how much of it network detail has."""

    node: str
    sent_bytes: int
    seen_bytes: int

    @property
    def other_bytes(self) -> int:
        """Return what else they sent: headers, storage, other programs, what no plugin sees."""
        return self.sent_bytes - self.seen_bytes


@dataclass(frozen=True, slots=True)
class Network:
    """Network detail: `peers` are those with most bytes, `directions` how many there are in all."""

    peers: tuple[NetworkPeer, ...]
    directions: int
    sent_bytes: int  # of all directions
    received_bytes: int
    not_followed: int  # operations of the proxy that are in none of these figures
    refused: int
    taken_s: float = 0.0  # for how long it was taken, of the process with most
    sampled: int = 0  # processes that took it of some operations only, to spare the application
    ports: tuple[PortBytes, ...] = ()  # of nodes with network detail all the time
