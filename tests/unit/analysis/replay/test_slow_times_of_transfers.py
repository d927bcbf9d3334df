# SPDX-License-Identifier: Apache-2.0
"""Transfers that are slow for some seconds again and again, or get slower all the time."""

from collections.abc import Callable

import numpy as np
import pytest

from nccl_inspector.analysis.replay.bound_gaps import gaps_if_faster
from nccl_inspector.analysis.replay.cause import Cause
from nccl_inspector.analysis.replay.changes import find_changes
from nccl_inspector.analysis.replay.gaps import find_gaps
from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.outside_causes import without_explained
from nccl_inspector.analysis.replay.paths import Spot
from nccl_inspector.analysis.replay.records import PIECE_BITS, RecordedComm, Records
from nccl_inspector.analysis.replay.transfer_causes import transfer_causes
from nccl_inspector.analysis.replay.what_if import Replay
from nccl_inspector.model.process import FUNCS, PEER_NONE

S, MS = 1e9, 1e6
RANKS, STEPS = 3, 2400
GAP_NS, TAKES_NS = 150 * MS, 60 * MS
SPOTS = [Spot(f"n{rank}", 0) for rank in range(RANKS)]


def job(times: Callable[[int, float], float]) -> tuple[Records, float]:
    """A step is work and an AllReduce of all, which takes so many times as long as usual.

    `times`: of the step's number and its begin in s. Return what it cost, too, as a share.
    """
    chance = np.random.default_rng(8)
    rows, now, lost = [], 0.0, 0.0
    for step in range(STEPS):
        now += GAP_NS * (1 + 0.01 * chance.standard_normal())
        longer = times(step, now / S)
        took = TAKES_NS * (1 + 0.02 * chance.standard_normal())
        for rank in range(RANKS):
            rows.append((rank, now, now + took * longer, step))
        now += took * longer
        lost += took * (longer - 1)
    member, begin, end, number = np.array(sorted(rows)).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    records = Records(
        comms=(RecordedComm(1, "world", RANKS, RANKS, 0, tuple(range(RANKS))),),
        member=member, comm=same, func=same + FUNCS.index("AllReduce"), size_class=same + 26,
        number=number, peer=same + PEER_NONE, bytes=same + (1 << 26), begin=begin, end=end,
        queued=same, joined=number, piece=end >> PIECE_BITS, run=same,
        members=RANKS, lost=0,
    )  # fmt: skip
    return records, lost / now


def causes(records: Records) -> list[Cause]:
    order = find_order(records)
    gaps = find_gaps(records, order)
    return transfer_causes(
        records, order, gaps_if_faster(records, order, gaps), Replay(records, order, gaps),
        find_changes(records, order, gaps), SPOTS,
    )  # fmt: skip


def test_six_seconds_of_congestion_a_minute_are_one_cause_with_all_that_they_cost() -> None:
    records, lost = job(lambda _, now_s: 2.0 if now_s % 60 < 6 else 1.0)
    (found,) = causes(records)
    assert found.cost_share == pytest.approx(lost, rel=0.15)
    assert found.times == pytest.approx(STEPS * (GAP_NS + TAKES_NS) / S / 60, abs=2)
    assert found.late_ns == pytest.approx(6 * S, rel=0.1)
    assert found.where is None


def test_as_many_slow_operations_that_do_not_come_together_are_no_slow_times() -> None:
    chance = np.random.default_rng(9)
    records, lost = job(lambda *_: 2.0 if chance.random() < 0.1 else 1.0)
    assert lost > 0.02
    assert causes(records) == []


def test_what_a_network_costs_that_gets_slower_all_the_time_is_held_against_its_best() -> None:
    records, lost = job(lambda step, _: 1 + 0.5 * step / STEPS)
    (found,) = causes(records)
    assert found.cost_share == pytest.approx(lost, rel=0.15)


def test_slow_transfers_that_last_are_still_told_by_themselves() -> None:
    records, lost = job(lambda step, _: 2.0 if 0.4 <= step / STEPS < 0.6 else 1.0)
    (found,) = causes(records)
    assert not found.rare
    assert found.cost_share == pytest.approx(lost, rel=0.15)


@pytest.mark.parametrize(("cost", "left"), [(0.03, 0), (0.002, 1)])
def test_gaps_that_grow_while_transfers_are_slow_are_not_told_beside_them(
    cost: float, left: int
) -> None:
    outside = Cause("outside", 0.02, 0.0, 100, 200, False)
    transfers = Cause("transfer", cost, 0.0, 90, 260, False)
    assert len(without_explained([outside], [transfers], [])) == left


@pytest.mark.parametrize(
    ("cost", "uneven", "left"), [(0.014, False, 0), (0.013, False, 1), (0.014, True, 1)]
)
def test_a_time_in_which_a_stage_was_slower_is_not_told_beside_it(
    cost: float, uneven: bool, left: int
) -> None:
    outside = Cause("outside", 0.02, 0.0, 100, 200, False)
    stage = Cause("late", cost, 0.0, 90, 260, False, uneven=uneven)
    assert len(without_explained([outside], [], [stage])) == left
