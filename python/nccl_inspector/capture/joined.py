# SPDX-License-Identifier: Apache-2.0
"""Results from the collectives of all ranks together: transfer times, waiting, who came last.

The rank that came last did not wait, so its time T is the transfer time (analysis/join.py).
"""

from dataclasses import dataclass

from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.capture.collectives import ALGO_PROTO, NUMBERED
from nccl_inspector.capture.engine import Capture
from nccl_inspector.capture.line_schema import SIZE_CLASS, quoted
from nccl_inspector.capture.medians import medians
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.card import Communicator, Operations, Series, TimeLine
from nccl_inspector.model.transport import transport_by_shape
from nccl_inspector.system.printable import visible

WINDOW_S, WINDOWS_MAX, SERIES_MAX = 10, 1000, 64

_KIND = "comm", "func", "size_class", "algo_proto"
_TIMES = "select *, seen > 1 and not mixed as together from joined"
_KINDS = """
select comm, func, size_class, algo_proto, max(nranks), count(*), min(seen),
    count(*) filter (seen > 1 and not mixed), avg(bytes),
    sum(waited) filter (seen > 1 and not mixed),
    sum(total) filter (seen > 1 and not mixed), count(*) filter (mismatched),
    count(*) filter (mixed)
from joined group by comm, func, size_class, algo_proto
order by sum(total) desc, comm, func, size_class, algo_proto
"""
# Operations without a number that the ranks share: Send, Recv, and several of them in one call.
_ALONE_ROWS = f"""
select comm, func, {SIZE_CLASS} as size_class, {ALGO_PROTO} as algo_proto, rank, nranks,
    time_ns as t, bytes
from ops where not ({NUMBERED})
"""
_ALONE = f"""
with alone as ({_ALONE_ROWS}),
counts as (
    select comm, func, size_class, algo_proto, rank, count(*) as n from alone group by all),
busiest as (
    select comm, func, size_class, algo_proto, max(n) as n from counts group by all)
select comm, func, size_class, algo_proto, max(nranks), max(n), avg(bytes)
from alone join busiest using (comm, func, size_class, algo_proto)
group by comm, func, size_class, algo_proto
order by sum(t) desc, comm, func, size_class, algo_proto
"""
_COMMUNICATORS = """
select comm, any_value(comm_name), max(nranks), max(nnodes), count(distinct rank),
    list_sort(list(distinct hostname)),
    min(least_nranks) <> max(nranks) or min(least_nnodes) <> max(nnodes)
from counted group by comm order by max(nranks) desc, comm
"""
_GAPS = """
select comm, sum(n)::hugeint from (
    select comm, max(last_sn) - min(first_sn) + 1 - sum(n) as n from counted where numbered
    group by comm, rank, func)
group by comm having sum(n) > 0
"""
_UNRECORDED = f"select coalesce(sum(n), 0)::hugeint from ({_GAPS}) as gaps(comm, n)"
# The collectives in which every rank waits for all others, and whose times can be compared.
_WAITS = f"""seen > 1 and not mixed
    and func in ({", ".join(map(quoted, sorted(SYNCHRONISING)))})"""
_LAST = f"""
select comm, last, count(*), sum(waited)::hugeint, (sum(count(*)) over (partition by comm))
from joined where {_WAITS}
group by comm, last order by sum(waited) desc, comm, last
"""
_TOTALS = f"""
select count(*) filter (mismatched), coalesce(sum(waited) filter ({_WAITS}), 0)::hugeint,
    coalesce(sum(total) filter ({_WAITS}), 0)::hugeint
from joined
"""


@dataclass(frozen=True, slots=True)
class CameLast:
    """How often a rank came last in a communicator, and how long its peers waited for it."""

    communicator: str
    rank: int
    operations: int
    of_operations: int
    waited_ns: int  # of all peers together


@dataclass(frozen=True, slots=True)
class Joined:
    """The parts of a report card that a capture gives exactly."""

    communicators: tuple[Communicator, ...]
    operations: tuple[Operations, ...]
    timeline: TimeLine
    came_last: tuple[CameLast, ...]  # the one that peers waited most for comes first
    mismatched: int  # collectives whose ranks do not agree on the size
    waiting_ns: int  # the ranks' waiting in collectives in which every rank waits for all others
    busy_ns: int  # the ranks' time in these collectives
    unrecorded: int = 0  # collectives of ranks without a line, but others around them have


def _bus_gbs(func: str, nranks: int, mean_bytes: float, time_ns: float) -> float | None:
    factor = bus_factor(func, nranks)
    return mean_bytes * factor / time_ns if factor and time_ns > 0 else None


def _notes(
    nranks: int, count: int, least: int, together: int, mismatched: int, mixed: int
) -> tuple[str, ...]:
    """Return as text what makes the figures of a kind less than exact."""
    notes = []
    if together < count:
        notes.append(f"{count - together} of {count} operations are of one rank alone")
    elif least < nranks:
        notes.append(f"of some operations only {least} of {nranks} ranks: T may be too long")
    if mismatched:
        notes.append(f"{mismatched} operations in which the ranks do not agree on the size")
    if mixed:
        notes.append(f"{mixed} operations timed by different clocks: not compared")
    return tuple(notes)


