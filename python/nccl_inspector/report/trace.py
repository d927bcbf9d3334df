# SPDX-License-Identifier: Apache-2.0
"""The exact records of a job as a trace for Perfetto and Chrome (the Trace Event Format).

A process of the trace is a rank, and its tracks are its communicators. An operation in which a rank
waited for the last one has a slice "waits for rank 5" in it, and an arrow from that rank's begin of
the operation. The job's findings are slices of the first process. All times are on one clock, which
is the records' own (analysis/replay/records.py); how exact that is, the head of the trace says.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import Any, Final

import numpy as np

from nccl_inspector.analysis.places import gpu_of
from nccl_inspector.analysis.replay.order import Order, find_order
from nccl_inspector.analysis.replay.process_choice import choose
from nccl_inspector.analysis.replay.records import (
    SYNCHRONISING,
    Records,
    gather,
)
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.bandwidth import size_class, size_label
from nccl_inspector.model.card import Card
from nccl_inspector.model.process import FUNCS, PEER_NONE, Process

# A shorter wait is no arrow: there would be one for each operation, and nothing to see.
ARROW_NS_MIN: Final = 1_000_000
ARROWS_MAX: Final = 100_000
_JOB = 0  # number of the process that has the findings; ranks count from 1
_LANES = 64  # tracks of a communicator of a rank: its operations that overlap


def ends_apart_us(records: Records) -> tuple[float, float] | None:
    """Return how far the ends of one operation lie apart over its ranks: median and 95 % quantile.

    This is how exact the times of different ranks are beside each other. It is of operations that
    no rank can leave before the last has come. None: of no such operation two ranks have records.
    """
    together = np.isin(records.func, list(SYNCHRONISING))
    joined, end = records.joined[together], records.end[together]
    order = np.lexsort((end, joined))
    joined, end = joined[order], end[order]
    first = np.flatnonzero(np.diff(joined, prepend=-1))
    last = np.append(first[1:], len(joined)) - 1
    apart = (end[last] - end[first])[last > first] if len(first) else end
    if not len(apart):
        return None
    return _us(float(np.median(apart))), _us(float(np.quantile(apart, 0.95)))


@dataclass(frozen=True, slots=True)
class Trace:
    """What is traced; `names` and `places` (node and GPU) are those of all its processes."""

    records: Records
    order: Order
    names: Sequence[str]
    places: Sequence[str]
    card: Card
    chosen: int  # processes whose records are in it

    @property
    def began_ns(self) -> int:
        """Unix time of the trace's zero."""
        return int(self.records.begin.min())


def make_trace(placed: Sequence[tuple[str, Process]], names: Sequence[str], card: Card) -> Trace:
    """Return the trace of a job; `placed` are its processes with their nodes, `names` theirs.

    Raises:
        InspectorError: no process has exact records.
    """
    choice = choose(placed)
    sources = choice.sources(placed)
    records = gather(sources, len(placed), choice.left_out)
    if records is None:
        raise InspectorError("no process has exact records of its operations: nothing to trace")
    gpus = [gpu_of(process) for _, process in placed]
    places = [
        f"{node} {gpu.label}" if gpu else node for (node, _), gpu in zip(placed, gpus, strict=True)
    ]
    return Trace(records, find_order(records), names, places, card, len(sources))


def _us(ns: float) -> float:
    return round(ns / 1000, 3)


