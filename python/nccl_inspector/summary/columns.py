# SPDX-License-Identifier: Apache-2.0
"""Turn rows of integers into bytes that compress well; a node summary is made of these.

A table begins with its number of rows (four bytes). Each column follows: one byte for the width of
its numbers in bytes, then the lowest byte of every number, then the next byte of every number, and
so on. So no Python loop goes over single numbers, of which a job has millions.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import accumulate, pairwise
from operator import add, sub
from typing import Any, NamedTuple, cast

from nccl_inspector.box.layout import HIST_BUCKETS, WORD_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX
from nccl_inspector.model.process import ALGOS, FUNCS, PROTOS, Histogram, Key, Line, Peer, Window

KEYS_MAX = 1024  # for a process; the plugin has 256
ROWS_MAX = 8192  # for peers; the plugin has 1024
WINDOWS_MAX = 4096  # for a line; the plugin has 384

_COUNT = struct.Struct("<I")
_WORD_BYTES = 8
# Bytes in memory: the object of a row; a number up to 255 (only a reference); any other number.
_ROW_BYTES, _POINTER_BYTES, _NUMBER_BYTES = 64, 8, 40
_KEY_NAMES = tuple(name for name in Key._fields if name != "histogram")
_PEER_NAMES = tuple(field.name for field in fields(Peer))
_KEY_HISTOGRAM = Key._fields.index("histogram")
_KEY_RATE = _KEY_NAMES.index("log2_rate_q20")  # the only signed number
_LIMITS = {
    "func": len(FUNCS) - 1,
    "size_class": SIZE_CLASS_MAX,
    "algo": len(ALGOS) - 1,
    "proto": len(PROTOS) - 1,
}
_KEY_LIMITS = tuple(
    (place, _LIMITS[name]) for place, name in enumerate(_KEY_NAMES) if name in _LIMITS
)
_SIGNED = frozenset({"log2_rate_q20", "best_rate_q20"})
# Communicator's id, rank + 1, func, size class, window, since, mean bytes of an operation.
_LINE = struct.Struct("<QIBBQIQ")
LINE_HEAD_BYTES = _LINE.size
LINE_BYTES_MAX = LINE_HEAD_BYTES + 5 + len(Window._fields) * (1 + _WORD_BYTES * WINDOWS_MAX)
START_S_MAX = (1 << 32) - 1
_WINDOW_S_MAX = 1 << 34

# Faster than `_make`, which checks the number of values again.
_MAKE_WINDOW = cast(Callable[[Iterable[int]], Window], partial(tuple.__new__, Window))
_MAKE_KEY = cast(Callable[[Iterable[Any]], Key], partial(tuple.__new__, Key))
_MAKE_HISTOGRAM = cast(Callable[[Iterable[Any]], Histogram], partial(tuple.__new__, Histogram))


class Planes(NamedTuple):
    """Packed columns: for each the width of its numbers, and their bytes, plane by plane."""

    rows: int
    columns: list[tuple[int, bytes]]


class LineHead(NamedTuple):
    """The first values of a packed time line; `mean` is the mean size in bytes of an operation."""

    comm_id: int
    rank: int
    func: int
    size_class: int
    window_s: int
    since_s: int
    mean: int


def refuse(what: str) -> RefusedError:
    """Return the error of what is no table."""
    return RefusedError("bad_summary", what)


def fold(number: int) -> int:
    """Return a number that is not negative: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def unfold(numbers: Iterable[int]) -> list[int]:
    """Return the numbers that `fold` was given."""
    return [~(number >> 1) if number & 1 else number >> 1 for number in numbers]