def _operations(capture: Capture) -> list[Operations]:
    found = []
    times = medians(capture.sql, _TIMES, (*_KIND, "together"), "t")
    for row in capture.sql.execute(_KINDS).fetchall():
        comm, func, size, algo_proto, nranks, count, least, together = row[:8]
        mean_bytes, waiting_ns, busy_ns, mismatched, mixed = row[8:]
        time_ns = times[*row[:4], together > 0]
        waits = func in SYNCHRONISING and together > 0
        found.append(
            Operations(
                communicator=visible(comm),
                func=visible(func),
                size_class=size,
                algo_proto=visible(algo_proto),
                count=count,
                time_ns=time_ns,
                bus_gbs=_bus_gbs(func, nranks, mean_bytes, time_ns),
                waiting_share=float(waiting_ns) / float(busy_ns) if waits else None,
                waiting_included=not together,
                notes=_notes(nranks, count, least, together + mixed, mismatched, mixed),
            )
        )
    times = medians(capture.sql, _ALONE_ROWS, _KIND, "t")
    for comm, func, size, algo_proto, nranks, count, mean_bytes in capture.sql.execute(
        _ALONE
    ).fetchall():
        time_ns = times[comm, func, size, algo_proto]
        grouped = algo_proto == "GROUP"
        bus_gbs = None if grouped else _bus_gbs(func, nranks, mean_bytes, time_ns)
        found.append(
            Operations(visible(comm), visible(func), size, visible(algo_proto), count,
                       time_ns, bus_gbs, None, waiting_included=True)
        )  # fmt: skip
    return found


def _communicators(capture: Capture) -> list[Communicator]:
    gaps = dict(capture.sql.execute(_GAPS).fetchall())
    found = []
    for comm, name, nranks, nnodes, seen, nodes, odd in capture.sql.execute(
        _COMMUNICATORS
    ).fetchall():
        notes = []
        if seen < nranks:
            notes.append(f"{nranks - seen} of {nranks} ranks have no record")
        if odd:
            notes.append("processes do not agree on its size")
        if comm in gaps:
            notes.append(
                f"{gaps[comm]} operations between the first and the last have no record: "
                "too small, without a time, or lost"
            )
        found.append(
            Communicator(
                visible(comm), visible(name or ""), transport_by_shape(nranks, nnodes), nranks,
                nnodes, tuple(map(visible, nodes)), seen, tuple(notes),
            )
        )  # fmt: skip
    return found


def _timeline(capture: Capture) -> TimeLine:
    """Return the busiest kinds in windows of equal length, a multiple of WINDOW_S."""
    first, last = capture.sql.execute(
        "select min(when_us) // 1000000, max(when_us) // 1000000 from joined where seen > 1"
    ).fetchall()[0]
    if first is None:
        return TimeLine()
    window_s = WINDOW_S
    while last // window_s - first // window_s >= WINDOWS_MAX:
        window_s *= 2
    start = first // window_s
    windows = last // window_s - start + 1
    rows = capture.sql.execute(
        f"""with busiest as (
            select comm, func, size_class from joined
            where seen > 1 and not mixed and when_us is not null
            group by all order by sum(total) desc, comm, func, size_class limit {SERIES_MAX})
        select comm, func, size_class, max(nranks),
            when_us // 1000000 // {window_s} - {start} as place, count(*), sum(bytes), sum(t)
        from joined join busiest using (comm, func, size_class)
        where seen > 1 and not mixed and when_us is not null
        group by comm, func, size_class, place order by all"""
    ).fetchall()
    shapes = dict(
        capture.sql.execute("select comm, max(nnodes) from counted group by comm").fetchall()
    )
    lines: dict[tuple[str, str, int], tuple[int, list[float | None], list[int]]] = {}
    for comm, func, size, nranks, at, count, size_bytes, time_ns in rows:
        key = comm, func, size
        if key not in lines:
            lines[key] = nranks, [None] * windows, [0] * windows
        _, gbs, operations = lines[key]
        gbs[at] = _bus_gbs(func, nranks, float(size_bytes), float(time_ns))
        operations[at] = count
    series = tuple(
        Series(transport_by_shape(nranks, shapes[comm]), visible(comm), visible(func), size,
               tuple(gbs), tuple(operations))
        for (comm, func, size), (nranks, gbs, operations) in lines.items()
    )  # fmt: skip
    return TimeLine(window_s, start * window_s, windows, series)


def join(capture: Capture) -> Joined:
    """Return what the operations of all ranks together show."""
    mismatched, waiting_ns, busy_ns = capture.sql.execute(_TOTALS).fetchall()[0]
    came_last = tuple(
        CameLast(visible(comm), rank, count, int(total), waited_ns)
        for comm, rank, count, waited_ns, total in capture.sql.execute(_LAST).fetchall()
    )
    return Joined(
        communicators=tuple(_communicators(capture)),
        operations=tuple(_operations(capture)),
        timeline=_timeline(capture),
        came_last=came_last,
        mismatched=mismatched,
        waiting_ns=waiting_ns,
        busy_ns=busy_ns,
        unrecorded=capture.sql.execute(_UNRECORDED).fetchall()[0][0],
    )
