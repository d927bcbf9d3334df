# SPDX-License-Identifier: Apache-2.0
"""Slow paths among Sends round a ring, of which most stay within a node."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.paths import NODE, Spot, find_slow_paths
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.model.process import FUNCS

MS = 10**6
NODES, GPUS, STEPS = 6, 4, 40
RANKS = NODES * GPUS
SEND, RECV = FUNCS.index("Send"), FUNCS.index("Recv")
SPOTS = [Spot(f"n{rank // GPUS}", rank % GPUS) for rank in range(RANKS)]


def transfer_ns(sender: int, slow_node: int) -> float:
    here, there = sender // GPUS, (sender + 1) % RANKS // GPUS
    if here == there:
        return 1 * MS
    return 8 * MS if slow_node in (here, there) else 5 * MS


def ring(slow_node: int) -> Records:
    """Each rank sends to the next one in each step."""
    chance = np.random.default_rng(4)
    rows = []
    for step in range(STEPS):
        for sender in range(RANKS):
            begin = step * 100 * MS + sender * 1000
            took = transfer_ns(sender, slow_node) * (1 + 0.02 * chance.random())
            receiver = (sender + 1) % RANKS
            for member, func, peer in ((sender, SEND, receiver), (receiver, RECV, sender)):
                rows.append((member, begin, func, peer, step, begin + took, step * RANKS + sender))
    member, begin, func, peer, number, end, joined = np.array(sorted(rows)).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=(RecordedComm(1, "cp", RANKS, NODES, 0, tuple(range(RANKS))),),
        member=member, comm=same, func=func, size_class=same + 24, number=number, peer=peer,
        bytes=same + (1 << 24), begin=begin, end=end, queued=same, joined=joined, piece=same,
        run=same, members=RANKS, lost=0,
    )  # fmt: skip


@pytest.mark.parametrize("slow", [0, 3])
def test_a_slow_node_is_told_from_others_whose_borders_are_as_wide(slow: int) -> None:
    records = ring(slow)
    (found,) = find_slow_paths(records, find_order(records), SPOTS)
    assert (found.where.kind, found.where.nodes, found.inside) == (NODE, (f"n{slow}",), False)
    assert found.ratio == pytest.approx(1.6, rel=0.05)


def test_that_borders_of_nodes_are_slower_than_links_inside_is_as_it_should_be() -> None:
    records = ring(slow_node=-1)
    assert find_slow_paths(records, find_order(records), SPOTS) == ()
