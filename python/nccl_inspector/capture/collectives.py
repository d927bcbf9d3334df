# SPDX-License-Identifier: Apache-2.0
"""One row for each collective of all its ranks: the view `joined`.

A collective has the same communicator, function and number on all ranks. A capture can have
millions of collectives, so what is kept of each while lines are read must be small. With texts
instead of hashes, ten million lines take four times as long, because the groups no longer fit into
memory.
"""

import duckdb

from nccl_inspector.capture.line_records import NUMBER_MAX, RANKS_MAX
from nccl_inspector.capture.line_schema import SIZE_CLASS

NUMBERED = "kind = 'coll' and algo is distinct from 'GROUP'"
ALGO_PROTO = """case when algo = 'GROUP' then 'GROUP' when algo is null then ''
    else algo || '_' || coalesce(proto, 'Unknown') end"""

# The tables of which `joined` is made, and the one that has the operations without duplicates.
STATE, ONCE = ("numbers", "calls", "algos"), "once"
_OPERATIONS_AT_ONCE = 5_000_000
_PARTS_MAX = 64  # each may read all operations; with more parts DuckDB's own spilling is faster
# Texts are represented by their 64-bit hash; a capture has only some thousands of texts.
_CALL, _ALGO = "hash(comm, func)", "if(algo is null, null, hash(algo, proto))"
# `ranks`: one bit for each rank, modulo 64. `mixed`: the ranks' times are of different clocks and
# cannot be compared.
# Of ranks that took equally long the lowest counts as the last one, whatever is read first.
_LAST = f"time_ns::hugeint * {RANKS_MAX} + rank"
_NUMBERS = f"""
select {_CALL} as call, sn, max({_ALGO}) as algo, max(nranks::integer) as nranks,
    count(*)::integer as seen, bit_or(1::ubigint << (rank & 63)::ubigint) as ranks,
    min(time_ns) as t, sum(time_ns) as total, (min({_LAST}) % {RANKS_MAX})::integer as last,
    max(bytes) as bytes, min(bytes) <> max(bytes) as mismatched, max(when_us) as when_us,
    coalesce(min(source_hash) <> max(source_hash), false) as mixed
from (select *, if(source is null, null, hash(source)) as source_hash from ops)
where {NUMBERED} and sn between $1 and $2 group by call, sn
"""
# The files of a rank have its operations in their order, so of a range of numbers DuckDB reads
# only the row groups that contain numbers of that range.
_MARKS = f"select approx_quantile(sn, $1::float[]) from ops where {NUMBERED}"
_CALLS = f"""
create or replace table calls as select {_CALL} as call, any_value(comm) as comm,
    any_value(func) as func from ops where {NUMBERED} group by call
"""
_ALGOS = f"""
create or replace table algos as select {_ALGO} as algo, any_value({ALGO_PROTO}) as algo_proto
from ops where {NUMBERED} and algo is not null group by {_ALGO}
"""
_JOINED = f"""
create or replace view joined as
select comm, func, coalesce(algo_proto, '') as algo_proto, {SIZE_CLASS} as size_class,
    total - seen::hugeint * t as waited, numbers.* exclude (call, algo, ranks)
from numbers join calls using (call) left join algos using (algo)
"""
# The cheap query comes first: in almost no capture does a collective have more operations than
# ranks.
_MAY_REPEAT = "select coalesce(bool_or(seen <> bit_count(ranks)), false) from numbers"
_HAS_REPEATED = f"""
select coalesce(bool_or(n > d), false) from (
    select count(*) as n, count(distinct sn) as d from ops
    where {NUMBERED} group by comm, rank, func)
"""
# A rank has only one collective of each number. Operations without such a number are duplicates if
# all of their values are equal.
_ONCE = f"""
create or replace table {ONCE} as select * exclude (nth) from (
    select *, row_number() over (
        partition by comm, rank, func, sn,
            case when {NUMBERED} then null else (kind, peer, bytes, time_ns, when_us) end
        order by file) as nth
    from ops)
where nth = 1
"""


def _ask(sql: duckdb.DuckDBPyConnection, question: str) -> int:
    found: int = sql.execute(question).fetchall()[0][0]
    return found


def _ranges(sql: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    """Return ranges of numbers that together cover each one.

    All have about the same number of operations.
    """
    count = _ask(sql, f"select count(*) from ops where {NUMBERED}")
    parts = min(count // _OPERATIONS_AT_ONCE + 1, _PARTS_MAX)
    if parts == 1:
        return [(0, NUMBER_MAX)]
    shares = [part / parts for part in range(1, parts)]
    marks = sorted(set(sql.execute(_MARKS, [shares]).fetchall()[0][0]))
    return list(zip([0, *(mark + 1 for mark in marks)], [*marks, NUMBER_MAX], strict=True))


def _join(sql: duckdb.DuckDBPyConnection) -> None:
    for part, range_ in enumerate(_ranges(sql)):
        into = "insert into numbers" if part else "create or replace table numbers as"
        sql.execute(f"{into} {_NUMBERS}", range_)
    sql.execute(_CALLS)
    sql.execute(_ALGOS)
    view_joined(sql)


def view_joined(sql: duckdb.DuckDBPyConnection) -> None:
    """Make `joined` from the tables STATE."""
    sql.execute(_JOINED)


def join(sql: duckdb.DuckDBPyConnection) -> bool:
    """Make `joined` from `ops`; return whether a rank has a collective twice.

    A capture may have the same file twice. That shows in its collectives.
    """
    _join(sql)
    return bool(_ask(sql, _MAY_REPEAT)) and bool(_ask(sql, _HAS_REPEATED))


def join_once(sql: duckdb.DuckDBPyConnection) -> int:
    """Remove duplicates from `ops`, make `joined` anew, and return how many were removed."""
    before = _ask(sql, "select count(*) from ops")
    sql.execute(_ONCE)
    sql.execute(f"create or replace view ops as from {ONCE}")
    _join(sql)
    return before - _ask(sql, "select count(*) from ops")
