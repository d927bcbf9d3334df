# SPDX-License-Identifier: Apache-2.0
"""Make the SQL that turns JSON lines into columns, from the table of members.

Each query is about one kind, coll or p2p: expressions about both cost a third of the time, and most
captures have only the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.capture.line_records import (
    BYTES_MAX,
    NUMBER_MAX,
    RANKS_MAX,
    TIME_US_MAX,
    WHEN_US_MAX,
)
from nccl_inspector.capture.lines import LINE_BYTES_MAX
from nccl_inspector.capture.members import (
    BIGINT,
    CALL_EVENTS,
    COLL,
    DUMP_STATS,
    HEADER,
    KINDS,
    METADATA,
    P2P,
    PERF,
    TRACES,
    VARCHAR,
    LineMember,
    channel_type,
    perf_members,
)

# Reasons that are no fault of a line: it is not about an operation with a time.
MARKER, PROXY, UNTIMED, OTHER_KIND = "dump_stats", "proxy_trace", "untimed", "other_kind"

# The size class of the column `bytes`: floor(log2), and 0 for 0 and 1.
SIZE_CLASS = "if(bytes > 1, floor(log2(bytes)), 0)::integer"

# In a trace: when a channel's kernel began.
_KERNEL_START = "kernel_start_ts"
# With these limits, times (up to the year 2096) and durations add up to less than 2^63 ns.
_SAMPLE_US_MAX, _GPU_NS_MAX = 4 * 10**15, 1 << 62

# Columns that say how much a process lost up to a line.
LOSSES = "lines_dropped", "unmeasured"
_PARTS = (("header", HEADER), ("metadata", METADATA))
_NEEDED = [one for members in (HEADER, METADATA, PERF) for one in members if one.needed]


def quoted(text: str) -> str:
    """Return a text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def _struct(members: Sequence[tuple[str, str]]) -> str:
    return "STRUCT(" + ", ".join(f'"{name}" {type_}' for name, type_ in members) + ")"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which members are read: all, or those that the analysis needs.

    `losses`: also those that say in every line how much was lost up to it.
    """

    everything: bool
    losses: bool

    def has(self, member: LineMember) -> bool:
        """Tell whether this member is read."""
        needed = member.analysed or member.needed
        return self.everything or needed or (self.losses and member.column in LOSSES)


def _trace_type(kind: str, trace: str, everything: bool) -> str:
    events = CALL_EVENTS if everything else CALL_EVENTS[:1]
    members = [(f"{kind}_{event}_{trace}", BIGINT) for event in events]
    channels = channel_type(trace) if everything else f"{_struct([(_KERNEL_START, BIGINT)])}[]"
    return _struct([*members, ("kernel_events", channels)])


def _json_columns(kind: str, wanted: Wanted) -> str:
    """Return the columns for read_json; it skips everything else in a line."""
    found = {
        part: _struct([(one.name, one.type) for one in members if wanted.has(one)])
        for part, members in _PARTS
    }
    own = [(name, one.type) for name, one in perf_members(kind) if wanted.has(one)]
    for trace in TRACES if wanted.everything else ("ts",):
        own.append((f"event_trace_{trace}", _trace_type(kind, trace, wanted.everything)))
    other = P2P if kind == COLL else COLL
    found |= {f"{kind}_perf": _struct(own), f"{other}_perf": _struct([(other, VARCHAR)])}
    found[MARKER] = _struct([(one.name, one.type) for one in DUMP_STATS])
    found[PROXY] = _struct([("record_type", VARCHAR)])
    return "{" + ", ".join(f"{part}: {quoted(type_)}" for part, type_ in found.items()) + "}"


def _selected(kind: str, wanted: Wanted) -> list[tuple[str, str]]:
    """Return name and expression of each column that is a member of the line."""
    found = [
        (one.column, f"{part}.{one.name}")
        for part, members in _PARTS
        for one in members
        if wanted.has(one)
    ]
    own = {one.column: f"{kind}_perf.{name}" for name, one in perf_members(kind)}
    found += [
        (one.column, own.get(one.column, f"null::{one.type}")) for one in PERF if wanted.has(one)
    ]
    for trace in TRACES if wanted.everything else ():
        path = f"{kind}_perf.event_trace_{trace}"
        for event in CALL_EVENTS:
            found.append((f"trace_{event}_{trace}", f"{path}.{kind}_{event}_{trace}"))
        found.append((f"trace_channels_{trace}", f"{path}.kernel_events"))
    return found


def _reason() -> str:
    """Return the SQL expression for why a line is not an operation; empty: it is one.

    The case of almost all lines comes first, so that the others are rarely evaluated.
    """
    ranks = f"""rank >= 0 and rank < if(nranks > 0, nranks, {RANKS_MAX})
        and nranks between 0 and {RANKS_MAX} and nnodes between 0 and {RANKS_MAX}"""
    times = f"""time_us between 0 and {TIME_US_MAX} and time_ns <= {TIME_US_MAX * 1000}
        and coalesce(when_us, 0) between 0 and {WHEN_US_MAX}"""
    sound = f"{ranks} and bytes <= {BYTES_MAX} and {times} and sn between 0 and {NUMBER_MAX}"
    missing = " or ".join(f"{one.column} is null" for one in _NEEDED)
    there = " and ".join(f"{one.column} is not null" for one in _NEEDED)
    return f"""case
        when {there} and {sound} and time_ns > 0 and not other then ''
        when other then '{OTHER_KIND}'
        when marker and comm is not null then '{MARKER}'
        when proxy and comm is not null then '{PROXY}'
        when not called then 'not_a_record'
        when {missing} then 'incomplete'
        when not ({sound}) then 'implausible'
        else '{UNTIMED}' end"""


def _within(number: str, most: int) -> str:
    """Return the SQL for a number; it is null where sums and products could overflow."""
    return f"if({number} between 0 and {most}, {number}, null)"


def _gpu_start_ns(kind: str) -> str:
    name = f"{kind}_perf.{kind}_gpu_start_ns"
    return f"if({name} between 1 and {_GPU_NS_MAX}, {name}, null)"


def _start_ns(kind: str, time_ns: str) -> str:
    """Return the SQL for an operation's begin: by the GPU's clock, otherwise as Unix time.

    It is null if the line does not tell. NVIDIA's lines tell it only with verbose event traces.
    """
    own = f"{kind}_perf"
    traced = f"{own}.event_trace_ts.kernel_events"
    began_us = _within(f"list_min([one.{_KERNEL_START} for one in {traced}])", _SAMPLE_US_MAX)
    end_us = _within(f"{own}.{kind}_end_us", _SAMPLE_US_MAX)
    by_gpu = _gpu_start_ns(kind)
    return f"coalesce({by_gpu}, {began_us} * 1000, {end_us} * 1000 - {time_ns})"


def _inner(kind: str, wanted: Wanted) -> str:
    """Return the SQL for the columns taken from a line, and for those calculated from them."""
    other = P2P if kind == COLL else COLL
    own = f"{kind}_perf"
    exec_ns = f"{own}.{kind}_exec_time_ns"
    exec_us = _within(f"{own}.{kind}_exec_time_us", TIME_US_MAX)
    traced_us = _within(f"{own}.event_trace_ts.{kind}_start_ts", WHEN_US_MAX)
    called_us = f"coalesce({own}.{kind}_start_us, {traced_us})"
    time_ns = f"if({exec_ns} > 0, {exec_ns}, {exec_us} * 1000)"
    when_us = f"coalesce({own}.{kind}_end_us, {traced_us} + {exec_us}, metadata.dump_timestamp_us)"
    lost = [_within(f"{MARKER}.{one}_dropped_total", NUMBER_MAX) for one in KINDS]
    found = [f"{what} as {name}" for name, what in _selected(kind, wanted)]
    found += [
        "p.file as file",
        f"'{kind}' as kind",
        f"{time_ns} as time_ns",
        f"{when_us} as when_us",
        f"if({when_us} between 0 and {_SAMPLE_US_MAX}, {_start_ns(kind, time_ns)}, null)"
        " as start_ns",
        f"{_gpu_start_ns(kind)} is not null as by_gpu_clock",
        f"{_within(called_us, _SAMPLE_US_MAX)} as called_us",
        f"if({MARKER} is null, null, {' + '.join(lost)}) as ring_dropped",  # hardly any line has it
        "dump_stats is not null as marker",
        "proxy_trace is not null as proxy",
        f"{own} is not null as called",
        f"{other}_perf is not null as other",
    ]
    return ", ".join(found)


def select_lines(paths: Mapping[str, int], kind: str, wanted: Wanted, gzipped: bool) -> str:
    """Return the query that reads files, with one row for each line; `paths` must be our own paths.

    If not everything is wanted, the columns from which others are calculated are left out.
    """
    values = ", ".join(f"({quoted(path)}, {at})" for path, at in paths.items())
    listed = ", ".join(map(quoted, paths))
    unkept = ["marker", "proxy", "called", "other"]
    unkept += (
        []
        if wanted.everything
        else ["time_us", "exec_ns", "start_us", "end_us", "dump_us", "gpu_start_ns"]
    )
    return f"""
        select * exclude ({", ".join(unkept)}), {_reason()} as reason from (
            select {_inner(kind, wanted)}
            from read_json([{listed}], columns={_json_columns(kind, wanted)}, filename='path',
                format='newline_delimited', ignore_errors=true, records='true',
                maximum_object_size={LINE_BYTES_MAX},
                compression='{"gzip" if gzipped else "uncompressed"}') as r
            join (values {values}) as p(path, file) using (path))"""
