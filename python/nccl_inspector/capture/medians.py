# SPDX-License-Identifier: Apache-2.0
"""Exact medians of very many times, in limited memory.

SQL's own median() keeps all values. Here the times are first counted by histogram bucket, which
tells in which bucket the median is. Then only that bucket's times are counted one by one. A bucket
is 3 % wide, so it has few different times.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import duckdb

from nccl_inspector.capture.operation_counts import bucket_sql

Group = tuple[Any, ...]


def _buckets_of(counts: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Return the buckets of the middle value or values, and how many values are before them.

    `counts`: bucket and number of values, by bucket.
    """
    sums = list(accumulate(count for _, count in counts))
    total = sums[-1]
    first, last = (total - 1) // 2, total // 2
    low = next(at for at, reached in enumerate(sums) if reached > first)
    high = next(at for at, reached in enumerate(sums) if reached > last)
    return [counts[at][0] for at in range(low, high + 1)], sums[low] - counts[low][1]


def _median(times: Sequence[tuple[int, int]], before: int, total: int) -> float:
    """Return the median; `times`: value and number, from those in the middle's buckets."""
    found = []
    for wanted in ((total - 1) // 2, total // 2):
        left = wanted - before
        for value, count in times:
            if left < count:
                found.append(value)
                break
            left -= count
    return sum(found) / 2


def medians(
    sql: duckdb.DuckDBPyConnection, rows: str, keys: Sequence[str], value: str
) -> dict[Group, float]:
    """Return the median of a column by the columns `keys`; `rows` is a query that has them all.

    The values are whole numbers.
    """
    by = ", ".join(keys)
    counted = f"select {by}, {bucket_sql(value)} as bucket, {value} as value from ({rows})"
    counts: dict[Group, list[tuple[int, int]]] = defaultdict(list)
    for *group, bucket, count in sql.execute(
        f"select {by}, bucket, count(*) from ({counted}) group by all order by all"
    ).fetchall():
        counts[tuple(group)].append((bucket, count))
    middle = {group: _buckets_of(found) for group, found in counts.items()}
    wanted = [(*group, bucket) for group, (buckets, _) in middle.items() for bucket in buckets]
    if not wanted:
        return {}
    columns = ", ".join(f"unnest(${at}) as {name}" for at, name in enumerate((*keys, "bucket"), 1))
    sql.execute(
        f"create or replace temp table middle as select {columns}",
        [list(column) for column in zip(*wanted, strict=True)],
    )
    times: dict[Group, list[tuple[int, int]]] = defaultdict(list)
    for *group, found_value, count in sql.execute(
        f"select {by}, value, count(*) from ({counted}) join middle using ({by}, bucket) "
        "group by all order by all"
    ).fetchall():
        times[tuple(group)].append((found_value, count))
    return {
        group: _median(times[group], before, sum(count for _, count in counts[group]))
        for group, (_, before) in middle.items()
    }
