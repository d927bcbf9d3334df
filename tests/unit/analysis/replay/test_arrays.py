# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on groups of rows, held against loops over them."""

from collections import defaultdict
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    distinct_pairs,
    first_rows,
    last_before,
    medians,
    medians_of_others,
    number_rows,
    order_groups,
    order_rows,
    order_within,
    quantiles,
)

COUNT = 300
HOUR_NS = 3_600_000_000_000
Make = Callable[[np.random.Generator, int], Floats]


def _whole(chance: np.random.Generator, count: int) -> Floats:
    return chance.integers(-50, 50, count).astype(float)


def _real(chance: np.random.Generator, count: int) -> Floats:
    return chance.normal(0, 1, count).round(1)


def _nanoseconds(chance: np.random.Generator, count: int) -> Floats:
    return chance.integers(-HOUR_NS, HOUR_NS, count).astype(float)


def _huge(chance: np.random.Generator, count: int) -> Floats:
    return chance.normal(0, 1e30, count).round()


VALUES = pytest.mark.parametrize("make", [_whole, _real, _nanoseconds, _huge])
SEEDS = pytest.mark.parametrize("seed", range(3))
# The last is of groups that do not fit into a word with anything else.
SPANS = pytest.mark.parametrize("groups", [1, 7, 200, 1 << 40])


def _groups(chance: np.random.Generator, most: int) -> Ints:
    return chance.integers(0, most, COUNT)


def _by_group(groups: Ints, values: Floats) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for group, value in zip(groups.tolist(), values.tolist(), strict=True):
        found[group].append(value)
    return found


@SEEDS
@SPANS
def test_rows_of_the_same_values_have_one_number_and_numbers_are_in_their_order(
    seed: int, groups: int
) -> None:
    chance = np.random.default_rng(seed)
    columns = [_groups(chance, groups) - 3, chance.integers(-2, 2, COUNT), _groups(chance, 5)]
    rows = list(zip(*(one.tolist() for one in columns), strict=True))
    numbers = {row: number for number, row in enumerate(sorted(set(rows)))}
    assert number_rows(*columns).tolist() == [numbers[row] for row in rows]
    assert number_rows(columns[0][:0], columns[1][:0]).tolist() == []


