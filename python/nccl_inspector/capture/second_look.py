# SPDX-License-Identifier: Apache-2.0
"""The second look at all operations: tables for which the answers of the first look are needed.

Like the first look, it looks at one share of a capture, and rows of several shares can be put
together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from nccl_inspector.capture.collectives import NUMBERED
from nccl_inspector.capture.contents import Bursts
from nccl_inspector.capture.first_look import ALONE_TIMES, KIND, KIND_TIMES, WHOLE
from nccl_inspector.capture.line_records import RANKS_MAX
from nccl_inspector.capture.line_schema import SIZE_CLASS
from nccl_inspector.capture.medians import find_middles, values_sql
from nccl_inspector.capture.shares import BLOCK
from nccl_inspector.model.process import PEER_NONE

_LINES_MAX = 8  # for each process, as in a box
_KIND_KEYS = (*KIND, "together")
# Texts are represented by their hash while the operations are read.
_LINE = "hash(hostname, pid, comm, rank, func, size_class)"
RECORD_KIND = """hash(hostname, pid, comm, rank, func, size_class, coalesce(algo, ''),
    coalesce(proto, ''))"""
_BUSIEST = f"""
create or replace table busiest as
select {_LINE} as line, hostname, pid, comm, rank, func, size_class from counted
group by hostname, pid, comm, rank, func, size_class
qualify row_number() over (
    partition by hostname, pid order by sum(busy_ns) desc, comm, rank, func, size_class
    ) <= {_LINES_MAX}
"""
# median() keeps all times, so only so many operations are looked at together.
_OPERATIONS_AT_ONCE = 5_000_000
_PLACES = """
select when_us // 1000000 // $1 as place, count(*)
from ops where when_us is not null group by place order by place
"""
# A window may pass from one block of numbers to the next, and these may be in two shares. Then it
# has two rows, each with a median.
_WINDOWS = f"""
select {_LINE} as line, when_us // 1000000 // $1 * $1 as start_s, {BLOCK} as block,
    count(*) as n, sum(bytes) as bytes, sum(time_ns) as busy_ns, min(time_ns) as least_ns,
    floor(median(time_ns))::bigint as middle_ns, min(sn) as first_sn, max(sn) as last_sn
from (select *, {SIZE_CLASS} as size_class from ops)
where when_us >= $2 and when_us < $3 and {_LINE} in (select line from busiest)
group by line, start_s, block
"""
_RECORD = f"""{RECORD_KIND} as kind, start_ns, by_gpu_clock, time_ns, when_us * 1000 as heard_ns,
    coalesce(called_us * 1000, 0) as called_ns,
    if(peer between 0 and {RANKS_MAX}, peer, {PEER_NONE}) as peer, bytes::bigint as bytes, sn,
    coalesce(algo = 'GROUP', false) as grouped, source is distinct from 'kernel_gpu' as by_cpu"""
_OPS = f"(select *, {SIZE_CLASS} as size_class from ops) where start_ns is not null"
_NUMBERED = f"select {_RECORD}, sn + 1 as number from {_OPS} and {NUMBERED}"
# Operations without a number that the ranks share are numbered in the order of their rank's calls.
_COUNTED = f"""
select {_RECORD}, hash(hostname, pid, comm, rank) as stream, {WHOLE} as whole, row_number() over (
    partition by algo is not null, hash(hostname, pid, comm, rank, func, peer)
    order by sn, start_ns, time_ns, when_us, bytes) as number
from {_OPS} and not ({NUMBERED})
"""
# The members of such a group lie within its time, and their numbers are not above its number.
_ALONE = """
with counted_ as ({counted}), here as (select * from counted_ {within}),
    wholes as (
        select distinct on (stream, sn) stream, sn, start_ns, start_ns + time_ns as end_ns
        from here where whole order by stream, sn, start_ns, time_ns)
select here.* exclude (stream, whole)
from here asof left join wholes on here.stream = wholes.stream and here.sn <= wholes.sn
where here.peer < 0 or wholes.sn is null or here.start_ns < wholes.start_ns
    or here.start_ns + here.time_ns > wholes.end_ns
"""
# What it needs of the first look, and what it makes.
NEEDS = "busiest", "kind_middles", "alone_middles"
TABLES = "windows", "kind_values", "alone_values", "records"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked besides the tables NEEDS."""

    window_s: int
    bursts: Bursts | None  # None: no records


def prepare(sql: duckdb.DuckDBPyConnection) -> None:
    """Make the tables NEEDS from those of the first look."""
    sql.execute(_BUSIEST)
    find_middles(sql, "kind_middles", "kind_counts", _KIND_KEYS)
    find_middles(sql, "alone_middles", "alone_counts", KIND)


def _spans(sql: duckdb.DuckDBPyConnection, window_s: int) -> Iterator[tuple[int, int]]:
    """Yield spans of time of whole windows, us, each with about _OPERATIONS_AT_ONCE."""
    begin, operations = -1, 0
    found = sql.execute(_PLACES, [window_s]).fetchall()
    window_us = window_s * 1_000_000
    for place, count in found:
        if begin >= 0 and operations + count > _OPERATIONS_AT_ONCE:
            yield begin * window_us, place * window_us
            begin, operations = -1, 0
        begin = place if begin < 0 else begin
        operations += count
    if begin >= 0:
        yield begin * window_us, (found[-1][0] + 1) * window_us


def _make_windows(sql: duckdb.DuckDBPyConnection, window_s: int) -> None:
    into = "create or replace table windows as"
    for span in list(_spans(sql, window_s)) or [(0, 0)]:
        sql.execute(f"{into} {_WINDOWS}", [window_s, *span])
        into = "insert into windows"


def _records_sql(bursts: Bursts | None) -> str:
    """Return the query for the operations in the bursts."""
    within = "where false"
    if bursts:
        length, period = bursts.length_bits, bursts.period_bits
        within = f"where heard_ns & {(1 << period) - 1} < {1 << length}" if length < period else ""
    return (
        f"select * from ({_NUMBERED}) {within} "
        f"union all by name ({_ALONE.format(counted=_COUNTED, within=within)})"
    )


def look(sql: duckdb.DuckDBPyConnection, question: Question) -> None:
    """Make the tables from `ops`, `joined` and the tables NEEDS."""
    _make_windows(sql, question.window_s)
    for name, query in (
        ("kind_values", values_sql(KIND_TIMES, _KIND_KEYS, "t", "kind_middles")),
        ("alone_values", values_sql(ALONE_TIMES, KIND, "t", "alone_middles")),
        ("records", _records_sql(question.bursts)),
    ):
        sql.execute(f"create or replace table {name} as {query}")
