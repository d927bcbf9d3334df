# SPDX-License-Identifier: Apache-2.0
"""The first look at all operations: small tables that answer most questions about them.

It looks at one share of a capture (shares.py). The tables of several shares have the same columns,
and their rows can be put together. A module that reads a table adds up the rows of all shares.
"""

import duckdb

from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.capture import collectives
from nccl_inspector.capture.collectives import ALGO_PROTO, NUMBERED
from nccl_inspector.capture.line_schema import LOSSES, SIZE_CLASS, quoted
from nccl_inspector.capture.medians import counts_sql
from nccl_inspector.capture.operation_counts import COUNTED, RATE
from nccl_inspector.model.process import NS_PER_S

BASE_WINDOW_S = 10  # all windows are multiples of it
LONG_NS = NS_PER_S  # an operation of this length or longer is in all windows that it ran in
LONG_MAX = 1_000_000  # rows
SLOT_BITS = 28  # to choose bursts, operations are counted in slots of 2^n ns
KIND = "comm", "func", "size_class", "algo_proto"
KIND_TIMES = "select *, seen > 1 and not mixed as together from joined"
# Operations without a number that the ranks share: Send, Recv, and several of them in one call.
ALONE_TIMES = f"""
select comm, func, {SIZE_CLASS} as size_class, {ALGO_PROTO} as algo_proto, rank, nranks,
    time_ns as t, bytes
from ops where not ({NUMBERED})
"""
# A group of Sends and Recvs that forms one collective operation, and the number of its members.
WHOLE = "coalesce(algo = 'GROUP' and func in ('AlltoAll', 'Gather', 'Scatter'), false)"
_MEMBERS = "(greatest(nranks, 1) - 1) * if(func = 'AlltoAll', 2, 1)"
# The collectives in which every rank waits for all others, and whose times can be compared.
_WAITS = f"""seen > 1 and not mixed
    and func in ({", ".join(map(quoted, sorted(SYNCHRONISING)))})"""
_ENDED = "from ops where when_us > 0 and time_ns is not null"
_BASE_PLACE = f"when_us // {BASE_WINDOW_S * 1_000_000} as place"

_OF_LINES = {
    "reasons": "select reason, count(*) as n from lines group by reason",
    "rings": """select comm, rank, max(ring_dropped) as n from lines
        where reason = 'dump_stats' group by comm, rank""",
    "lost": """select hostname, pid, max({lines_dropped}) as lines, max({unmeasured}) as unmeasured
        from lines where reason = '' group by hostname, pid""",
}
_OF_COLLECTIVES = {
    "kinds": """
        select comm, func, size_class, algo_proto, max(nranks) as nranks, count(*) as n,
            min(seen) as least_seen, count(*) filter (seen > 1 and not mixed) as together,
            sum(bytes) as bytes, sum(waited) filter (seen > 1 and not mixed) as waited,
            sum(total) filter (seen > 1 and not mixed) as busy, sum(total) as total,
            count(*) filter (mismatched) as mismatched, count(*) filter (mixed) as mixed
        from joined group by comm, func, size_class, algo_proto""",
    "kind_counts": counts_sql(KIND_TIMES, (*KIND, "together"), "t"),
    "came_last": f"""
        select comm, last, count(*) as n, sum(waited) as waited from joined where {_WAITS}
        group by comm, last""",
    "totals": f"""
        select count(*) filter (mismatched) as mismatched, sum(waited) filter ({_WAITS}) as waited,
            sum(total) filter ({_WAITS}) as busy,
            min(when_us) filter (seen > 1) as first_us, max(when_us) filter (seen > 1) as last_us
        from joined""",
    "paced": f"""
        select comm, func, size_class, {_BASE_PLACE}, max(nranks) as nranks, count(*) as n,
            sum(bytes) as bytes, sum(t) as t, sum(total) as total
        from joined where seen > 1 and not mixed and when_us is not null group by all""",
}
_OF_OPERATIONS = {
    "counted": COUNTED,
    "alone_kinds": f"""
        with alone as ({ALONE_TIMES}),
        counts as (
            select comm, func, size_class, algo_proto, rank, count(*) as n from alone group by all),
        busiest as (
            select comm, func, size_class, algo_proto, max(n) as n from counts group by all)
        select comm, func, size_class, algo_proto, max(nranks) as nranks, max(n) as most,
            count(*) as n, sum(bytes) as bytes, sum(t) as t
        from alone join busiest using (comm, func, size_class, algo_proto)
        group by comm, func, size_class, algo_proto""",
    "alone_counts": counts_sql(ALONE_TIMES, KIND, "t"),
    "peers": f"""
        select hostname, pid, comm, rank, func, peer, count(*) as n, sum(bytes) as bytes,
            sum(time_ns) as busy, sum({RATE}) as rate, max({RATE}) as best_rate
        from ops where kind = 'p2p' and peer >= 0 group by all""",
    "ended": f"select min(when_us) as first_us, max(when_us) as last_us {_ENDED}",
    "short": f"""
        select hostname, pid, {_BASE_PLACE},
            count(*) filter (coalesce(algo, '') <> 'GROUP') as n,
            sum(if(time_ns < {LONG_NS}, time_ns, 0)) as busy
        {_ENDED} group by all""",
    "long": f"""
        select hostname, pid, when_us, time_ns {_ENDED} and time_ns >= {LONG_NS}
        limit {LONG_MAX}""",
    "slots": f"""
        select (when_us * 1000) >> {SLOT_BITS} as slot, sum(if({WHOLE}, 1 - {_MEMBERS}, 1)) as n
        from ops where start_ns is not null group by slot""",
    "pairs": """
        select comm, if(func = 'Send', rank, peer) as source,
            if(func = 'Send', peer, rank) as target, func, hostname, pid, count(*) as n
        from ops where kind = 'p2p' and func in ('Send', 'Recv') and peer <> rank group by all""",
    "groups": """
        select comm, func, rank, hostname, pid, count(*) as n
        from ops where algo = 'GROUP' and func <> 'SendRecv' group by all""",
}


# What it makes.
TABLES = (*_OF_LINES, *_OF_COLLECTIVES, *_OF_OPERATIONS)


def _queries(sql: duckdb.DuckDBPyConnection) -> dict[str, str]:
    known = {name for name, *_ in sql.execute("describe lines").fetchall()}
    columns = {one: one if one in known else "null::bigint" for one in LOSSES}
    of_lines = {name: query.format(**columns) for name, query in _OF_LINES.items()}
    return {**of_lines, **_OF_COLLECTIVES, **_OF_OPERATIONS}


def view_operations(sql: duckdb.DuckDBPyConnection) -> None:
    """Make `ops`, the operations in `lines`."""
    sql.execute(
        "create or replace view ops as select * exclude (reason, ring_dropped) from lines "
        "where reason = ''"
    )


def look(sql: duckdb.DuckDBPyConnection, once: bool) -> int | None:
    """Make the tables from `lines`, which has a row for each line of the share.

    `once`: remove duplicates. Returns how many were removed; None: there are some, and no table was
    made, because duplicates in one share are to be removed in all of them.
    """
    view_operations(sql)
    removed = 0
    if once:
        removed = collectives.join_once(sql)
    elif collectives.join(sql):
        return None
    for name, query in _queries(sql).items():
        sql.execute(f"create or replace table {name} as {query}")
    return removed
