# SPDX-License-Identifier: Apache-2.0
"""What delays cost where ranks compute on what they have while the next keys come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from nccl_inspector.analysis.replay.bound_gaps import gaps_if_faster
from nccl_inspector.analysis.replay.cause import LATE
from nccl_inspector.analysis.replay.changes import find_changes
from nccl_inspector.analysis.replay.gaps import find_gaps
from nccl_inspector.analysis.replay.judge import judge_records
from nccl_inspector.analysis.replay.late_causes import late_causes
from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.paths import Spot, transfer_times
from nccl_inspector.analysis.replay.plan import make_plan, make_program
from nccl_inspector.analysis.replay.records import RecordedComm, Records, gather
from nccl_inspector.analysis.replay.transfer_causes import transfer_causes
from nccl_inspector.analysis.replay.what_if import Replay
from nccl_inspector.model.process import FUNCS, PEER_NONE
from tests.support.step_jobs import Fault, computed_beside, data_parallel

MS = 10**6
RANKS, STEPS = 8, 120
SPOTS = [Spot(f"n{rank // 2}", rank % 2) for rank in range(RANKS)]
ALL_REDUCE, SEND, RECV = (FUNCS.index(name) for name in ("AllReduce", "Send", "Recv"))

Row = tuple[float, ...]


@dataclass(frozen=True)
class Rings:
    """How many ranks a ring has, what a transfer takes, and the turns of a step."""

    spots: Sequence[Spot]
    width: int
    turns: int  # of a layer
    layers: int
    steps: int
    between_ms: float  # nodes
    inside_ms: float
    uneven: float  # by how much steps differ in size

    @property
    def ranks(self) -> int:
        return len(self.spots)


# Two rings over two nodes each.
BETWEEN = Rings(SPOTS, 4, 9, 1, STEPS, 23, 3.5, 0.0)
# One ring in which no transfer takes long. After some layers all wait for the slow one.
SHORT = Rings(
    [Spot(f"n{rank // 8}", rank % 8) for rank in range(16)], 16, 15, 8, 7, 0.02, 0.02, 0.05
)


def rings(
    slow: tuple[int, int] | None, gpu: tuple[int, float] | None = None, of: Rings = BETWEEN
) -> tuple[Records, float]:
    """Ranks whose turns take 37 ms of work, while the next keys come.

    `slow`: who sends to whom over a path that takes 62 ms. `gpu`: whose work takes this many times
    as long. Return also when the job ended, in ns.
    """
    ranks, width, spots = of.ranks, of.width, of.spots
    pace = np.ones(ranks)
    if gpu:
        pace[gpu[0]] = gpu[1]
    chance = np.random.default_rng(3)
    rows: list[Row] = []
    now = np.zeros(ranks)
    after = np.arange(ranks) // width * width + (np.arange(ranks) + 1) % width
    for step in range(of.steps):
        size = pace * (1 + of.uneven * chance.standard_normal())
        begin = now + 50 * MS * size * (1 + 0.005 * chance.standard_normal(ranks))
        for turn in range(of.turns * of.layers):
            number = step * of.turns * of.layers + turn
            ended, end = np.zeros(ranks), np.zeros(ranks)
            for rank in range(ranks):
                peer = int(after[rank])
                near = spots[rank].node == spots[peer].node
                took = MS * (of.inside_ms if near else of.between_ms)
                took = 62 * MS if (rank, peer) == slow else took
                took *= 1 + 0.01 * chance.standard_normal()
                ended[rank] = max(begin[rank], begin[peer]) + took
            for rank in range(ranks):
                peer = int(after[rank])
                end[peer] = max(ended[rank], ended[peer])
            for rank in range(ranks):
                peer, joined = int(after[rank]), (number + 1) * 100 + rank
                for one, func, other in ((rank, SEND, peer), (peer, RECV, rank)):
                    rows.append((one, begin[one], end[one], 0, func, other % width, number, joined))
            work = 37 * MS * size * (1 + 0.005 * chance.standard_normal(ranks))
            begin = np.maximum(begin + work, end) + 5_000
            if of.layers > 1 and turn % of.turns == of.turns - 1:  # what came last
                begin = begin + 37 * MS * size * (1 + 0.005 * chance.standard_normal(ranks))
        now = np.full(ranks, begin.max() + 5 * MS)
        for rank in range(ranks):
            rows.append((rank, begin[rank], now[0], 1, ALL_REDUCE, PEER_NONE, step, step * 100_000))
    table = np.array(sorted(rows)).astype(np.int64).T
    member, begins, ends, comm, func, peer_of, number_of, joined_of = table
    count = ranks // width
    same = np.zeros(len(member), np.int64)
    _, joined_of = np.unique(joined_of * 2 + comm, return_inverse=True)
    done = np.zeros(int(joined_of.max()) + 1, np.int64)
    np.maximum.at(done, joined_of, ends)
    records = Records(
        comms=(
            *(
                RecordedComm(1 + one, "cp", width, 2, 0, tuple(range(ranks)[one * width :][:width]))
                for one in range(count)
            ),
            RecordedComm(9, "world", ranks, 4, 1, tuple(range(ranks))),
        ),
        member=member, comm=np.where(comm == 1, count, member // width), func=func,
        size_class=same + 26, number=number_of, peer=peer_of, bytes=same + (1 << 26), begin=begins,
        end=ends, queued=same, joined=joined_of, piece=done[joined_of] >> 34, run=same,
        members=ranks, lost=0,
    )  # fmt: skip
    return records, float(now.max())


def test_a_slow_path_of_a_ring_costs_no_less_than_the_ring_would_save_without_it() -> None:
    # The other path between its nodes seems as slow: both of its ends wait for the slow one.
    records, end = rings((7, 4))
    order = find_order(records)
    gaps = find_gaps(records, order)
    found = transfer_causes(
        records, order, gaps_if_faster(records, order, gaps), Replay(records, order, gaps),
        find_changes(records, order, gaps), SPOTS,
    )  # fmt: skip
    cost = 1 - rings(None)[1] / end
    assert cost > 0.2
    assert max(one.cost_share for one in found) >= 0.8 * cost


@pytest.mark.parametrize("pace", [1.09, 1.12])
def test_a_slow_gpu_costs_what_it_does_in_a_ring_in_which_no_transfer_takes_long(
    pace: float,
) -> None:
    # Nothing queues behind a third transfer: only the two begins tell what a rank goes on from.
    records, end = rings(None, (5, pace), SHORT)
    order = find_order(records)
    gaps = find_gaps(records, order)
    nodes = [spot.node for spot in SHORT.spots]
    causes, _ = late_causes(records, order, gaps.usual, nodes, Replay(records, order, gaps))
    cost = 1 - rings(None, (5, 1.0), SHORT)[1] / end
    assert {one.members: one.cost_share for one in causes} == {(5,): pytest.approx(cost, rel=0.2)}


@pytest.mark.parametrize("apart_ms", [0, 60])
def test_nothing_is_replayed_from_what_the_replay_does_not_know_yet(apart_ms: int) -> None:
    # A Send may be done long before its Recv begins, as the clocks of their nodes have it.
    records, _ = rings(None)
    ahead = np.where(records.member == 3, apart_ms * MS, 0)
    records = replace(records, begin=records.begin + ahead, end=records.end + ahead)
    plan = make_plan(records, find_order(records))
    program, nothing = make_program(plan, 0, len(records)), len(records)
    for low, high in program.batches:
        for needs in (program.before, program.cause):
            needed = needs[:, low:high] % (nothing + 1)  # of an end or of a begin
            assert ((needed < low) | (needed == nothing)).all()


@pytest.mark.parametrize("transfer_s", [0.006, 0.009])
def test_a_slow_gpu_costs_what_it_does_where_its_peers_wait_behind_it_in_each_turn(
    transfer_s: float,
) -> None:
    def make(fault: Fault) -> float:
        return computed_beside(fault=fault, steps=80, transfer_s=transfer_s).end_s

    fault = Fault((5,), 1.05)
    job = computed_beside(fault=fault, steps=80, transfer_s=transfer_s)
    judged = judge_records(job.sources(), [f"n{rank // 4}" for rank in range(8)], [0] * 8)
    (found,) = judged.causes
    assert (found.kind, found.members) == (LATE, (5,))
    assert found.cost_share == pytest.approx(1 - make(Fault()) / job.end_s, rel=0.2)


def test_buckets_that_are_reduced_during_the_backward_pass_wait_for_no_begin() -> None:
    for fault in (Fault(), Fault((5,), 1.06), Fault((5,), 1.3)):
        for work in (1.0, 4.0):
            job = data_parallel(fault=fault, work=work)
            records = gather(job.sources(), job.ranks)
            assert records is not None
            assert not find_order(records).beside.any()


def test_a_transfer_within_what_clocks_can_tell_did_not_take_as_long_as_its_kernels() -> None:
    # Each kernel lasts long because of another transfer; both have only 0.4 ms in common.
    rows = []
    for step in range(20):
        now = 100 * MS * step
        rows += [
            (0, now, now + 9.5 * MS, SEND, 1, 3 * step),
            (1, now + 9.1 * MS, now + 18.6 * MS, RECV, 0, 3 * step),
            *((one, now + 40 * MS, now + (45 + 0.1 * one) * MS, ALL_REDUCE, PEER_NONE, 3 * step + 1)
              for one in (0, 1)),
        ]  # fmt: skip
    member, begin, end, func, peer, joined = np.array(sorted(rows)).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    records = Records(
        comms=(RecordedComm(1, "cp", 2, 1, 0, (0, 1)),), member=member, comm=same, func=func,
        size_class=same + 24, number=joined, peer=peer, bytes=same + (1 << 24), begin=begin,
        end=end, queued=same, joined=np.unique(joined, return_inverse=True)[1], piece=same,
        run=same, members=2, lost=0,
    )  # fmt: skip
    times, bound = transfer_times(records, find_order(records))
    sent = func == SEND
    assert times[sent] == pytest.approx(1 * MS, rel=0.05)  # ten times what ends are apart
    assert bound[sent].all()
