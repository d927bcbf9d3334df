# SPDX-License-Identifier: Apache-2.0
"""The operations of a capture as the exact records that a box keeps: `model.Samples`.

The records of all ranks are judged together (analysis/replay/). That takes much longer than reading
lines. So of a large capture only the operations in some bursts of Unix time are taken. The bursts
are the same for all processes, by the rule in plugin/box/box.h.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.replay.arrays import Ints, Mask, medians, number_rows
from nccl_inspector.analysis.replay.records import RECORDS_MAX
from nccl_inspector.box.sample_table import LENGTH_BITS_MIN, PERIOD_BITS_MAX, PERIODS_MIN
from nccl_inspector.capture.collectives import NUMBERED
from nccl_inspector.capture.engine import Capture, Process
from nccl_inspector.capture.ids import comm_id, index_of
from nccl_inspector.capture.line_records import RANKS_MAX
from nccl_inspector.capture.line_schema import SIZE_CLASS
from nccl_inspector.model.process import (
    ALGOS,
    FUNCS,
    NS_PER_S,
    PEER_BEYOND,
    PEER_NONE,
    PROTOS,
    SAMPLE_CPU_TIMED,
    SAMPLE_GROUP,
    GpuClock,
    SampleKind,
)
from nccl_inspector.model.sample_columns import SampleColumns
from nccl_inspector.system.printable import visible

# Operations of each process that are judged; replay.records has the limit for all processes
# together.
_PROCESS_ROWS_MAX, _PROCESS_ROWS_MIN = 32768, 256
ALL_BITS = 34  # length and period of bursts if all operations are taken
SLOT_BITS = 28  # to choose bursts, operations are counted in slots of 2^n ns
_APART = 0.3  # numbers of operations differ if their logarithms differ by more
_GROUP_MEMBERS_MAX = 8  # the plugin keeps no records of the members of larger groups
_CLOCK_WINDOW_NS = 60 * NS_PER_S
_ONE_CLOCK_NS = NS_PER_S // 10  # GPUs of a process whose clocks differ by less share a clock
_CLOCK_ERROR_MAX_NS = 3600 * NS_PER_S  # a start that is this far from the end's Unix time is wrong

_KIND = """hash(hostname, pid, comm, rank, func, size_class, coalesce(algo, ''),
    coalesce(proto, ''))"""
_KINDS = f"""
select {_KIND}, hostname, pid, comm, rank, func, size_class, algo, proto, any_value(comm_name),
    max(nranks), max(nnodes)
from counted group by hostname, pid, comm, rank, func, size_class, algo, proto
order by hostname, pid, comm, rank, func, size_class, algo, proto
"""
# A group of Sends and Recvs that forms one collective operation, and the number of its members.
_WHOLE = "coalesce(algo = 'GROUP' and func in ('AlltoAll', 'Gather', 'Scatter'), false)"
_MEMBERS = "(greatest(nranks, 1) - 1) * if(func = 'AlltoAll', 2, 1)"
_SLOTS = f"""
select (when_us * 1000) >> {SLOT_BITS} as slot,
    greatest(sum(if({_WHOLE}, 1 - {_MEMBERS}, 1)), 0)::bigint as operations
from ops where start_ns is not null group by slot order by slot
"""
_RECORD = f"""{_KIND} as kind, start_ns, by_gpu_clock, time_ns, when_us * 1000 as heard_ns,
    if(peer between 0 and {RANKS_MAX}, peer, {PEER_NONE}) as peer, bytes::bigint as bytes, sn,
    coalesce(algo = 'GROUP', false) as grouped, source is distinct from 'kernel_gpu' as by_cpu"""
_OPS = f"(select *, {SIZE_CLASS} as size_class from ops) where start_ns is not null"
_NUMBERED = f"select {_RECORD}, sn + 1 as number from {_OPS} and {NUMBERED}"
# Operations without a number that the ranks share are numbered in the order of their rank's calls.
_COUNTED = f"""
select {_RECORD}, hash(hostname, pid, comm, rank) as stream, {_WHOLE} as whole, row_number() over (
    partition by algo is not null, hash(hostname, pid, comm, rank, func, peer) order by sn
    ) as number
from {_OPS} and not ({NUMBERED})
"""
# The members of such a group lie within its time, and their numbers are not above its number.
_ALONE = """
with counted_ as ({counted}), here as (select * from counted_ {within}),
    wholes as (select stream, sn, start_ns, start_ns + time_ns as end_ns from here where whole)
