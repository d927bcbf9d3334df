# SPDX-License-Identifier: Apache-2.0
"""Which node was slow in some time, where Sends round a ring tell what a collective does not."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.bound_gaps import gaps_if_faster
from nccl_inspector.analysis.replay.changes import find_changes
from nccl_inspector.analysis.replay.gaps import find_gaps
from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.paths import (
    Spot,
    Where,
    locate_then,
)
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.analysis.replay.transfer_causes import transfer_causes
from nccl_inspector.analysis.replay.what_if import Replay
from nccl_inspector.model.process import FUNCS, PEER_NONE

MS = 10**6
RANKS, PIECES, STEPS = 4, 12, 20
SLOW_PIECES = (5, 6, 7)
SLOW_STEPS = range(5 * STEPS, 8 * STEPS)
SPOTS = [Spot(f"n{rank}", 0) for rank in range(RANKS)]
ALL_REDUCE, SEND, RECV = (FUNCS.index(name) for name in ("AllReduce", "Send", "Recv"))


def job(direct: float, beside: float, slow_steps: range = SLOW_STEPS) -> Records:
    """A collective of all, then each rank sends to the next, in one call of all.

    In some steps the links of n2 take `direct` times as long. So does the collective; a Send
    beside them takes `beside` times as long, for a call ends when its last transfer does. (So it
    was on the sandbox cluster: 4 and 2.5 times.)
    """
    chance = np.random.default_rng(2)
    rows, now = [], 0.0
    for piece in range(PIECES):
        for step in range(piece * STEPS, (piece + 1) * STEPS):
            slow = step in slow_steps
            now += 5 * MS
            end = now + 20 * MS * (direct if slow else 1) * (1 + 0.01 * chance.random())
            rows += [
                (rank, now, ALL_REDUCE, PEER_NONE, 2 * step, end, 5 * step, piece)
                for rank in range(RANKS)
            ]
            now = end + 5 * MS
            for rank in range(RANKS):
                peer = (rank + 1) % RANKS
                longer = (direct if 2 in (rank, peer) else beside) if slow else 1
                end = now + 30 * MS * longer * (1 + 0.01 * chance.random())
                for member, func, other in ((rank, SEND, peer), (peer, RECV, rank)):
                    joined = 5 * step + 1 + rank
                    rows.append((member, now, func, other, 2 * step + 1, end, joined, piece))
            now += 30 * MS * (direct if slow else 1) * 1.02
    member, begin, func, peer_of, number, ended, joined_of, piece_of = (
        np.array(sorted(rows)).astype(np.int64).T
    )
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=(RecordedComm(1, "world", RANKS, RANKS, 0, tuple(range(RANKS))),),
        member=member, comm=same, func=func, size_class=same + 22, number=number, peer=peer_of,
        bytes=same + (1 << 22), begin=begin, end=ended, queued=same, joined=joined_of,
        piece=piece_of, run=same, members=RANKS, lost=0,
    )  # fmt: skip


def named(direct: float, beside: float) -> Where | None:
    records = job(direct, beside)
    order = find_order(records)
    changes = find_changes(records, order, find_gaps(records, order))
    then = np.isin(records.piece, SLOW_PIECES)
    return locate_then(records, changes.transfer, then, SPOTS)


def test_the_node_is_named_of_whose_links_alone_sends_were_slower() -> None:
    where = named(direct=4.0, beside=1.0)
    assert where is not None
    assert where.nodes == ("n2",)


@pytest.mark.parametrize("beside", [2.5, 4.0])
def test_nobody_is_named_where_sends_over_all_links_were_slower(beside: float) -> None:
    assert named(direct=4.0, beside=beside) is None


def test_each_pair_is_held_against_its_own_past() -> None:
    records = job(direct=4.0, beside=2.5)
    order = find_order(records)
    factor = find_changes(records, order, find_gaps(records, order)).transfer
    slow = np.isin(records.piece, SLOW_PIECES) & (records.peer != PEER_NONE)
    of_two = slow & ((records.member == 2) | (records.peer == 2))
    assert factor[of_two] == pytest.approx(1 / 4, rel=0.03)
    assert factor[slow & ~of_two] == pytest.approx(1 / 2.5, rel=0.03)


def test_a_slow_time_that_begins_and_ends_within_pieces_is_undone_then_and_only_then() -> None:
    # 8 of the 20 steps of one piece, all of the next, 13 of the one after.
    slow_steps = range(5 * STEPS + 12, 7 * STEPS + 13)
    records = job(direct=4.0, beside=1.0, slow_steps=slow_steps)
    order = find_order(records)
    factor = find_changes(records, order, find_gaps(records, order)).transfer
    collective = records.func == ALL_REDUCE
    slow = np.isin(records.number // 2, list(slow_steps))
    assert np.median(factor[collective & slow]) == pytest.approx(0.25, rel=0.03)
    # But for a part in which both are: an eighth of a piece.
    assert np.mean(factor[collective & slow] < 1) > 0.95
    assert np.mean(factor[collective & ~slow] < 1) < 0.02


def exchanges() -> Records:
    """Two nodes of two ranks; each rank sends to the next and receives from the last in one call.

    In some steps the links between the nodes are slow. Each kernel has one of these, and one link
    within the node, and all of it takes the time of the slower one.
    """
    chance = np.random.default_rng(6)
    rows, now = [], 0.0
    for step in range(PIECES * STEPS):
        now += 10 * MS
        end = now + 30 * MS * (4 if step in SLOW_STEPS else 1) * (1 + 0.01 * chance.random())
        for rank in range(RANKS):
            peer = (rank + 1) % RANKS
            for member, func, other in ((rank, SEND, peer), (peer, RECV, rank)):
                rows.append((member, now, func, other, step, end, RANKS * step + rank))
        now = end
    member, begin, func, peer_of, number, ended, joined_of = (
        np.array(sorted(rows)).astype(np.int64).T
    )
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=(RecordedComm(1, "world", RANKS, 2, 0, tuple(range(RANKS))),),
        member=member, comm=same, func=func, size_class=same + 22, number=number, peer=peer_of,
        bytes=same + (1 << 22), begin=begin, end=ended, queued=same, joined=joined_of,
        piece=number // STEPS, run=same, members=RANKS, lost=0,
    )  # fmt: skip


def test_what_slow_links_cost_is_told_where_each_kernel_has_a_link_within_the_node_too() -> None:
    records = exchanges()
    order = find_order(records)
    gaps = find_gaps(records, order)
    (slow,) = transfer_causes(
        records, order, gaps_if_faster(records, order, gaps), Replay(records, order, gaps),
        find_changes(records, order, gaps), [Spot(f"n{rank // 2}", rank % 2) for rank in range(4)],
    )  # fmt: skip
    assert not slow.inside
    # 60 of 240 steps took 130 ms in place of 40.
    assert slow.cost_share == pytest.approx(60 * 90 / (60 * 130 + 180 * 40), rel=0.08)
