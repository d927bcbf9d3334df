# SPDX-License-Identifier: Apache-2.0
"""The operations of a capture as the exact records that a box keeps: `model.Samples`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.replay.arrays import Ints, Mask, medians, number_rows
from nccl_inspector.capture.contents import Bursts, Capture, Process
from nccl_inspector.capture.ids import comm_id, index_of
from nccl_inspector.capture.line_records import RANKS_MAX
from nccl_inspector.capture.second_look import RECORD_KIND
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

_APART = 0.3  # numbers of operations differ if their logarithms differ by more
_GROUP_MEMBERS_MAX = 8  # the plugin keeps no records of the members of larger groups
_CLOCK_WINDOW_NS = 60 * NS_PER_S
_ONE_CLOCK_NS = NS_PER_S // 10  # GPUs of a process whose clocks differ by less share a clock
_QUEUED_NS_MIN = 1000  # as in a box, where 0 is not known
_CLOCK_ERROR_MAX_NS = 3600 * NS_PER_S  # a start that is this far from the end's Unix time is wrong

_KINDS = f"""
select {RECORD_KIND}, hostname, pid, comm, rank, func, size_class, algo, proto,
    min(comm_name), max(nranks), max(nnodes)
from counted group by hostname, pid, comm, rank, func, size_class, algo, proto
order by hostname, pid, comm, rank, func, size_class, algo, proto
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
    called_ns: Ints  # Unix time of the call; 0: not known
    bytes: Ints
    sn: Ints
    grouped: Mask
    by_cpu: Mask

    def take(self, which: Mask | Ints) -> "_OpRows":
        return _OpRows(*(getattr(self, name)[which] for name in self.__slots__))


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


def _rows(capture: Capture, kinds: _Kinds) -> _OpRows:
    """Return the operations in the bursts."""
    found = capture.arrays("from records order by all")
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
    order = np.lexsort((end, ahead, window))
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
        if not len(known):  # its times are of clocks that are hours apart
            wrong[gpu[own]] = True
            continue
        zero = int(end[known[0]])
        more = np.interp(end[own] - zero, end[known] - zero, ahead[known] - usual)
        start[gpu[own]] += usual + more.astype(np.int64)
        wrong[gpu[own]] = np.abs(ahead[own] - usual) >= _CLOCK_ERROR_MAX_NS
    found = _OpRows(
        **{name: getattr(rows, name) for name in _OpRows.__slots__} | {"start_ns": start}
    )
    return found.take(~wrong)


def _queued_ns(rows: _OpRows) -> Ints:
    """Return for how long each operation was queued, as a box has it; rows are on Unix time."""
    queued = np.maximum(rows.start_ns - rows.called_ns, _QUEUED_NS_MIN)
    found: Ints = np.where(rows.called_ns > 0, queued, 0)
    return found


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
    rows: _OpRows, kinds: _Kinds, bursts: Bursts, lost: dict[Process, int]
) -> dict[Process, LineSamples]:
    order = np.lexsort((rows.start_ns, rows.process))
    rows = rows.take(order)
    ordinals = _ordinals(rows, kinds)
    numbers = np.arange(len(kinds.processes) + 1)
    bounds = np.searchsorted(rows.process, numbers)
    firsts = np.searchsorted(kinds.process, numbers)
    queued = _queued_ns(rows)
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
            queued_ns=queued[own],
            bytes=rows.bytes[own],
            flags=flags[own],
        )
        mine = range(first, int(firsts[number + 1]))
        named = tuple(kinds.kinds[at]._replace(created_ns=int(ordinals[at])) for at in mine)
        found[who] = LineSamples(
            named, bursts.length_bits, bursts.period_bits, lost.get(who, 0), table
        )
    return found


def sample_lines(capture: Capture) -> dict[Process, LineSamples]:
    """Return the records of each process; of a large capture only those in bursts of time."""
    if capture.bursts is None:
        return {}
    kinds = _kinds(capture)
    rows = _on_unix_time(_without_large_groups(_rows(capture, kinds)))
    return _tables(rows, kinds, capture.bursts, capture.lost)
