# SPDX-License-Identifier: Apache-2.0
"""Samples and unions of a process in a node summary; they are unpacked when they are used.

Samples have two pieces. The first is JSON: facts about all samples, then their kinds, column by
column. The second has three tables (summary/columns.py):

- ordered by start: the record's stream (index of the second table), units of 64 ns from the start
of the record before to its own, units from start to end, microseconds queued;
- streams, each a kind and a peer;
- ordered by stream, and by start within a stream: index (minus that of the record before, modulo
2^32), mantissa and flags, which hardly change within a stream.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

from nccl_inspector.box.layout import AHEAD_NS_MAX, GPUS, SAMPLES_MAX, UNION_WINDOWS, WORD_MAX
from nccl_inspector.box.sample_table import (
    PERIOD_BITS_MAX,
    SIZE_CLASS_MAX,
    SampleTable,
)
from nccl_inspector.model.process import (
    ALGOS,
    FUNCS,
    NS_PER_S,
    PROTOS,
    GpuClock,
    SampleKind,
    Union,
    UnionWindow,
    clocks_of,
)
from nccl_inspector.summary.columns import (
    START_S_MAX,
    fold,
    pack_columns,
    take_columns,
    unfold,
    unpack_columns,
)
from nccl_inspector.summary.packed_tables import inflate
from nccl_inspector.summary.streams import Stream, bytes_of
from nccl_inspector.system.checked_json import Checks, dump
from nccl_inspector.system.lazy import LazyWhole

if TYPE_CHECKING:
    from nccl_inspector.model.sample_columns import SampleColumns

UNIT_BITS = 6  # times in a summary are in units of 64 ns
UNITS_MAX = (1 << 63 - UNIT_BITS) - 1
KINDS_MAX = 1024  # the plugin has 256
UNIONS_MAX = GPUS
WINDOW_S_MAX = 1 << 31
FACTS_RAW_BYTES_MAX = 1 << 20
COLUMNS_RAW_BYTES_MAX = 2 << 20
_UNIONS_RAW_BYTES_MAX = 1 << 20

AHEAD_BITS = 10

_INDEX_MASK = (1 << 32) - 1
_check = Checks("bad_summary")

# Lowest and highest value of the numbers of kinds; others may be from 0 to WORD_MAX.
_KIND_LIMITS = {
    "nranks": (0, (1 << 31) - 1),
    "nnodes": (0, (1 << 31) - 1),
    "rank": (-1, (1 << 31) - 1),
    "gpu": (-1, GPUS - 1),
    "func": (0, len(FUNCS) - 1),
    "size_class": (0, SIZE_CLASS_MAX),
    "algo": (0, len(ALGOS) - 1),
    "proto": (0, len(PROTOS) - 1),
    "incarnation": (0, _INDEX_MASK),
}


class SampleFacts(NamedTuple):
    """The first piece: facts about all samples."""

    rows: int
    first_unit: int  # start of the first record
    length_bits: int
    period_bits: int
    lost: int
    kinds: tuple[SampleKind, ...]


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def pack_facts(table: SampleTable) -> bytes:
    """Return the first piece of samples, uncompressed."""
    kinds = [kind._replace(gpu=-1 if kind.gpu is None else kind.gpu) for kind in table.kinds]
    first_unit = table.start_ns[0] >> UNIT_BITS if table else 0
    return dump(
        [
            *(len(table), first_unit, table.length_bits, table.period_bits, table.lost),
            _columns(kinds, len(SampleKind._fields)),
        ]
    )


def _take_numbers(column: Any, rows: int, limits: tuple[int, int]) -> list[int]:
    if not isinstance(column, list) or len(column) != rows or {*map(type, column)} - {int}:
        raise _check.refused("invalid column of samples")
    if rows and (min(column) < limits[0] or max(column) > limits[1]):
        raise _check.refused("invalid number in samples")
    return column


def _take_rows(
    columns: Any, names: Sequence[str], limits: dict[str, tuple[int, int]], most: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of checked columns; the column `name` has texts."""
    if not isinstance(columns, list) or len(columns) != len(names):
        raise _check.refused("invalid table of samples")
    rows = len(_check.rows(columns[0]))
    if rows > most:
        raise _check.refused("too many rows")
    found: list[list[Any]] = []
    for name, column in zip(names, columns, strict=True):
        if name == "name":
            found.append([_check.text(text) for text in _check.rows(column, rows)])
        else:
            found.append(_take_numbers(column, rows, limits.get(name, (0, WORD_MAX))))
    return zip(*found, strict=True)


