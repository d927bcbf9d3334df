# SPDX-License-Identifier: Apache-2.0
"""Results from the collectives of all ranks together: transfer times, waiting, who came last.

The rank that came last did not wait, so its time T is the transfer time (analysis/join.py).
"""

from dataclasses import dataclass

import duckdb

from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.capture.contents import Capture
from nccl_inspector.capture.first_look import BASE_WINDOW_S, KIND
from nccl_inspector.capture.medians import medians
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.card import Communicator, Operations, Series, TimeLine
from nccl_inspector.model.transport import transport_by_shape
from nccl_inspector.system.printable import visible

_WINDOWS_MAX, _SERIES_MAX = 1000, 64

_KINDS = """
select comm, func, size_class, algo_proto, max(nranks), sum(n)::bigint, min(least_seen),
    sum(together)::bigint, sum(bytes)::double / sum(n), sum(waited)::hugeint, sum(busy)::hugeint,
    sum(mismatched)::bigint, sum(mixed)::bigint
from kinds group by comm, func, size_class, algo_proto
order by sum(total) desc, comm, func, size_class, algo_proto
"""
_ALONE = """
select comm, func, size_class, algo_proto, nranks, most, bytes::double / n
from alone_kinds order by t desc, comm, func, size_class, algo_proto
"""
_COMMUNICATORS = """
select comm, min(comm_name), max(nranks), max(nnodes), count(distinct rank),
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
_LAST = """
select comm, last, sum(n)::bigint, sum(waited)::hugeint,
    (sum(sum(n)) over (partition by comm))::bigint
from came_last group by comm, last order by sum(waited) desc, comm, last
"""
_TOTALS = """
select sum(mismatched)::bigint, coalesce(sum(waited), 0)::hugeint, coalesce(sum(busy), 0)::hugeint
from totals
"""
_SPAN = "select min(first_us) // 1000000, max(last_us) // 1000000 from totals"
_PACED = f"""
with busiest as (
    select comm, func, size_class from paced
    group by all order by sum(total) desc, comm, func, size_class limit {_SERIES_MAX})
select comm, func, size_class, max(nranks), place * {BASE_WINDOW_S} // $1 - $2 as at_window,
    sum(n)::bigint, sum(bytes)::hugeint, sum(t)::hugeint
from paced join busiest using (comm, func, size_class)
group by comm, func, size_class, at_window order by all
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
    times = medians(capture.sql, "kind_middles", "kind_values", (*KIND, "together"))
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
    times = medians(capture.sql, "alone_middles", "alone_values", KIND)
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


def find_window_s(sql: duckdb.DuckDBPyConnection) -> int:
    """Return the length of the windows of time lines: BASE_WINDOW_S, or a multiple of it."""
    first, last = sql.execute(_SPAN).fetchall()[0]
    window_s = BASE_WINDOW_S
    while first is not None and last // window_s - first // window_s >= _WINDOWS_MAX:
        window_s *= 2
    return window_s


def _timeline(capture: Capture) -> TimeLine:
    """Return the busiest kinds in windows of equal length."""
    first, last = capture.sql.execute(_SPAN).fetchall()[0]
    if first is None:
        return TimeLine()
    window_s = capture.window_s
    start = first // window_s
    windows = last // window_s - start + 1
    rows = capture.sql.execute(_PACED, [window_s, start]).fetchall()
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