@SEEDS
@VALUES
@pytest.mark.parametrize("groups", [1, 7, 200])
def test_medians_and_quantiles_are_those_of_each_group(seed: int, make: Make, groups: int) -> None:
    chance = np.random.default_rng(seed)
    group, values = _groups(chance, groups), make(chance, COUNT)
    cells = _by_group(group, values)
    expected = [median(cells[one]) if one in cells else np.nan for one in range(groups + 2)]
    assert medians(group, values, groups + 2) == pytest.approx(expected, nan_ok=True)
    low = [
        sorted(cells[one])[(len(cells[one]) - 1) // 4] if one in cells else np.nan
        for one in range(groups + 2)
    ]
    assert quantiles(group, values, groups + 2, 0.25) == pytest.approx(low, nan_ok=True)


def test_groups_without_values_have_no_median() -> None:
    nothing = np.zeros(0, np.int64)
    assert np.isnan(medians(nothing, np.zeros(0), 3)).all()
    assert np.isnan(quantiles(nothing, np.zeros(0), 3, 0.5)).all()
    assert medians_of_others(nothing, np.zeros(0)).tolist() == []


@SEEDS
@VALUES
@pytest.mark.parametrize("groups", [1, 7, 200])
def test_the_median_of_the_others_is_without_the_row_itself(
    seed: int, make: Make, groups: int
) -> None:
    chance = np.random.default_rng(seed)
    group, values = _groups(chance, groups), make(chance, COUNT)
    cells = _by_group(group, values)
    expected = []
    for own, value in zip(group.tolist(), values.tolist(), strict=True):
        others = list(cells[own])
        others.remove(value)
        expected.append(median(others) if others else np.nan)
    assert medians_of_others(group, values) == pytest.approx(expected, nan_ok=True)


@SEEDS
@VALUES
@SPANS
def test_rows_are_ordered_by_group_and_then_by_value(seed: int, make: Make, groups: int) -> None:
    chance = np.random.default_rng(seed)
    group, values = _groups(chance, groups), make(chance, COUNT)
    order = order_within(group, values).tolist()
    assert sorted(order) == list(range(COUNT))
    pairs = list(zip(group.tolist(), values.tolist(), strict=True))
    assert [pairs[row] for row in order] == sorted(pairs)
    expected = sorted(range(COUNT), key=lambda row: pairs[row][0])
    assert order_groups(group).tolist() == expected


def test_a_value_that_is_not_known_is_the_last_of_its_group() -> None:
    group = np.array([1, 0, 1, 0])
    values = np.array([np.nan, np.nan, 5.0, 7.0])
    assert order_within(group, values).tolist() == [3, 1, 2, 0]


@SEEDS
@SPANS
@pytest.mark.parametrize("span", [20, HOUR_NS, 1 << 61])
def test_rows_are_ordered_by_owner_begin_and_end_and_ties_stay(
    seed: int, groups: int, span: int
) -> None:
    chance = np.random.default_rng(seed)
    owner, begin = _groups(chance, groups), chance.integers(-span, span, COUNT)
    end = begin + chance.integers(0, 3, COUNT)
    rows = list(zip(owner.tolist(), begin.tolist(), end.tolist(), strict=True))
    assert order_rows(owner, begin, end).tolist() == sorted(range(COUNT), key=rows.__getitem__)
    assert order_rows(owner[:0], begin[:0], end[:0]).tolist() == []


@SEEDS
@pytest.mark.parametrize("strictly", [False, True])
@pytest.mark.parametrize("span", [15, HOUR_NS])
@pytest.mark.parametrize("owners", [1, 9, 400])
def test_the_last_event_before_a_time_is_that_of_the_same_owner(
    seed: int, strictly: bool, span: int, owners: int
) -> None:
    chance = np.random.default_rng(seed)
    owner, time = _groups(chance, owners), chance.integers(-span, span, COUNT)
    asked, until = _groups(chance, owners + 2), chance.integers(-span - 2, span + 2, COUNT)
    found = last_before(owner, time, asked, until, strictly=strictly)
    for question, row in enumerate(found.tolist()):
        last = int(until[question]) - strictly
        fits = [
            (int(time[event]), event) for event in range(COUNT)
            if owner[event] == asked[question] and time[event] <= last
        ]  # fmt: skip
        # Of events at one time it is the last row.
        assert row == (max(fits)[1] if fits else -1)


def test_times_of_years_are_compared_within_a_microsecond() -> None:
    years_ns = 200 * 365 * 24 * HOUR_NS
    owner, time = np.array([0, 5, 5]), np.array([years_ns, 0, years_ns // 2])
    until = np.array([years_ns, years_ns // 2 + 2048, years_ns // 2 - 2048])
    assert last_before(owner, time, np.array([0, 5, 5]), until).tolist() == [0, 2, 1]
    nothing = np.zeros(0, np.int64)
    assert last_before(nothing, nothing, owner, time).tolist() == [-1, -1, -1]
    assert last_before(owner, time, nothing, nothing).tolist() == []


@SEEDS
def test_first_rows_and_pairs_are_those_of_a_loop(seed: int) -> None:
    chance = np.random.default_rng(seed)
    one, other = _groups(chance, 50), _groups(chance, 9)
    first: dict[int, int] = {}
    for row, group in enumerate(one.tolist()):
        first.setdefault(group, row)
    assert first_rows(one).tolist() == [first[group] for group in sorted(first)]
    pairs = sorted(set(zip(one.tolist(), other.tolist(), strict=True)))
    left, right = distinct_pairs(one, other)
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == pairs
    assert first_rows(one[:0]).tolist() == []
    assert [side.tolist() for side in distinct_pairs(one[:0], other[:0])] == [[], []]