select here.* exclude (stream, whole)
from here asof left join wholes on here.stream = wholes.stream and here.sn <= wholes.sn
where here.peer < 0 or wholes.sn is null or here.start_ns < wholes.start_ns
    or here.start_ns + here.time_ns > wholes.end_ns
"""
_PAIRS = """
select sum(n) filter (func = 'Send'), sum(n) filter (func = 'Recv'),
    list(distinct hostname), list(distinct pid)
from (
    select comm, if(func = 'Send', rank, peer) as source, if(func = 'Send', peer, rank) as target,
        func, hostname, pid, count(*) as n
    from ops where kind = 'p2p' and func in ('Send', 'Recv') and peer <> rank group by all)
group by comm, source, target
"""
_GROUPS = """
select min(n), max(n), list(distinct hostname), list(distinct pid)
from (
    select comm, func, rank, hostname, pid, count(*) as n
    from ops where algo = 'GROUP' and func <> 'SendRecv' group by all)
group by comm, func
"""


@dataclass(frozen=True, slots=True)
class LineSamples:
    """The records of a process; their times are Unix times, so they need no clock."""

    kinds: tuple[SampleKind, ...]
    length_bits: int
    period_bits: int
    lost: int
    table: SampleColumns
    clocks: tuple[GpuClock, ...] = ()

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.table.start_ns)

    def columns(self) -> SampleColumns:
        """Return the records as numpy arrays."""
        return self.table


@dataclass(frozen=True, slots=True)
class Sampled:
    """The records of each process, or as text why there are none."""

    by_process: dict[Process, LineSamples] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class _OpRows:
    """A table with a row for each operation of each process, in any order."""

    kind: Ints  # index of the kinds of all processes
    process: Ints
    stream: Ints  # (process, communicator, rank)
    number: Ints
    peer: Ints
    start_ns: Ints
    by_gpu_clock: Mask
    time_ns: Ints
    heard_ns: Ints  # Unix time when the process learnt of the end
    bytes: Ints
    sn: Ints
    grouped: Mask
    by_cpu: Mask

    def take(self, which: Mask | Ints) -> "_OpRows":
        return _OpRows(*(getattr(self, name)[which] for name in self.__slots__))


def choose_bursts(slots: Ints, counts: Ints, most: int) -> tuple[int, int]:
    """Return length and period, as bits, of bursts with about `most` operations or fewer.

    `slots`: Unix times in units of 2^SLOT_BITS ns, in increasing order. `counts`: the operations
    that ended in each slot.
    """
    length, period = ALL_BITS, ALL_BITS
    while period < PERIOD_BITS_MAX:
        part = min(2.0 ** (length - SLOT_BITS), 1.0)  # the part of a slot that is in a burst
        if part * int(counts.sum()) <= most:
            break
        periods = len(np.unique(slots >> (period - SLOT_BITS)))
        if periods < PERIODS_MIN and length > LENGTH_BITS_MIN:
            length -= 1
        else:
            period += 1
        inside = slots & ((1 << (period - SLOT_BITS)) - 1)
        kept = inside < max((1 << length) >> SLOT_BITS, 1)
        slots, counts = slots[kept], counts[kept]
    return length, period


def _why_unjoinable(capture: Capture) -> str:
    """Return why Sends, Recvs and groups cannot be joined over the ranks; empty: they can.

    They are joined by counting, so both sides need the same first line. A rank that was killed
    lacks only the last lines, which is no problem.
    """
    holed = capture.holed
    if not holed:
        return ""
    odd = 0
    for query in (_PAIRS, _GROUPS):
        for one, other, hosts, pids in capture.sql.execute(query).fetchall():
            differ = one is not None and other is not None and one != other
            odd += differ and any((host, pid) in holed for host in hosts for pid in pids)
    if not odd:
        return ""
    return (
        "lines are missing (dropped, or gone with an older file), so not all Sends, Recvs and "
        "groups of them can be joined over the ranks"
    )


def _fetch(capture: Capture, query: str) -> dict[str, NDArray[Any]]:
    found = capture.sql.execute(query).fetchnumpy()
    return {name: np.ma.getdata(column) for name, column in found.items()}


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of operation of all processes, sorted by process."""

    keys: NDArray[np.uint64]
    processes: tuple[Process, ...]
    process: Ints  # index of `processes`
    stream: Ints
    kinds: tuple[SampleKind, ...]


