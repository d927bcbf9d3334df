# SPDX-License-Identifier: Apache-2.0
import pytest

from nccl_inspector.agent.series_budget import (
    FORGET_S,
    GPU_SERIES_MAX,
    LOOK_S,
    SeriesBudget,
    series_limit,
)
from nccl_inspector.errors import RefusedError
from tests.support.clocks import StillClock


def admitted(budget: SeriesBudget, *texts: str) -> list[bool]:
    return [budget.admit(text) for text in texts]


def test_a_job_has_so_many_different_series_and_no_more() -> None:
    budget = SeriesBudget(2, StillClock())
    assert admitted(budget, "a", "b", "c") == [True, True, False]
    assert admitted(budget, "b", "a", "d") == [True, True, False]


def test_a_series_that_disappears_and_comes_back_is_not_new() -> None:
    watch = StillClock(100.0)
    budget = SeriesBudget(2, watch)
    admitted(budget, "a", "b")
    for _ in range(10):
        watch.now_s += LOOK_S
        budget.look(["b"])
    assert admitted(budget, "a", "c") == [True, False]


def test_what_prometheus_has_forgotten_makes_room() -> None:
    watch = StillClock(100.0)
    budget = SeriesBudget(2, watch)
    admitted(budget, "a", "b")
    while watch.now_s < 100 + FORGET_S:
        assert not budget.admit("c"), watch.now_s
        watch.now_s += LOOK_S
        assert budget.wants_look
        budget.look(["b"])
        assert not budget.wants_look
    watch.now_s += 2 * LOOK_S
    budget.look(["b"])
    assert admitted(budget, "c", "a") == [True, False]


def test_another_agent_goes_on_with_what_was_counted() -> None:
    first = SeriesBudget(3, StillClock())
    admitted(first, "a", "b")
    assert first.is_changed
    second = SeriesBudget(3, StillClock())
    second.restore(first.encode())
    assert admitted(second, "a", "c", "d") == [True, True, False]


@pytest.mark.parametrize("data", [b"x", b"1234567", b"12345678" * 100_000])
def test_a_spoilt_record_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="bad_series_budget"):
        SeriesBudget(3, StillClock()).restore(data)


def test_the_limit_goes_by_the_gpus_that_slurm_gave_the_job() -> None:
    assert series_limit(1) == GPU_SERIES_MAX
    assert series_limit(4) == 4 * GPU_SERIES_MAX
    assert series_limit(0) == 8 * GPU_SERIES_MAX, "not known"
    assert series_limit(5000) == 16 * GPU_SERIES_MAX