def unpack_facts(raw: bytes) -> SampleFacts:
    """Return the facts of the bytes that `pack_facts` made.

    Raises:
        RefusedError: the bytes are invalid; the reason is `bad_summary`.
    """
    rows, first_unit, length_bits, period_bits, lost, kinds = _check.rows(_check.load(raw), 6)
    found = tuple(
        SampleKind(*row) for row in _take_rows(kinds, SampleKind._fields, _KIND_LIMITS, KINDS_MAX)
    )
    _check.integer(period_bits, PERIOD_BITS_MAX)
    return SampleFacts(
        _check.integer(rows, SAMPLES_MAX),
        _check.integer(first_unit, UNITS_MAX),
        _check.integer(length_bits, period_bits),
        period_bits,
        _check.integer(lost, WORD_MAX),
        tuple(kind if kind.gpu != -1 else kind._replace(gpu=None) for kind in found),
    )


def pack_sample_columns(table: SampleTable) -> bytes:
    """Return the second piece of samples, uncompressed."""
    pairs = [kind << 16 | peer for kind, peer in zip(table.kind, table.peer, strict=True)]
    streams = sorted(set(pairs))
    place = {pair: number for number, pair in enumerate(streams)}
    stream = array("H", map(place.__getitem__, pairs))
    starts = [start_ns >> UNIT_BITS for start_ns in table.start_ns]
    # Start and end are rounded down separately: records without a gap between them still have none.
    times = [
        (start_ns + time_ns >> UNIT_BITS) - start
        for start_ns, time_ns, start in zip(table.start_ns, table.time_ns, starts, strict=True)
    ]
    order = sorted(range(len(table)), key=stream.__getitem__)
    indices = list(map(table.index.__getitem__, order))
    return (
        pack_columns(
            [stream, [0, *map(sub, starts[1:], starts)][: len(table)], times, table.queued_us]
        )
        + pack_columns([[pair >> 16 for pair in streams], [pair & 0xFFFF for pair in streams]])
        + pack_columns(
            [
                [index - before & _INDEX_MASK for before, index in pairwise((0, *indices))],
                list(map(table.mantissa.__getitem__, order)),
                list(map(table.flags.__getitem__, order)),
            ]
        )
    )


class PackedSamples:
    """The samples of a process in a node summary: see model.process.Samples.

    Invalid bytes are noticed when they are first used: RefusedError, with the reason `bad_summary`.
    """

    __slots__ = ("_columns", "_facts", "_known", "_unions")

    def __init__(self, facts: Stream, columns: Stream, unions: Sequence[Union]) -> None:
        """Take the zlib streams of both pieces, unchecked; `unions` are of the same process."""
        self._unions = unions
        self._facts = facts
        self._columns = columns
        self._known: SampleFacts | None = None

    @property
    def facts(self) -> SampleFacts:
        """The first piece: facts about all samples."""
        if self._known is None:
            self._known = unpack_facts(inflate(self._facts, FACTS_RAW_BYTES_MAX))
        return self._known

    @property
    def kinds(self) -> tuple[SampleKind, ...]:
        """The kinds of operation; `columns().kind` is an index into them."""
        return self.facts.kinds

    @property
    def clocks(self) -> tuple[GpuClock, ...]:
        """The clocks that convert GPU times into Unix time."""
        return clocks_of(self._unions)

    @property
    def length_bits(self) -> int:
        """The length of a burst is 2^length_bits ns."""
        return self.facts.length_bits

    @property
    def period_bits(self) -> int:
        """From one burst to the next it is 2^period_bits ns."""
        return self.facts.period_bits

    @property
    def lost(self) -> int:
        """The number of operations that have no record because there was no room for it in time."""
        return self.facts.lost

    @property
    def unions(self) -> Sequence[Union]:
        """The unions of the same process."""
        return self._unions

    @property
    def streams(self) -> tuple[bytes, bytes]:
        """Both pieces, as they were given.

        Raises:
            RefusedError: they cannot be read any more; the reason is `bad_summary`.
        """
        return bytes(bytes_of(self._facts)), bytes(bytes_of(self._columns))

    def __len__(self) -> int:
        """Return the number of records."""
        return self.facts.rows

    def __eq__(self, other: object) -> bool:
        """Tell whether both have the same bytes."""
        if not isinstance(other, PackedSamples):
            return NotImplemented
        return self.streams == other.streams

    def __hash__(self) -> int:
        """Return the hash of the bytes."""
        return hash(self.streams)

    def columns(self) -> "SampleColumns":
        """Return the records as numpy arrays, unpacked now.

        Raises:
            RefusedError: the second piece is invalid; the reason is `bad_summary`.
        """
        from nccl_inspector.summary.unpacked_samples import unpack_sample_columns

        return unpack_sample_columns(inflate(self._columns, COLUMNS_RAW_BYTES_MAX), self.facts)


