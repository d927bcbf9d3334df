# SPDX-License-Identifier: Apache-2.0
"""Who is named in a matrix of nodes: a node as a node, a pair as a pair, and nobody for noise."""

from collections.abc import Callable
from itertools import permutations
from random import Random

import pytest

from nccl_inspector.probe.odd import better_of, find_odd
from nccl_inspector.probe.plan import rounds
from nccl_inspector.probe.result import Cell

FULL = 10.0


def matrix(
    count: int, rate: Callable[[int, int], float], spread: float = 0.01, seed: int = 7
) -> list[Cell]:
    """All cells of `count` nodes; `rate` is from a sender to a receiver, from n1 on."""
    chance = Random(seed)  # noqa: S311 - nothing secret
    return [
        Cell(f"n{a}", f"n{b}", rate(a, b) * chance.gauss(1, spread))
        for a, b in permutations(range(1, count + 1), 2)
    ]


def named(cells: list[Cell]) -> list[tuple[str, ...]]:
    return [odd.nodes for odd in find_odd(cells)]


@pytest.mark.parametrize("count", [4, 5, 8, 32])
def test_a_slow_node_is_one_node_and_not_as_many_pairs(count: int) -> None:
    cells = matrix(count, lambda a, b: FULL * (0.5 if 2 in (a, b) else 1))
    (odd,) = find_odd(cells)
    assert odd.nodes == ("n2",)
    assert odd.share == pytest.approx(0.5, rel=0.05)
    assert len(odd.cells) == 2 * (count - 1)


@pytest.mark.parametrize("count", [4, 8])
def test_a_node_that_is_slow_in_one_direction_is_named_with_those_cells(count: int) -> None:
    (odd,) = find_odd(matrix(count, lambda a, _: FULL * (0.6 if a == 3 else 1)))
    assert odd.nodes == ("n3",)
    assert {cell.sender for cell in odd.cells} == {"n3"}


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_slow_pair_is_a_pair(count: int) -> None:
    cells = matrix(count, lambda a, b: FULL * (0.7 if {a, b} == {1, 4} else 1))
    assert named(cells) == [("n1", "n4")]


def test_a_slow_node_and_a_slow_pair_elsewhere_are_both_named() -> None:
    cells = matrix(8, lambda a, b: FULL * (0.5 if 2 in (a, b) else 0.6 if {a, b} == {5, 7} else 1))
    assert named(cells) == [("n2",), ("n5", "n7")]


def test_two_slow_nodes_are_two_nodes() -> None:
    cells = matrix(8, lambda a, b: FULL * (0.5 if {2, 6} & {a, b} else 1))
    assert sorted(named(cells)) == [("n2",), ("n6",)]


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("count", [4, 8, 24])
def test_nobody_is_named_for_noise(count: int, spread: float) -> None:
    assert named(matrix(count, lambda _a, _b: FULL, spread)) == []


def test_a_difference_that_costs_little_is_no_name_however_sure_it_is() -> None:
    assert named(matrix(8, lambda a, b: FULL * (0.93 if 2 in (a, b) else 1), 0.001)) == []


def test_of_a_hundred_noisy_matrices_hardly_one_names_anybody() -> None:
    noisy = (matrix(8, lambda _a, _b: FULL, 0.2, seed) for seed in range(100))
    assert sum(bool(find_odd(cells)) for cells in noisy) <= 1


@pytest.mark.parametrize("slow", [1.0, 0.3])
@pytest.mark.parametrize("count", [2, 3])
def test_of_two_or_three_nodes_nobody_is_named(count: int, slow: float) -> None:
    assert named(matrix(count, lambda a, _: FULL * (slow if a == 1 else 1))) == []


@pytest.mark.parametrize("count", [4, 8])
def test_missing_cells_are_not_slow_cells(count: int) -> None:
    cells = matrix(count, lambda _a, _b: FULL)
    chance = Random(3)  # noqa: S311 - nothing secret
    for _ in range(20):
        assert named(chance.sample(cells, chance.randrange(len(cells)))) == []


def test_what_was_measured_again_counts_if_it_is_better() -> None:
    cells = [Cell("n1", "n2", 5.0), Cell("n2", "n1", 9.0)]
    again = [Cell("n1", "n2", 8.0), Cell("n2", "n1", 4.0)]
    assert better_of(cells, again) == [Cell("n1", "n2", 8.0), Cell("n2", "n1", 9.0)]


@pytest.mark.parametrize("count", range(2, 20))
def test_a_tournament_has_each_pair_once_and_rounds_of_disjoint_pairs(count: int) -> None:
    every = rounds(count)
    assert len(every) == (count if count % 2 else count - 1)
    pairs = [pair for one in every for pair in one]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    for one in every:
        members = [member for pair in one for member in pair]
        assert len(members) == len(set(members))
