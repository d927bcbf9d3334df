# SPDX-License-Identifier: Apache-2.0
"""Exact medians of very many times, in limited memory.

SQL's own median() keeps all values. Here the times are first counted by histogram bucket, which
tells in which bucket the median is. Then only that bucket's times are sorted. Counting and sorting
may use the disk.
"""

from collections.abc import Sequence
from typing import Any

import duckdb

from nccl_inspector.capture.operation_counts import bucket_sql

Group = tuple[Any, ...]

# `first` and `last` are the places of the middle values, from 0; these are one if their number is
# odd. `before`: how many values are below the buckets that have them.
_MIDDLE = """
create or replace temp table middle as
select {by}, bucket, first, last, min(upto - n) over (partition by {by}) as before
from (
    select *, (total - 1) // 2 as first, total // 2 as last
    from (
        select *, sum(n) over (partition by {by} order by bucket) as upto,
            sum(n) over (partition by {by}) as total
        from (select {by}, bucket, count(*) as n from ({counted}) group by all)))
where (first >= upto - n and first < upto) or (last >= upto - n and last < upto)
"""
_MEDIANS = """
select {by}, sum(value::hugeint * ((first >= low and first < upto)::integer
    + (last >= low and last < upto)::integer)) / 2.0
from (
    select *, upto - n as low
    from (
        select *, before + sum(n) over (partition by {by} order by value) as upto
        from (
            select {by}, value, any_value(first) as first, any_value(last) as last,
                any_value(before) as before, count(*) as n
            from ({counted}) join middle using ({by}, bucket) group by {by}, value)))
group by {by}
"""


def medians(
    sql: duckdb.DuckDBPyConnection, rows: str, keys: Sequence[str], value: str
) -> dict[Group, float]:
    """Return the median of a column by the columns `keys`; `rows` is a query that has them all.

    The values are whole numbers, and no key is NULL.
    """
    by = ", ".join(keys)
    counted = f"select {by}, {bucket_sql(value)} as bucket, {value} as value from ({rows})"
    sql.execute(_MIDDLE.format(by=by, counted=counted))
    found = sql.execute(_MEDIANS.format(by=by, counted=counted)).fetchall()
    return {tuple(group): float(median) for *group, median in found}