def pack_unions(unions: Sequence[Union]) -> bytes:
    """Return the bytes of unions, uncompressed: a table of unions, then one of all windows."""
    heads = [(union.gpu, union.window_s, len(union.windows)) for union in unions]
    gaps: list[int] = []
    drifts: list[int] = []
    for union in unions:
        places = [window.start_s // union.window_s for window in union.windows]
        gaps += [place - before for before, place in pairwise((0, *places))]
        aheads = [window.ahead_ns >> AHEAD_BITS for window in union.windows]
        drifts += [fold(ahead - before) for before, ahead in pairwise((0, *aheads))]
    windows = list(chain.from_iterable(union.windows for union in unions))
    _, operations, lost, busy_ns, _ = _columns(windows, len(UnionWindow._fields))
    table = [gaps, operations, lost, busy_ns, drifts]
    return pack_columns(_columns(heads, 3)) + pack_columns(table)


def _take_windows(window_s: int, columns: Sequence[Sequence[int]]) -> tuple[UnionWindow, ...]:
    gaps, operations, lost, busy_ns, drifts = columns
    starts = [place * window_s for place in accumulate(gaps)]
    aheads = [ahead << AHEAD_BITS for ahead in accumulate(unfold(drifts))]
    if not 0 < window_s <= WINDOW_S_MAX or 0 in gaps[1:]:
        raise _check.refused("invalid union")
    if starts and starts[-1] > START_S_MAX:
        raise _check.refused("invalid union")
    if (
        max(busy_ns, default=0) > window_s * NS_PER_S
        or max(map(abs, aheads), default=0) > AHEAD_NS_MAX
    ):
        raise _check.refused("invalid union")
    rows = zip(starts, operations, lost, busy_ns, aheads, strict=True)
    return tuple(UnionWindow(*row) for row in rows)


def unpack_unions(raw: bytes) -> tuple[Union, ...]:
    """Return the unions that `pack_unions` was given; `ahead_ns` is rounded down to 1024 ns.

    Raises:
        RefusedError: the bytes are invalid; the reason is `bad_summary`.
    """
    (gpus, lengths, counts), end = take_columns(raw, 0, 3, UNIONS_MAX)
    columns = unpack_columns(raw[end:], 5, UNIONS_MAX * UNION_WINDOWS)
    ends = list(accumulate(counts))
    if (ends or [0])[-1] != len(columns[0]) or max(gpus, default=0) >= GPUS:
        raise _check.refused("invalid unions")
    return tuple(
        Union(
            gpu,
            window_s,
            _take_windows(window_s, [column[end - count : end] for column in columns]),
        )
        for gpu, window_s, count, end in zip(gpus, lengths, counts, ends, strict=True)
    )


class PackedUnions(LazyWhole[Union]):
    """The unions of a process, unpacked and checked at each use.

    Nothing unpacked is kept, because a large job has three million windows.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        """Take the zlib stream, unchecked."""
        self._stream = stream

    def raw(self) -> bytes:
        """Return the bytes of `pack_unions`, unchecked.

        Raises:
            RefusedError: the zlib stream is invalid; the reason is `bad_summary`.
        """
        return inflate(self._stream, _UNIONS_RAW_BYTES_MAX)

    def _all(self) -> tuple[Union, ...]:
        return unpack_unions(self.raw())