def pack_columns(columns: Sequence[Sequence[int]]) -> bytes:
    """Return the bytes of columns that have equal lengths and numbers from 0 to WORD_MAX."""
    parts = [_COUNT.pack(len(columns[0]))]
    for column in columns:
        width = -(-max(column, default=0).bit_length() // 8)
        raw = struct.pack(f"<{len(column)}Q", *column)
        parts += [bytes([width]), *(raw[place::_WORD_BYTES] for place in range(width))]
    return b"".join(parts)


def take_planes(data: bytes, at: int, number: int, rows_max: int) -> tuple[Planes, int]:
    """Return `number` columns that begin at `at`, still packed, and where they end."""
    if at + _COUNT.size > len(data):
        raise refuse("ends within a table")
    (count,) = _COUNT.unpack_from(data, at)
    if count > rows_max:
        raise refuse("too many rows")
    columns: list[tuple[int, bytes]] = []
    at += _COUNT.size
    for _ in range(number):
        width = data[at] if at < len(data) else _WORD_BYTES + 1
        at += 1
        if width > _WORD_BYTES or at + width * count > len(data):
            raise refuse("ends within a column")
        columns.append((width, data[at : at + width * count]))
        at += width * count
    return Planes(count, columns), at


def memory_of(data: bytes, tables: Sequence[int]) -> int:
    """Return about how many bytes of objects the packed tables become; of torn data, what is there.

    `tables`: the number of columns of each. A column of zeros takes no room in the file.
    """
    found = at = 0
    for number in tables:
        if at + _COUNT.size > len(data):
            break
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        found += _ROW_BYTES * count
        for _ in range(number):
            width = data[at] if at < len(data) else 0
            found += count * (_POINTER_BYTES if width < 2 else _NUMBER_BYTES)
            at += 1 + width * count
    return found


def take_columns(
    data: bytes, at: int, number: int, rows_max: int
) -> tuple[list[Sequence[int]], int]:
    """Return `number` columns that begin at `at`, and where they end."""
    planes, end = take_planes(data, at, number, rows_max)
    return [unpack_column(raw, width, planes.rows) for width, raw in planes.columns], end


def unpack_column(planes: bytes, width: int, count: int) -> Sequence[int]:
    """Return the numbers of a column from its byte planes, the lowest bytes first."""
    if width < 2:
        return planes or bytes(count)  # a column of zeros has width 0
    raw = bytearray(_WORD_BYTES * count)
    for place in range(width):
        raw[place::_WORD_BYTES] = planes[place * count : (place + 1) * count]
    return struct.unpack(f"<{count}Q", raw)


def unpack_columns(data: bytes, number: int, rows_max: int) -> list[Sequence[int]]:
    """Return `number` columns; anything after them is refused."""
    columns, end = take_columns(data, 0, number, rows_max)
    if end != len(data):
        raise refuse("data behind the last column")
    return columns


# Columns of the table of keys, and of the table of all their histograms.
KEY_TABLES = len(_KEY_NAMES) + 1, 2
PEER_TABLES = (len(_PEER_NAMES),)


def pack_keys(keys: Sequence[Key]) -> bytes:
    """Return the bytes of keys: a table of keys, then one of the pairs of all histograms."""
    columns: list[Sequence[int]] = []
    for name in _KEY_NAMES:
        column = [getattr(key, name) for key in keys]
        columns.append([fold(word) for word in column] if name in _SIGNED else column)
    columns.append([len(key.histogram.counts) for key in keys])
    gaps = [
        bucket - before for key in keys for before, bucket in pairwise((0, *key.histogram.buckets))
    ]
    counts = [count for key in keys for count in key.histogram.counts]
    return pack_columns(columns) + pack_columns([gaps, counts])


def unpack_keys(data: bytes) -> tuple[Key, ...]:
    """Return the keys that `pack_keys` was given.

    Raises:
        RefusedError: the bytes are invalid.
    """
    columns, at = take_columns(data, 0, len(_KEY_NAMES) + 1, KEYS_MAX)
    gaps, counts = unpack_columns(data[at:], 2, KEYS_MAX * HIST_BUCKETS)
    *columns, lengths = columns
    if 0 in counts:
        raise refuse("invalid histogram")
    for place, limit in _KEY_LIMITS:
        if max(columns[place], default=0) > limit:
            raise refuse("a number is too large")
    columns[_KEY_RATE] = unfold(columns[_KEY_RATE])
    if sum(lengths) != len(gaps):
        raise refuse("the number of rows does not fit the histograms")
    histograms: list[Histogram] = []
    at = 0
    for length in lengths:
        end = at + length
        buckets = tuple(accumulate(gaps[at:end]))
        if length and buckets[-1] >= HIST_BUCKETS:
            raise refuse("invalid histogram")
        histograms.append(_MAKE_HISTOGRAM((buckets, tuple(counts[at:end]))))
        at = end
    before, after = columns[:_KEY_HISTOGRAM], columns[_KEY_HISTOGRAM:]
    return tuple(map(_MAKE_KEY, zip(*before, histograms, *after, strict=True)))


def pack_peers(peers: Sequence[Peer]) -> bytes:
    """Return the bytes of peers."""
    columns: list[Sequence[int]] = []
    for name in _PEER_NAMES:
        column = [getattr(peer, name) for peer in peers]
        columns.append([fold(word) for word in column] if name in _SIGNED else column)
    return pack_columns(columns)


def unpack_peers(data: bytes) -> tuple[Peer, ...]:
    """Return the peers that `pack_peers` was given.

    Raises:
        RefusedError: the bytes are invalid.
    """
    columns = []
    for name, column in zip(
        _PEER_NAMES, unpack_columns(data, len(_PEER_NAMES), ROWS_MAX), strict=True
    ):
        if max(column, default=0) > _LIMITS.get(name, WORD_MAX):
            raise refuse("a number is too large")
        columns.append(unfold(column) if name in _SIGNED else column)
    peers = tuple(Peer(*row) for row in zip(*columns, strict=True))
    if not all(peer.has_possible_rate() for peer in peers):
        raise refuse("a rate cannot be true")
    return peers


def _indices(windows: Sequence[Window]) -> Iterator[tuple[int, int]]:
    """Yield first and last index of each window, as differences from an unbroken count."""
    expected = 1
    for window in windows:
        yield (
            fold(window.first_index - expected),
            fold(window.last_index - window.first_index),
        )
        expected = window.last_index + 1


def pack_line(line: Line) -> bytes:
    """Return the bytes of a time line; the sum of each of its columns must be below 2^63."""
    starts, lates, ops, sizes, *times, _, _ = zip(*line.windows, strict=True)
    places = [start_s // line.window_s for start_s in starts]
    mean = sum(sizes) // sum(ops)
    head = _LINE.pack(
        line.comm_id, line.rank + 1, line.func, line.size_class, line.window_s, line.since_s, mean
    )
    columns = [
        [places[0], *(next_ - one - 1 for one, next_ in pairwise(places))],
        lates,
        ops,
        [fold(size - count * mean) for size, count in zip(sizes, ops, strict=True)],
        *times,
        *zip(*_indices(line.windows), strict=True),
    ]
    return head + pack_columns(columns)


def _take_indices(firsts: Sequence[int], lasts: Sequence[int]) -> tuple[list[int], list[int]]:
    gaps, lengths = unfold(firsts), unfold(lasts)
    ends = [end + n for n, end in enumerate(accumulate(map(add, gaps, lengths)), 1)]
    return list(map(sub, ends, lengths)), ends


def line_head(data: bytes) -> LineHead:
    """Return the first values of a packed time line.

    Raises:
        RefusedError: it is too short, or its values are invalid.
    """
    if len(data) < _LINE.size:
        raise refuse("ends within a time line")
    comm_id, rank, *rest = _LINE.unpack_from(data)
    head = LineHead(comm_id, rank - 1, *rest)
    known = head.func < len(FUNCS) and head.size_class <= SIZE_CLASS_MAX
    if not 0 < head.window_s <= _WINDOW_S_MAX or not known:
        raise refuse("invalid time line")
    return head


def line_planes(data: bytes) -> Planes:
    """Return the columns of a time line: gaps between windows, then Window's other members.

    Bytes and indices are folded differences from their expected values (`pack_line`).

    Raises:
        RefusedError: the columns are invalid or empty.
    """
    planes, end = take_planes(data, _LINE.size, len(Window._fields), WINDOWS_MAX)
    if end != len(data) or not planes.rows:
        raise refuse("invalid time line")
    return planes


def unpack_line(data: bytes) -> Line:
    """Return the line that `pack_line` was given.

    Raises:
        RefusedError: the bytes are invalid.
    """
    head, planes = line_head(data), line_planes(data)
    columns = [unpack_column(raw, width, planes.rows) for width, raw in planes.columns]
    gaps, lates, ops, sizes, *times, firsts, lasts = columns
    starts = [(one + n) * head.window_s for n, one in enumerate(accumulate(gaps))]
    sizes = [size + count * head.mean for size, count in zip(unfold(sizes), ops, strict=True)]
    indices = _take_indices(firsts, lasts)
    if starts[-1] > START_S_MAX or not all(ops) or min(*sizes, *indices[0]) < 0:
        raise refuse("invalid time line")
    rows = zip(starts, lates, ops, sizes, *times, *indices, strict=True)
    windows = tuple(map(_MAKE_WINDOW, rows))
    return Line(*head[:-1], windows)
