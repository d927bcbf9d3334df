# SPDX-License-Identifier: Apache-2.0
"""Who waits for a far later rank in something without a record is not accused beside it."""

from collections.abc import Callable

import pytest

from nccl_inspector.analysis.replay.cause import LATE, Cause
from nccl_inspector.analysis.replay.late_causes import without_held_up

NODE = tuple(range(8, 16))


def late(member: int, cost: float) -> Cause:
    """Return the cause of a rank of the node."""
    return Cause(
        LATE, cost, 0.001, 0, 10**9, True, members=(member,), late_ns=1e8, saved_s=100 * cost,
        victims=tuple(one for one in NODE if one != member),
    )  # fmt: skip


def costs(together: float, of_the_others: float) -> Callable[[tuple[int, ...]], float]:
    """Return what is saved: by all of the node, or by those of it without rank 8."""
    return lambda members: together if 8 in members else of_the_others


def test_ranks_that_a_far_later_one_holds_up_are_its_victims_and_their_cost_is_its_own() -> None:
    causes = [late(8, 0.15), *(late(one, 0.023) for one in NODE[1:])]
    (only,) = without_held_up(causes, costs(0.233, -0.004))
    assert only.members == (8,)
    assert only.cost_share == pytest.approx(0.233)
    assert only.saved_s == pytest.approx(23.3)
    assert only.victims == NODE[1:]


def test_ranks_that_cost_something_by_themselves_stay_accused_and_are_nobodys_victims() -> None:
    causes = [late(8, 0.15), *(late(one, 0.023) for one in NODE[1:])]
    found = without_held_up(causes, costs(0.30, 0.02))
    assert {one.members for one in found} == {(one,) for one in NODE}
    assert not any(one.victims for one in found)


def test_a_single_one_beside_a_later_rank_may_have_a_fault_of_its_own() -> None:
    found = without_held_up([late(8, 0.15), late(9, 0.023)], costs(0.17, 0.0))
    assert [one.members for one in found] == [(8,), (9,)]
    assert found[0].victims == NODE[2:]


def test_ranks_that_cost_nearly_as_much_are_not_held_up() -> None:
    causes = [late(8, 0.05), *(late(one, 0.03) for one in NODE[1:])]
    assert len(without_held_up(causes, costs(0.2, 0.0))) == 8


@pytest.mark.parametrize(("accused", "cost"), [(7, 0.04), (5, 0.023)])
def test_most_of_them_each_of_much_less_are_enough(accused: int, cost: float) -> None:
    causes = [late(8, 0.15), *(late(one, cost) for one in NODE[1 : 1 + accused])]
    (only,) = without_held_up(causes, costs(0.2, 0.0))
    assert only.members == (8,)
