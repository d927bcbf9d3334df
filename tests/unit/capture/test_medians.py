# SPDX-License-Identifier: Apache-2.0
"""Medians in limited memory are those of all values."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pytest

from nccl_inspector.capture.medians import counts_sql, find_middles, medians, values_sql
from nccl_inspector.capture.reader import connect

TIMES = {
    "one": [7],
    "two": [1000, 5_000_000],
    "equal": [4096] * 9,
    "even": [10, 20, 30, 40],
    "in one bucket": [1_000_000, 1_000_001, 1_000_002, 1_000_003],
    "at a bucket's end": [1023, 1024, 1055, 1056],
    "long": [1 << 40, 1 << 41, (1 << 41) + 1, 1 << 44],
}


def medians_of(
    sql: duckdb.DuckDBPyConnection, rows: str, keys: Sequence[str], value: str
) -> dict[tuple[Any, ...], float]:
    """The medians by two looks at the rows."""
    sql.execute(f"create table counts as {counts_sql(rows, keys, value)}")
    find_middles(sql, "middles", "counts", keys)
    sql.execute(f"create table found as {values_sql(rows, keys, value, 'middles')}")
    return medians(sql, "middles", "found", keys)


def found(path: Path, groups: dict[str, list[int]]) -> dict[tuple[str, bool], float]:
    sql = connect(path)
    sql.execute("create table times (name varchar, odd boolean, ns bigint)")
    rows = [(name, len(own) % 2 == 1, ns) for name, own in groups.items() for ns in own]
    sql.executemany("insert into times values (?, ?, ?)", rows)
    by_group = medians_of(sql, "select * from times", ("name", "odd"), "ns")
    return {(name, odd): value for (name, odd), value in by_group.items()}


@pytest.mark.parametrize("name", TIMES)
def test_the_median_is_exact(tmp_path: Path, name: str) -> None:
    own = TIMES[name]
    assert found(tmp_path, {name: own}) == {(name, len(own) % 2 == 1): median(own)}


def test_each_group_has_its_own(tmp_path: Path) -> None:
    chance = random.Random(5)  # noqa: S311
    groups = {
        f"g{at}": [
            int(chance.lognormvariate(at, 1)) + 1 for _ in range(chance.choice((1, 2, 99, 100)))
        ]
        for at in range(30)
    }
    assert found(tmp_path, groups) == {
        (name, len(own) % 2 == 1): median(own) for name, own in groups.items()
    }


def test_of_very_many_times_each_group_has_one_number(tmp_path: Path) -> None:
    sql = connect(tmp_path)
    sql.execute(
        "create table times as select i % 2000 as one, 5_000_000 + (i * 7919) % 900_001 as ns "
        "from range(400_000) t(i)"
    )
    found = medians_of(sql, "select * from times", ("one",), "ns")
    asked = "select one, median(ns) from times group by one"
    assert found == {(one,): value for one, value in sql.execute(asked).fetchall()}


def test_of_no_rows_there_are_no_medians(tmp_path: Path) -> None:
    assert medians_of(connect(tmp_path), "select 1 as one, 2 as ns limit 0", ("one",), "ns") == {}