def _kinds(capture: Capture) -> _Kinds:
    processes: dict[Process, int] = {}
    streams: dict[tuple[Process, str, int], int] = {}
    keys, process, stream, kinds = [], [], [], []
    for row in capture.sql.execute(_KINDS).fetchall():
        key, host, pid, comm, rank, func, size_class, algo, proto, name, nranks, nnodes = row
        who = host, pid
        keys.append(key)
        process.append(processes.setdefault(who, len(processes)))
        stream.append(streams.setdefault((who, comm, rank), len(streams)))
        kinds.append(
            SampleKind(
                comm_id(comm), nranks or RANKS_MAX, nnodes, rank, None, index_of(FUNCS, func),
                size_class, index_of(ALGOS, algo), index_of(PROTOS, proto), 0, 0,
                visible(name or ""),
            )
        )  # fmt: skip
    return _Kinds(
        np.array(keys, np.uint64), tuple(processes), np.array(process, np.int64),
        np.array(stream, np.int64), tuple(kinds),
    )  # fmt: skip


def _rows(capture: Capture, kinds: _Kinds, length: int, period: int) -> _OpRows:
    """Return the operations in the bursts."""
    within = ""
    if length < period:
        within = f"where heard_ns & {(1 << period) - 1} < {1 << length}"
    found = _fetch(
        capture,
        f"select * from ({_NUMBERED}) {within} "
        f"union all by name ({_ALONE.format(counted=_COUNTED, within=within)})",
    )
    order = np.argsort(kinds.keys)
    keys = found.pop("kind").astype(np.uint64)
    kind = order[np.searchsorted(kinds.keys[order], keys)]
    return _OpRows(kind=kind, process=kinds.process[kind], stream=kinds.stream[kind], **found)


def _without_large_groups(rows: _OpRows) -> _OpRows:
    """Leave out the Sends and Recvs of groups with many members, as the plugin does.

    They lie within the time of their group, and their numbers are not above its number.
    """
    groups, members = np.flatnonzero(rows.grouped), np.flatnonzero(rows.peer != PEER_NONE)
    if not len(groups) or not len(members):
        return rows
    groups = groups[np.lexsort((rows.sn[groups], rows.stream[groups]))]
    keys = rows.stream * len(rows.sn) + number_rows(rows.sn)
    at = np.minimum(np.searchsorted(keys[groups], keys[members]), len(groups) - 1)
    group = groups[at]
    end = rows.start_ns + rows.time_ns
    inside = (
        (rows.stream[group] == rows.stream[members])
        & (rows.start_ns[members] >= rows.start_ns[group])
        & (end[members] <= end[group])
    )
    size = np.bincount(at[inside], minlength=len(groups))
    kept = np.ones(len(rows.kind), dtype=bool)
    kept[members[inside & (size[at] > _GROUP_MEMBERS_MAX)]] = False
    return rows.take(kept)


def _clock_owners(rows: _OpRows, ahead: Ints) -> Ints:
    """Return the clock of each row as a number: one for each process, or for each of its streams.

    A process has several clocks if the times of its streams differ too much.
    """
    first = int(ahead.min())
    count = int(rows.stream.max()) + 1
    middle = medians(rows.stream, (ahead - first).astype(float), count)
    many = int(rows.process.max()) + 1
    low, high = np.full(many, np.inf), np.full(many, -np.inf)
    np.minimum.at(low, rows.process, middle[rows.stream])
    np.maximum.at(high, rows.process, middle[rows.stream])
    several = (high - low > _ONE_CLOCK_NS)[rows.process]
    return number_rows(rows.process, np.where(several, rows.stream, -1))


