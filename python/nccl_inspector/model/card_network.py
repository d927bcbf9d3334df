# SPDX-License-Identifier: Apache-2.0
"""The part of a card about network detail."""

from dataclasses import dataclass

SEND, RECEIVE = "send", "receive"
DIRECTIONS = SEND, RECEIVE


@dataclass(frozen=True, slots=True)
class QueuePair:
    """A queue pair of NCCL's InfiniBand transport.

    `device` counts the adapters of a connection from 0: NCCL merges up to four adapters, or ports
    of one, into a connection, and does not say which they are. `adapter` is the adapter's name if
    only one is possible, else empty.
    """

    number: int
    device: int
    requests: int
    bytes: int | None  # sent; None: received, for which NCCL does not tell it
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """What the network proxy of one process moved to or from one peer.

    Ranks are those of the communicator. Times are summed over channels. NCCL tells queue pairs and
    sockets only if it was built with NET_PROFILER=1.
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
    gpu_s: float  # waiting for the GPU
    credit_s: float  # waiting for the receiver to be ready
    wire_s: float  # waiting for the network; a receiver: also for a late sender
    flush_s: float
    queue_pairs: tuple[QueuePair, ...] = ()
    other_requests: int = 0  # over queue pairs that are not listed
    socket_requests: int = 0
    refused: int = 0  # implausible events about it


@dataclass(frozen=True, slots=True)
class PortBytes:
    """What the InfiniBand ports of a node sent, and how much of that network detail has seen."""

    node: str
    sent_bytes: int
    seen_bytes: int

    @property
    def other_bytes(self) -> int:
        """The rest: headers, storage, other programs, and what no plugin sees."""
        return self.sent_bytes - self.seen_bytes


@dataclass(frozen=True, slots=True)
class Network:
    """Network detail; `peers` are those with the most bytes, `directions` counts all of them."""

    peers: tuple[NetworkPeer, ...]
    directions: int
    sent_bytes: int  # of all directions
    received_bytes: int
    not_followed: int  # operations of the proxy that are in no figure here
    refused: int
    taken_s: float = 0.0  # for how long it was taken; the longest of the processes
    sampled: int = 0  # processes that took it of only some operations, to spare the application
    ports: tuple[PortBytes, ...] = ()  # of nodes that took network detail all the time
