# SPDX-License-Identifier: Apache-2.0
"""Exact medians of very many times, in limited memory, in two looks at the times.

SQL's own median() keeps all values. Here the times are first counted by histogram bucket, which
tells in which bucket the median is. Then only that bucket's times are sorted. The counts and the
times of several shares (shares.py) may be put together.
"""

from collections.abc import Sequence
from typing import Any

import duckdb

from nccl_inspector.capture.operation_counts import bucket_sql

Group = tuple[Any, ...]

# `first` and `last` are the places of the middle values, from 0; these are one if their number is
# odd. `before`: how many values are below the buckets that have them.
_MIDDLES = """
create or replace table {name} as
select {by}, bucket, first, last, min(upto - n) over (partition by {by}) as before
from (
    select *, (total - 1) // 2 as first, total // 2 as last
    from (
        select *, sum(n) over (partition by {by} order by bucket) as upto,
            sum(n) over (partition by {by}) as total
        from (select {by}, bucket, sum(n)::bigint as n from {counts} group by all)))
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
                any_value(before) as before, sum(n)::bigint as n
            from {values} join {middles} using ({by}, bucket) group by {by}, value)))
group by {by}
"""


def counts_sql(rows: str, keys: Sequence[str], value: str) -> str:
    """Return the query for how many values are in each bucket, by the columns `keys`.

    `rows` is a query. The values are whole numbers, and no key is NULL.
    """
    by = ", ".join(keys)
    return f"select {by}, {bucket_sql(value)} as bucket, count(*) as n from ({rows}) group by all"


def find_middles(
    sql: duckdb.DuckDBPyConnection, name: str, counts: str, keys: Sequence[str]
) -> None:
    """Make a table that tells in which bucket the median is, from a table made by counts_sql()."""
    sql.execute(_MIDDLES.format(name=name, counts=counts, by=", ".join(keys)))


def values_sql(rows: str, keys: Sequence[str], value: str, middles: str) -> str:
    """Return the query for the values that are in the buckets of a table made by find_middles()."""
    by = ", ".join(keys)
    bucketed = f"select {by}, {bucket_sql(value)} as bucket, {value} as value from ({rows})"
    return f"""select {by}, bucket, value, count(*) as n
        from ({bucketed}) semi join {middles} using ({by}, bucket) group by all"""


def medians(
    sql: duckdb.DuckDBPyConnection, middles: str, values: str, keys: Sequence[str]
) -> dict[Group, float]:
    """Return the medians from tables made by find_middles() and values_sql()."""
    query = _MEDIANS.format(by=", ".join(keys), middles=middles, values=values)
    return {tuple(group): float(median) for *group, median in sql.execute(query).fetchall()}
