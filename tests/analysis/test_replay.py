# SPDX-License-Identifier: Apache-2.0
"""The replay of exact records: who is late by its own doing, and what that costs the job."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nccl_inspector.analysis.replay.cause import COST_MIN, LATE, TRANSFER, Cause
from nccl_inspector.analysis.replay.judge import Judged, judge_records
from nccl_inspector.analysis.replay.order import find_gaps, find_order
from nccl_inspector.analysis.replay.records import gather
from nccl_inspector.analysis.replay.whatif import Replay
from tests.analysis.stepjobs import Fault, StepJob, data_parallel, tensor_and_data_parallel

Make = Callable[..., StepJob]


def _judge(job: StepJob, clocks_s: Sequence[float] = (), of_node: int = 4) -> Judged:
    nodes = [f"n{rank // of_node}" for rank in range(job.ranks)]
    places = [rank % of_node for rank in range(job.ranks)]
    return judge_records(job.sources(clocks_s), nodes, places)


def _warned(judged: Judged) -> list[Cause]:
    return [one for one in judged.causes if one.cost_share >= COST_MIN]


def _true_cost(make: Make, fault: Fault, **more: float) -> float:
    """What the fault costs of the job's time, by the same job without it."""
    return 1 - make(**more).end_s / make(fault=fault, **more).end_s


def test_without_a_question_the_replay_gives_the_recorded_times() -> None:
    job = tensor_and_data_parallel()
    records = gather(job.sources(), job.ranks)
    assert records is not None
    order = find_order(records)
    for piece in Replay(records, order, find_gaps(records, order)).ask([]):
        assert piece.saved == pytest.approx([0.0])
        assert piece.end > piece.start


@pytest.mark.parametrize("make", [data_parallel, tensor_and_data_parallel])
@pytest.mark.parametrize("slower", [1.02, 1.05, 1.15])
def test_a_slower_gpu_is_named_with_what_it_costs_and_nobody_else_is(
    make: Make, slower: float
) -> None:
    fault = Fault((5,), slower)
    found = _judge(make(fault=fault)).causes
    cost = _true_cost(make, fault)
    assert found[0].kind == LATE
    assert found[0].members == (5,)
    assert found[0].cost_share == pytest.approx(cost, rel=0.1, abs=0.001)
    assert all(one.cost_share < COST_MIN / 2 for one in found[1:])


@pytest.mark.parametrize("make", [data_parallel, tensor_and_data_parallel])
def test_clocks_that_are_seconds_apart_change_nothing(make: Make) -> None:
    job = make(fault=Fault((5,), 1.05))
    clocks_s = np.random.default_rng(1).normal(0, 2, job.ranks).tolist()
    apart, right = _judge(job, clocks_s).causes, _judge(job).causes
    assert [one.members for one in apart[:1]] == [(5,)]
    assert apart[0].cost_share == pytest.approx(right[0].cost_share, rel=0.1)


def test_two_late_ranks_share_the_cost_that_each_alone_would_hide() -> None:
    fault = Fault((3, 12), 1.05)
    found = _warned(_judge(data_parallel(fault=fault)))
    assert {one.members for one in found} == {(3,), (12,)}
    cost = _true_cost(data_parallel, fault)
    assert sum(one.cost_share for one in found) == pytest.approx(cost, rel=0.15)


def test_a_node_whose_ranks_are_all_late_is_one_cause() -> None:
    fault = Fault((4, 5, 6, 7), 1.05)
    (found,) = _warned(_judge(data_parallel(fault=fault)))
    assert (found.node, found.members) == ("n1", (4, 5, 6, 7))
    assert found.cost_share == pytest.approx(_true_cost(data_parallel, fault), rel=0.15)


def test_a_rank_that_is_late_in_every_tenth_step_is_named() -> None:
    fault = Fault((9,), 1.4, every=10)
    (found,) = _warned(_judge(data_parallel(fault=fault, steps=200)))
    assert found.members == (9,)
    assert found.cost_share == pytest.approx(_true_cost(data_parallel, fault, steps=200), rel=0.3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("uneven", [0.0, 0.003, 0.15])
@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_nobody_is_accused_where_the_work_is_uneven_by_chance(
    ranks: int, uneven: float, seed: int
) -> None:
    judged = _judge(data_parallel(ranks=ranks, uneven=uneven, seed=seed))
    assert _warned(judged) == []
    assert judged.seen


def test_transfers_that_are_slow_for_a_while_are_told_with_their_time() -> None:
    fast = data_parallel(steps=60)
    slow = data_parallel(steps=60, transfer_s=0.06, seed=1)
    again = data_parallel(steps=60, seed=2)
    parts, shift, number = [], 0.0, 0
    for part in (fast, slow, again):
        (operations,) = part.comms.values()
        parts += [(number + n, begin + shift, end + shift) for n, begin, end in operations]
        shift, number = shift + part.end_s, len(parts)
    job = StepJob({tuple(range(16)): parts}, shift, 16)
    (found,) = _warned(_judge(job))
    assert found.kind == TRANSFER
    assert found.ratio == pytest.approx(3.0, rel=0.1)
    start_s, end_s = (at / 1e9 - 1_795_000_000 for at in (found.start, found.end))
    assert start_s == pytest.approx(fast.end_s, abs=18)
    assert end_s == pytest.approx(fast.end_s + slow.end_s, abs=18)
    usual = slow.end_s - data_parallel(steps=60, seed=1).end_s
    assert found.cost_share * shift == pytest.approx(usual, rel=0.3)


def test_records_that_no_others_join_say_that_a_fault_might_not_have_shown() -> None:
    job = data_parallel()
    judged = judge_records(job.sources()[:4], ["n0"] * job.ranks, list(range(job.ranks)))
    assert not judged.seen
    assert "4 of 16 processes" in judged.why_not
    assert judge_records([], ["n0"], [0]).why_not
