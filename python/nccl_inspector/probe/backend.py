# SPDX-License-Identifier: Apache-2.0
"""What a rank needs of whatever moves the data: PyTorch with NCCL, or TCP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Offer = Mapping[str, Any]  # what the others need to connect to a rank


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among all ranks, and the secret of this probe."""

    rank: int
    ranks: int
    local: int  # its number on its node
    key: bytes


class Backend(Protocol):
    """Moves data between ranks, and times it by its own clock. All times are in s.

    Every method raises LostError if another rank has gone, MemoryLackError without memory for the
    buffers, and ProbeError for all else.
    """

    device: str  # the GPU's model; empty: none
    version: str  # NCCL's

    def offer(self) -> Offer:
        """Return what the others need to connect to this rank."""

    def join(self, first: Offer, following: Offer) -> None:
        """Connect all ranks: `first` is the offer of rank 0, `following` of the next rank."""

    def prepare(self, collective: str, buffer_bytes: int) -> None:
        """Make the buffers for an operation; `buffer_bytes` are those of the larger one."""

    def is_right(self) -> bool:
        """Run the operation once and tell whether this rank has received what it should have."""

    def timed(self, operations: int) -> float:
        """Meet the other ranks, run so many operations, and return how long they took together."""

    def meet(self, peer: int, offer: Offer) -> None:
        """Connect to one other rank, in place of the one before; both call it."""

    def passed(self, buffer_bytes: int, operations: int, *, sends: bool) -> float:
        """Send (or receive) so many buffers to the rank that was met; return how long it took."""

    def close(self) -> None:
        """Leave the others."""
