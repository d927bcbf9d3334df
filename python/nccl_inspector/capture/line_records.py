# SPDX-License-Identifier: Apache-2.0
"""Read one JSON line as a record, with all its members, known or not."""

import json
from dataclasses import dataclass
from typing import Any

from nccl_inspector.capture.members import (
    BIGINT,
    CALL_EVENTS,
    CHANNEL,
    CHANNEL_EVENTS,
    DOUBLE,
    DUMP_STATS,
    HEADER,
    KINDS,
    METADATA,
    TRACES,
    UBIGINT,
    LineMember,
    perf_members,
)
from nccl_inspector.errors import RefusedError

MARKER, PROXY = "dump_stats", "proxy_trace"
_BIGINT_MAX, _UBIGINT_MAX = (1 << 63) - 1, (1 << 64) - 1
# Larger messages or times are impossible; a line that has them is an error of its writer.
BYTES_MAX, TIME_US_MAX, RANKS_MAX = 1 << 50, 10**12, 1 << 24
WHEN_US_MAX, NUMBER_MAX = 10**16, 1 << 60  # Unix time; number of an operation

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineRecord:
    """A line. `kind`: coll, p2p, dump_stats or proxy_trace; `values`: that part, unchanged.

    `unknown`: members that are not in this release's tables, with the name of their part.
    """

    kind: str
    header: Json
    metadata: Json
    values: Json
    unknown: tuple[str, ...]


def _is_sound(value: Any, type_: str) -> bool:
    if type_ in (BIGINT, UBIGINT):
        most = _BIGINT_MAX if type_ == BIGINT else _UBIGINT_MAX
        return type(value) is int and (0 if type_ == UBIGINT else -most) <= value <= most
    if type_ == DOUBLE:
        return type(value) in (int, float)
    return isinstance(value, str)


def _check(part: str, values: Json, members: list[tuple[str, LineMember]]) -> list[str]:
    """Return the names of unknown members. Raises RefusedError if one is missing or invalid."""
    known = dict(members)
    for name, member in members:
        if name not in values:
            if member.needed:
                raise RefusedError("incomplete", f"no {part}.{name}")
        elif values[name] is None and not member.needed:
            continue  # our lines have null if Slurm does not tell it
        elif not _is_sound(values[name], member.type):
            raise RefusedError("incomplete", f"invalid {part}.{name}")
    return [f"{part}.{name}" for name in values if name not in known]


def _check_traces(kind: str, values: Json, unknown: list[str]) -> list[str]:
    """Return the unknown members, without the known ones of event traces."""
    found = [name for name in unknown if not name.startswith(f"{kind}_perf.event_trace_")]
    for trace in TRACES:
        name = f"event_trace_{trace}"
        if name not in values:
            continue
        own = values[name]
        if not isinstance(own, dict) or not isinstance(own.get("kernel_events", []), list):
            raise RefusedError("incomplete", f"invalid {name}")
        names = {f"{kind}_{event}_{trace}" for event in CALL_EVENTS} | {"kernel_events"}
        found += [f"{name}.{one}" for one in own if one not in names]
        channel = {CHANNEL, *(f"{event}_{trace}" for event in CHANNEL_EVENTS)}
        for event in own.get("kernel_events", []):
            if not isinstance(event, dict):
                raise RefusedError("incomplete", f"invalid {name}.kernel_events")
            found += [f"{name}.kernel_events.{one}" for one in event if one not in channel]
    return found


def _part(record: Json, name: str) -> Json:
    found = record.get(name)
    if not isinstance(found, dict):
        raise RefusedError("incomplete", f"no {name}")
    return found


def check_plausible(kind: str, header: Json, values: Json) -> None:
    """Raise RefusedError for figures that cannot be true."""
    rank, nranks = header["rank"], header["n_ranks"]
    if not 0 <= nranks <= RANKS_MAX or not 0 <= rank < (nranks or RANKS_MAX):
        raise RefusedError("implausible", "rank")
    if not 0 <= header["nnodes"] <= RANKS_MAX:
        raise RefusedError("implausible", "nodes")
    if values[f"{kind}_msg_size_bytes"] > BYTES_MAX:
        raise RefusedError("implausible", "message size")
    if not 0 <= values[f"{kind}_sn"] <= NUMBER_MAX:
        raise RefusedError("implausible", "number")
    times_ns = values[f"{kind}_exec_time_us"] * 1000, values.get(f"{kind}_exec_time_ns") or 0
    if times_ns[0] < 0 or max(times_ns) > TIME_US_MAX * 1000:
        raise RefusedError("implausible", "time")


def parse_record(line: bytes) -> LineRecord:
    """Return the record in a line with a header.

    Raises:
        RefusedError: `not_a_record`, `incomplete` or `implausible`.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise RefusedError("not_a_record") from err
    kinds = {f"{kind}_perf": kind for kind in KINDS} | {MARKER: MARKER, PROXY: PROXY}
    own = [name for name in kinds if isinstance(record, dict) and name in record]
    if len(own) != 1:
        raise RefusedError("not_a_record")
    header, metadata = _part(record, "header"), _part(record, "metadata")
    kind, values = kinds[own[0]], _part(record, own[0])
    unknown = [name for name in record if name not in ("header", "metadata", own[0])]
    unknown += _check("header", header, [(one.name, one) for one in HEADER])
    unknown += _check("metadata", metadata, [(one.name, one) for one in METADATA])
    if kind in KINDS:
        odd = _check(own[0], values, perf_members(kind))
        unknown += _check_traces(kind, values, odd)
        check_plausible(kind, header, values)
    elif kind == MARKER:
        _check(MARKER, values, [(one.name, one) for one in DUMP_STATS])  # others concern proxies
    return LineRecord(kind, header, metadata, values, tuple(unknown))
