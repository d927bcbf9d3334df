# SPDX-License-Identifier: Apache-2.0
"""Which paths are slow, and what they have in common."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.paths import (
    BOTH,
    IN,
    NODE,
    OUT,
    PATHS,
    Path,
    Spot,
    find_slow_paths,
    locate,
    transfer_times,
)
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.model.process import FUNCS, PEER_NONE

MS = 10**6
NODES, GPUS, STEPS = 6, 4, 40
RANKS = NODES * GPUS
SEND, RECV = FUNCS.index("Send"), FUNCS.index("Recv")
SPOTS = [Spot(f"n{rank // GPUS}", rank % GPUS) for rank in range(RANKS)]


def transfer_ns(sender: int, slow_node: int, slow: float) -> float:
    here, there = sender // GPUS, (sender + 1) % RANKS // GPUS
    if here == there:
        return 1 * MS
    return slow * 5 * MS if slow_node in (here, there) else 5 * MS


def ring(slow_node: int, slow: float = 1.6) -> Records:
    """Each rank sends to the next one in each step; over a slow node it takes longer."""
    chance = np.random.default_rng(4)
    rows = []
    for step in range(STEPS):
        for sender in range(RANKS):
            begin = step * 100 * MS + sender * 1000
            took = transfer_ns(sender, slow_node, slow) * (1 + 0.02 * chance.random())
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


def test_a_node_that_is_a_little_slower_is_told_where_all_other_paths_are_alike() -> None:
    records = ring(3, 1.12)
    (found,) = find_slow_paths(records, find_order(records), SPOTS)
    assert (found.where.kind, found.where.nodes) == (NODE, ("n3",))
    records = ring(3, 1.04)
    assert find_slow_paths(records, find_order(records), SPOTS) == ()


def test_that_borders_of_nodes_are_slower_than_links_inside_is_as_it_should_be() -> None:
    records = ring(slow_node=-1)
    assert find_slow_paths(records, find_order(records), SPOTS) == ()


def nodes(count: int) -> list[Spot]:
    return [Spot(f"n{at}", 0) for at in range(count)]


def among(*members: int) -> Path:
    return Path(frozenset(members))


def sent(sender: int, receiver: int) -> Path:
    return Path(frozenset((sender, receiver)), sender, receiver)


def test_a_slow_node_is_named_although_its_neighbour_shares_most_of_its_paths() -> None:
    slow = [*[among(0, 1)] * 4, among(0, 2)]
    others = [*[among(2, 3)] * 4, among(1, 3)]
    where = locate(slow, others, [Spot(f"n{at}", at) for at in range(4)])
    assert where.nodes == ("n0",)


def test_two_nodes_that_explain_the_slow_paths_alike_are_not_told_apart() -> None:
    where = locate([among(0, 1)] * 4, [among(2, 3)] * 4, nodes(4))
    assert (where.kind, where.nodes) == (PATHS, ("n0", "n1"))


@pytest.mark.parametrize("way", [OUT, IN])
def test_the_direction_is_told_in_which_a_node_is_slow(way: str) -> None:
    every = [sent(one, other) for one in range(4) for other in range(4) if one != other]
    slow = [one for one in every if (one.sender if way == OUT else one.receiver) == 2]
    where = locate(slow, [one for one in every if one not in slow], nodes(4))
    assert (where.nodes, where.way) == (("n2",), way)


def test_a_node_that_is_slow_in_both_directions_has_none() -> None:
    every = [sent(one, other) for one in range(4) for other in range(4) if one != other]
    slow = [one for one in every if 2 in one.members]
    where = locate(slow, [one for one in every if one not in slow], nodes(4))
    assert (where.nodes, where.way) == (("n2",), BOTH)


def waiting_pair(*, met: bool) -> Records:
    """Rank 0 comes 30 ms before rank 1; both stay on for another transfer of rank 1's kernel.

    `met`: an AllReduce of both tells how their clocks differ.
    """
    rows = []
    for step in range(STEPS):
        at = step * 200 * MS
        rows += [(0, at, SEND, 1, step, at + 40 * MS, 2 * step),
                 (1, at + 30 * MS, RECV, 0, step, at + 70 * MS, 2 * step)]  # fmt: skip
        if met:
            rows += [
                (rank, at + 100 * MS, FUNCS.index("AllReduce"), PEER_NONE, step, at + 105 * MS,
                 2 * step + 1)
                for rank in (0, 1)
            ]  # fmt: skip
    member, begin, func, peer, number, end, joined = np.array(sorted(rows)).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=(RecordedComm(1, "cp", 2, 2, 0, (0, 1)),),
        member=member, comm=same, func=func, size_class=same + 24, number=number, peer=peer,
        bytes=same + (1 << 24), begin=begin, end=end, queued=same, joined=joined, piece=same,
        run=same, members=2, lost=0,
    )  # fmt: skip


@pytest.mark.parametrize(("met", "takes_ms"), [(True, 10), (False, 40)])
def test_a_transfer_is_timed_from_when_both_have_begun_if_clocks_can_be_compared(
    met: bool, takes_ms: int
) -> None:
    records = waiting_pair(met=met)
    times, _ = transfer_times(records, find_order(records))
    assert times[records.func == SEND] == pytest.approx(takes_ms * MS)


def held_up() -> Records:
    """Ranks in a line send to the next one; the middle ones wait for the first and the last.

    Each transfer takes 10 ms from when both have begun. Both parts of a kernel end at once. All
    meet at the end of each step.
    """
    rows = []
    for step in range(STEPS):
        at = step * 200 * MS
        begins = [at + 50 * MS, at, at, at + 50 * MS]
        for sender in range(3):
            for member, kind, other in ((sender, SEND, sender + 1), (sender + 1, RECV, sender)):
                row = member, begins[member], kind, other, step, at + 60 * MS, 4 * step + sender
                rows.append(row)
        for member in range(4):
            end = at + 105 * MS
            rows.append((member, at + 100 * MS, 0, PEER_NONE, step, end, 4 * step + 3))
    members, begin, func, peer, number, ends, joined = np.array(sorted(rows)).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    func = np.where(peer == PEER_NONE, FUNCS.index("AllReduce"), func)
    return Records(
        comms=(RecordedComm(1, "cp", 4, 4, 0, (0, 1, 2, 3)),),
        member=members, comm=same, func=func, size_class=same + 24, number=number, peer=peer,
        bytes=same + (1 << 24), begin=begin, end=ends, queued=same, joined=joined, piece=same,
        run=same, members=4, lost=0,
    )  # fmt: skip


def test_a_transfer_tells_no_time_whose_kernels_both_waited_for_other_ranks() -> None:
    records = held_up()
    times, bound = transfer_times(records, find_order(records))
    paired = records.peer != PEER_NONE
    middle = paired & np.isin(records.member, (1, 2)) & np.isin(records.peer, (1, 2))
    assert bound[middle].all()
    assert not bound[~middle].any()
    assert times[paired & ~middle] == pytest.approx(10 * MS)