def _on_unix_time(rows: _OpRows) -> _OpRows:
    """Return the rows with Unix times.

    A process learns of an end only after it, so the smallest difference between both clocks within
    a window is closest to the truth. Between these points the difference is interpolated, because a
    step would look like a gap of the rank.
    """
    gpu = np.flatnonzero(rows.by_gpu_clock)
    if not len(gpu):
        return rows
    mine = rows.take(gpu)
    end = mine.start_ns + mine.time_ns
    ahead = mine.heard_ns - end
    owner = _clock_owners(mine, ahead)
    window = number_rows(owner, end // _CLOCK_WINDOW_NS)
    order = np.lexsort((ahead, window))
    best = order[np.append(0, np.flatnonzero(np.diff(window[order])) + 1)]
    best = best[np.lexsort((end[best], owner[best]))]
    bounds = np.searchsorted(owner[best], np.arange(int(owner.max()) + 2))
    by_owner = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[by_owner], np.arange(int(owner.max()) + 2))
    start, wrong = rows.start_ns.copy(), np.zeros(len(rows.kind), dtype=bool)
    for number in range(int(owner.max()) + 1):
        own, known = (
            by_owner[cuts[number] : cuts[number + 1]],
            best[bounds[number] : bounds[number + 1]],
        )
        usual = int(np.median(ahead[own]))
        known = known[np.abs(ahead[known] - usual) < _CLOCK_ERROR_MAX_NS]
        zero = int(end[known[0]])
        more = np.interp(end[own] - zero, end[known] - zero, ahead[known] - usual)
        start[gpu[own]] += usual + more.astype(np.int64)
        wrong[gpu[own]] = np.abs(ahead[own] - usual) >= _CLOCK_ERROR_MAX_NS
    found = _OpRows(
        **{name: getattr(rows, name) for name in _OpRows.__slots__} | {"start_ns": start}
    )
    return found.take(~wrong)


def _ordinals(rows: _OpRows, kinds: _Kinds) -> Ints:
    """Return for each kind the position of its communicator among those of its process.

    Lines do not say when a communicator was made. Which of two was used first may differ between
    processes. So they are ordered by their number of operations, and by the first operation if
    these numbers are similar.
    """
    first = np.full(int(kinds.stream.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, rows.stream, rows.start_ns)
    found = np.zeros(len(first), np.int64)
    process = np.zeros(len(first), np.int64)
    process[kinds.stream] = kinds.process
    many = np.log(np.maximum(np.bincount(rows.stream, minlength=len(first)), 1))
    by_many = np.argsort(many)
    alike = np.zeros(len(first), np.int64)
    alike[by_many[1:]] = np.cumsum(np.diff(many[by_many]) > _APART)
    order = np.lexsort((first, alike, process))
    begins = np.append(0, np.flatnonzero(np.diff(process[order])) + 1)
    found[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return found[kinds.stream]


def _tables(
    rows: _OpRows, kinds: _Kinds, length: int, period: int, lost: dict[Process, int]
) -> dict[Process, LineSamples]:
    order = np.lexsort((rows.start_ns, rows.process))
    rows = rows.take(order)
    ordinals = _ordinals(rows, kinds)
    numbers = np.arange(len(kinds.processes) + 1)
    bounds = np.searchsorted(rows.process, numbers)
    firsts = np.searchsorted(kinds.process, numbers)
    flags = rows.grouped * np.uint8(SAMPLE_GROUP) + rows.by_cpu * np.uint8(SAMPLE_CPU_TIMED)
    found = {}
    for number, who in enumerate(kinds.processes):
        own, first = slice(bounds[number], bounds[number + 1]), int(firsts[number])
        table = SampleColumns(
            kind=(rows.kind[own] - first).astype(np.int32),
            index=rows.number[own],
            peer=np.minimum(rows.peer[own], PEER_BEYOND).astype(np.int32),
            start_ns=rows.start_ns[own],
            time_ns=rows.time_ns[own],
            queued_ns=np.zeros(own.stop - own.start, np.int64),
            bytes=rows.bytes[own],
            flags=flags[own],
        )
        mine = range(first, int(firsts[number + 1]))
        named = tuple(kinds.kinds[at]._replace(created_ns=int(ordinals[at])) for at in mine)
        found[who] = LineSamples(named, length, period, lost.get(who, 0), table)
    return found


def _rows_max(processes: int) -> int:
    """Return how many operations to take; more would hardly improve the result, but take longer."""
    return min(_PROCESS_ROWS_MAX * processes, max(RECORDS_MAX, _PROCESS_ROWS_MIN * processes))


def sample_lines(capture: Capture) -> Sampled:
    """Return the records of each process; of a large capture only those in bursts of time."""
    why_not = _why_unjoinable(capture)
    if why_not:
        return Sampled(why_not=why_not)
    slots = _fetch(capture, _SLOTS)
    if not len(slots["slot"]):
        return Sampled(
            why_not="these lines do not say when an operation began (NVIDIA's do so only if "
            "NCCL_INSPECTOR_DUMP_VERBOSE is set)"
        )
    kinds = _kinds(capture)
    most = _rows_max(len(kinds.processes))
    length, period = choose_bursts(slots["slot"], slots["operations"], most)
    rows = _on_unix_time(_without_large_groups(_rows(capture, kinds, length, period)))
    return Sampled(_tables(rows, kinds, length, period, capture.lost))