def _last_rows(records: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each row that of its operation which began last."""
    order = np.lexsort((records.begin, records.joined))
    joined = records.joined[order]
    ends = np.flatnonzero(np.r_[joined[1:] != joined[:-1], True])
    of_operation = np.full(int(joined[-1]) + 1, -1, np.int64)
    of_operation[joined[ends]] = order[ends]
    return of_operation[records.joined]


class _Tracks:
    """The tracks of one rank: each communicator has as many as operations of it overlap."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}
        self._busy: dict[int, list[tuple[int, int]]] = {}  # until, lane
        self.used: dict[int, int] = {}  # communicator -> lanes

    def place(self, comm: int, begin: int, end: int) -> int:
        """Return the number of the track of an operation; operations come by their begin."""
        free, busy = self._free.setdefault(comm, []), self._busy.setdefault(comm, [])
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        lanes = self.used.get(comm, 0)
        lane = heappop(free) if free else min(lanes, _LANES - 1)
        self.used[comm] = max(lanes, lane + 1)
        heappush(busy, (end, lane))
        return comm * _LANES + lane + 1


def _operation(trace: Trace, row: int, last: int) -> tuple[str, dict[str, Any]]:
    """Return the name of an operation's slice, and what is known of it."""
    records, waited = trace.records, trace.order.waited[row]
    size, peer = int(records.bytes[row]), int(records.peer[row])
    name = f"{FUNCS[records.func[row]]} {size_label(size_class(size))}"
    facts: dict[str, Any] = {"number": int(records.number[row]), "bytes": size}
    if peer != PEER_NONE:
        facts["peer"] = peer
    if not np.isnan(waited):
        facts["waited_ms"] = round(float(waited) / 1e6, 6)
        facts["transfer_ms"] = round(float(trace.order.transfer[row]) / 1e6, 6)
        facts["last"] = trace.names[records.member[last]]
    if records.queued[row] and (records.within is None or not records.within[row]):
        facts["from_call_to_begin_us"] = _us(float(records.queued[row]))
    return name, facts


def _slice(pid: int, tid: int, began: float, lasted: float, **words: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": _us(began), "dur": _us(lasted), **words}


def _arrow(end: str, number: int, pid: int, tid: int, at: float) -> dict[str, Any]:
    return {
        "ph": end, "pid": pid, "tid": tid, "ts": _us(at), "id": number, "name": "comes last",
        "cat": "waiting",
    }  # fmt: skip


def _operations(trace: Trace) -> Iterator[dict[str, Any]]:
    records, zero = trace.records, trace.began_ns
    last_rows = _last_rows(records)
    tracks: dict[int, _Tracks] = {}
    at: list[tuple[int, int]] = []  # on which track each row is
    wanted = []
    for row in range(len(records)):  # by process and begin
        member, comm = int(records.member[row]), int(records.comm[row])
        begin, end = int(records.begin[row]), int(records.end[row])
        last, waited = int(last_rows[row]), float(trace.order.waited[row])
        pid = member + 1
        tid = tracks.setdefault(member, _Tracks()).place(comm, begin, end)
        name, facts = _operation(trace, row, last)
        at.append((pid, tid))
        yield _slice(pid, tid, begin - zero, end - begin, name=name, cat="nccl", args=facts)
        if not waited > 0 or last == row:
            continue
        for_whom = f"waits for {trace.names[records.member[last]]}"
        yield _slice(pid, tid, begin - zero, min(waited, end - begin), name=for_whom, cat="waiting")
        if waited >= ARROW_NS_MIN:
            wanted.append((waited, row, last))
    wanted.sort(reverse=True)
    for number, (_, row, last) in enumerate(wanted[:ARROWS_MAX], 1):
        # A moment before its end: at the end itself the next slice may begin.
        until = max(int(records.begin[row]), int(records.end[row]) - 1) - zero
        yield _arrow("s", number, *at[last], int(records.begin[last]) - zero)
        yield _arrow("f", number, *at[row], until) | {"bp": "e"}
    for member, used in tracks.items():
        yield from _names(trace, member, used.used)


def _named(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _names(trace: Trace, member: int, used: dict[int, int]) -> Iterator[dict[str, Any]]:
    pid = member + 1
    yield _named("process_name", pid, 0, name=f"{trace.names[member]} ({trace.places[member]})")
    yield _named("process_sort_index", pid, 0, sort_index=pid)
    for comm, lanes in used.items():
        known = trace.records.comms[comm]
        title = f"{known.name or hex(known.id)}, {known.nranks} ranks"
        for lane in range(lanes):
            tid = comm * _LANES + lane + 1
            yield _named("thread_name", pid, tid, name=title + (f" ({lane + 1})" if lane else ""))
            yield _named("thread_sort_index", pid, tid, sort_index=tid)


def _findings(trace: Trace) -> Iterator[dict[str, Any]]:
    zero_s = trace.began_ns / 1e9
    shown = [(one, one.period) for one in trace.card.findings if one.period is not None]
    if not shown:
        return
    yield _named("process_name", _JOB, 0, name="findings of the report")
    yield _named("process_sort_index", _JOB, 0, sort_index=_JOB)
    for tid, (one, period) in enumerate(shown, 1):
        yield _named("thread_name", _JOB, tid, name=f"{one.rule} ({one.severity})")
        began_ns = max(0.0, (period.start_s - zero_s) * 1e9)
        lasted_ns = max(1.0, (period.end_s - zero_s) * 1e9 - began_ns)
        yield _slice(
            _JOB, tid, began_ns, lasted_ns, name=one.title, cat="finding",
            args={"detail": one.detail},
        )  # fmt: skip


def about(trace: Trace) -> dict[str, Any]:
    """Return the head of the trace: what it is of, what is missing, how exact the clock is."""
    median_us, most_us = ends_apart_us(trace.records) or (None, None)
    return {
        "job": trace.card.job.job_id,
        "begins_at_unix_ns": trace.began_ns,
        "operations": len(trace.records),
        "ranks": trace.chosen,
        "ranks_left_out": len(trace.names) - trace.chosen,
        "records_lost": trace.records.lost,
        "ends_of_one_operation_apart_us_median": median_us,
        "ends_of_one_operation_apart_us_95_percent": most_us,
    }


def write_trace(trace: Trace, head: Mapping[str, Any]) -> Iterator[str]:
    """Give the trace as pieces of one JSON text, in which an event is a line.

    `head`: what about() says of it.
    """
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n'
    comma = ""
    for event in chain(_findings(trace), _operations(trace)):
        yield comma + json.dumps(event, separators=(",", ":"))
        comma = ",\n"
    yield "\n]}\n"
