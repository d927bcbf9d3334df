# SPDX-License-Identifier: Apache-2.0
"""What is late together is told as one cause, and uneven work is nobody's."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from nccl_inspector.analysis.replay import order as order_module
from nccl_inspector.analysis.replay.cause import COST_MIN, LATE, Cause
from nccl_inspector.analysis.replay.judge import Judged, judge_records
from nccl_inspector.analysis.replay.late_sets import Sort, is_late_together
from nccl_inspector.analysis.replay.late_stages import slow_pieces
from tests.support.step_jobs import (
    Fault,
    StepJob,
    data_parallel,
    expert_parallel,
    tensor_and_data_parallel,
)

Make = Callable[..., StepJob]


def _judge(job: StepJob, of_node: int = 8) -> Judged:
    nodes = [f"n{rank // of_node}" for rank in range(job.ranks)]
    places = [rank % of_node for rank in range(job.ranks)]
    return judge_records(job.sources(), nodes, places)


def _warned(judged: Judged) -> list[Cause]:
    return [one for one in judged.causes if one.cost_share >= COST_MIN and not one.doubtful]


def _true_cost(make: Make, fault: Fault, **more: object) -> float:
    return 1 - make(**more).end_s / make(fault=fault, **more).end_s


@pytest.mark.parametrize(
    ("ranks", "sort"),
    [
        ((4, 5, 6, 7), Sort.GROUP),
        ((1, 5, 9, 13), Sort.PLACE),
        ((0, 1, 2, 3, 8, 9, 10, 11), Sort.GROUP),
    ],
    ids=["a tensor group", "the same place of all tensor groups", "two tensor groups"],
)
def test_ranks_that_are_late_together_are_one_cause_with_one_cost(
    ranks: tuple[int, ...], sort: Sort
) -> None:
    fault = Fault(ranks, 1.05)
    (found,) = _warned(_judge(tensor_and_data_parallel(fault=fault)))
    assert found.members == ranks
    assert found.among is not None
    assert (found.kind, found.among.sort, found.node) == (LATE, sort, "")
    assert found.cost_share == pytest.approx(_true_cost(tensor_and_data_parallel, fault), rel=0.1)
    assert not found.uneven


def test_what_each_member_alone_would_not_cost_is_told_as_what_they_cost_together() -> None:
    # A quarter of this for each of four members would be below what is told.
    fault = Fault((4, 5, 6, 7), 1.025)
    cost = _true_cost(tensor_and_data_parallel, fault)
    assert COST_MIN < cost < 4 * COST_MIN
    (found,) = _warned(_judge(tensor_and_data_parallel(fault=fault)))
    assert found.cost_share == pytest.approx(cost, rel=0.2)


def test_nodes_that_are_late_together_are_one_cause() -> None:
    fault, make = Fault(tuple(range(4, 12)), 1.05), partial(data_parallel, ranks=24)
    (found,) = _warned(_judge(make(fault=fault), of_node=4))
    assert found.members == fault.ranks
    assert found.among is not None
    assert (found.among.sort, found.among.name) == (Sort.NODES, "n1, n2")
    assert found.cost_share == pytest.approx(_true_cost(make, fault), rel=0.1)


@pytest.mark.parametrize("make", [tensor_and_data_parallel, expert_parallel])
@pytest.mark.parametrize("of_node", [4, pytest.param(8, marks=pytest.mark.long)])
def test_one_slow_rank_is_not_those_that_wait_for_it(make: Make, of_node: int) -> None:
    fault = Fault((5,), 1.05)
    (found,) = _warned(_judge(make(fault=fault), of_node))
    assert (found.members, found.among, found.uneven) == ((5,), None, False)
    assert found.cost_share == pytest.approx(_true_cost(make, fault), rel=0.1)


def test_a_set_is_late_only_if_its_members_are_and_by_as_much() -> None:
    present = np.arange(16)
    wall = np.random.default_rng(5).normal(0, 0.001, 16)
    assert not is_late_together(wall, present, (4, 5, 6, 7))
    alone = wall.copy()
    alone[5] += 0.04
    alone[[4, 6, 7]] += 0.008  # they wait for it, and catch up
    assert not is_late_together(alone, present, (4, 5, 6, 7))
    alike = wall.copy()
    alike[4:8] += (0.04, 0.03, 0.035, 0.05)
    assert is_late_together(alike, present, (4, 5, 6, 7))
    # Of twice as many, half are not late.
    assert not is_late_together(alike, present, tuple(range(8)))


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("make", [tensor_and_data_parallel, expert_parallel])
def test_no_set_is_accused_in_a_healthy_job(make: Make, seed: int) -> None:
    assert _warned(_judge(make(seed=seed))) == []


@pytest.mark.parametrize(
    "ranks",
    [
        (2, 6, 10, 14),
        pytest.param((6,), marks=pytest.mark.long),
        pytest.param((2, 3, 6, 7, 10, 11, 14, 15), marks=pytest.mark.long),
    ],
    ids=["one place of each group", "one rank", "two places of each group"],
)
def test_experts_that_have_more_to_do_are_uneven_work(ranks: tuple[int, ...]) -> None:
    hot = Fault(ranks, 1.15)
    true = 1 - expert_parallel().end_s / expert_parallel(hot=hot).end_s
    found = _warned(_judge(expert_parallel(hot=hot)))
    assert found
    assert all(one.uneven for one in found)
    assert sum(one.cost_share for one in found) == pytest.approx(true, rel=0.15)


def test_uneven_experts_are_told_also_where_all_exchanges_look_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a step of nothing else: where the step's pattern begins, nobody knows."""
    monkeypatch.setattr(order_module, "positions", lambda records, _: np.zeros(len(records), int))
    found = _warned(_judge(expert_parallel(16, 1, hot=Fault((6,), 1.15))))
    assert [(one.members, one.uneven) for one in found] == [((6,), True)]
    slow = _warned(_judge(expert_parallel(16, 1, fault=Fault((6,), 1.05))))
    assert [(one.members, one.uneven) for one in slow] == [((6,), False)]


@pytest.mark.parametrize(
    "job",
    [
        partial(expert_parallel, fault=Fault((2, 6, 10, 14), 1.05)),
        partial(expert_parallel, fault=Fault((6,), 1.05)),
        partial(expert_parallel, late=(6, 0.02)),
    ],
    ids=["a rail of slow GPUs", "a slow GPU", "a late host"],
)
def test_a_rank_that_is_slow_elsewhere_too_is_no_uneven_work(job: Make) -> None:
    found = _warned(_judge(job()))
    assert found
    assert not any(one.uneven for one in found)
    assert {member for one in found for member in one.members} >= {6}


def test_a_stage_is_slow_at_times_at_which_the_others_are_not() -> None:
    rng = np.random.default_rng(6)
    times = 1 + 0.002 * rng.standard_normal(40)
    times[25:] += 0.06
    assert slow_pieces(times, times).tolist() == list(range(25, 40))
    # All stages took longer then: beside them it is as it was.
    assert slow_pieces(times, np.ones(40)).tolist() == []
    # It was the other of two stages that took longer.
    assert slow_pieces(np.ones(40), 1 / times).tolist() == []


def test_a_few_pieces_do_not_tell_that_a_stage_is_slow() -> None:
    times = np.array([1.0, 1.0, 1.0, 1.2, 1.2])
    assert slow_pieces(times, times).tolist() == []
