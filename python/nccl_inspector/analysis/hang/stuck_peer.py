# SPDX-License-Identifier: Apache-2.0
"""At which peer a rank's network proxy stands still; only with network detail."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from nccl_inspector.analysis.hang.arrival import Seat
from nccl_inspector.model.net import Net

# Least share of the operation's age for which one peer was waited for, beyond the usual wait in the
# communicator.
_STUCK_SHARE = 0.5
WIRE, CREDIT, GPU = "wire", "credit", "gpu"


@dataclass(frozen=True, slots=True)
class StuckPeer:
    """The proxy of `rank` stands still at `peer`; both are ranks of the communicator.

    `state`: WIRE (sending, or waiting for data), CREDIT (the receiver gives none), GPU (the rank's
    own).
    """

    rank: int
    peer: int
    state: str
    is_send: bool
    waited_ns: float  # beyond the usual wait


def _states(net: Net) -> dict[str, int]:
    return {WIRE: net.wire_ns, CREDIT: net.peer_ns, GPU: net.gpu_ns + net.flush_ns}


def _find(rows: Sequence[tuple[int, Net]], age_ns: float) -> Iterator[StuckPeer]:
    for state in (WIRE, CREDIT, GPU):
        if rows:
            usual_ns = median(_states(net)[state] for _, net in rows)
        for rank, net in rows:
            more_ns = _states(net)[state] - usual_ns
            if more_ns >= _STUCK_SHARE * age_ns:
                yield StuckPeer(rank, net.peer, state, bool(net.is_send), more_ns)


def find_stuck_peer(seats: Iterable[Seat], age_ns: float) -> StuckPeer | None:
    """Return where the proxies of waiting ranks stand still; None: no network detail tells it.

    A receiver waits for data whoever is late, and a sender may also wait for its GPU's data. So
    what a sender tells about wire and credit goes before everything else.
    """
    rows = [
        (seat.comm.rank, net)
        for seat in seats
        for net in seat.process.nets
        if net.comm == seat.comm.index
    ]
    found = [
        one
        for is_send in (1, 0)
        for one in _find([row for row in rows if row[1].is_send == is_send], age_ns)
    ]
    return max(
        found, key=lambda one: (one.is_send and one.state != GPU, one.waited_ns), default=None
    )
