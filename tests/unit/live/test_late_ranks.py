# SPDX-License-Identifier: Apache-2.0
"""Whom a live view says to be late, by the medians of what was counted since the last look."""

from pathlib import Path

import pytest

from nccl_inspector.analysis.join import join_communicators
from nccl_inspector.analysis.straggler.lateness import comparable, find_late
from nccl_inspector.live.late_ranks import Late, late_processes
from nccl_inspector.model.process import FUNCS, Process
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf
from tests.support.summaries import joined, process_of


def late(folder: Path, medians_ms: dict[int, float], func: str = "AllReduce") -> list[Late]:
    """Return who is late of ranks with these medians."""
    return list(late_processes([joined(folder, medians_ms, FUNCS.index(func))]).values())


def test_the_last_rank_is_the_one_with_the_least_median(tmp_path: Path) -> None:
    (found,) = late(tmp_path, {0: 15, 1: 15.1, 2: 5, 3: 15.2})
    assert found.name == "rank 2"
    assert found.late_ns == pytest.approx(10.1 * MS, rel=0.03)
    assert found.waited_ns == pytest.approx(50 * 30.3 * MS, rel=0.03)


def test_of_two_ranks_a_clear_distance_decides(tmp_path: Path) -> None:
    assert [one.name for one in late(tmp_path, {0: 9, 1: 5})] == ["rank 1"]


@pytest.mark.parametrize(
    "medians",
    [
        {0: 5, 1: 5.05, 2: 5.1, 3: 5.02},
        {0: 5, 1: 5.14},
        {0: 0.1, 1: 0.25},
        {0: 5, 1: 9, 2: 13, 3: 17},
        {0: 5},
    ],
    ids=["even", "below 3 %", "below 200 us", "no outlier", "alone"],
)
def test_without_a_clear_distance_nobody_is_named(
    tmp_path: Path, medians: dict[int, float]
) -> None:
    assert late(tmp_path, medians) == []


@pytest.mark.parametrize("func", ["Broadcast", "Reduce", "Send", "Recv"])
def test_where_ranks_do_not_wait_for_all_nobody_is_named(tmp_path: Path, func: str) -> None:
    assert late(tmp_path, {0: 15, 1: 15, 2: 5, 3: 15}, func) == []


def test_a_distance_that_chance_makes_names_nobody(tmp_path: Path) -> None:
    def rank(number: int, times_ms: list[float]) -> Process:
        key = KeyOf(0, [int(ms * MS) for ms in times_ms])
        return process_of(tmp_path, BoxOf([CommOf(7, number, 2)], [key], procid=number))

    few_and_wide = [4.2, 4.6, 4.8, 5.0, 5.3, 5.6, 6.1]
    wider_still = [4.3, 4.7, 5.1, 5.4, 5.6, 6.0, 6.5]
    processes = [rank(0, few_and_wide), rank(1, wider_still)]
    assert late_processes(join_communicators(("n1", one) for one in processes)) == {}


def test_ranks_with_other_numbers_of_operations_are_left_out() -> None:
    assert comparable({0: 100, 1: 101, 2: 50, 3: 100}, 4) == {0, 1, 3}
    assert comparable({0: 1000, 1: 6}, 2) == frozenset()
    assert comparable({0: 100}, 8) == frozenset()
    assert comparable({}, 2) == frozenset()


def test_z_is_of_the_spread_and_never_infinite() -> None:
    errors = dict.fromkeys(range(4), 0.0)
    found = find_late({0: 5.0 * MS, 1: 9.0 * MS, 2: 9.0 * MS, 3: 9.0 * MS}, errors)
    assert found[0].clear
    assert found[0].z == pytest.approx(4 / 0.03, rel=0.01)
    assert find_late({0: 5.0 * MS, 1: 9.0 * MS}, errors)[0].z is None
    assert find_late({0: 5.0 * MS}, errors) == ()
