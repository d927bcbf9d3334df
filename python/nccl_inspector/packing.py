# SPDX-License-Identifier: Apache-2.0
"""Rows of integers as bytes that compress well: what a node summary is made of.

Keys are varints, a row after the other. Peers, nets and the windows of a time line are
columns: how many rows (four bytes), then of each column one byte, the width of its
numbers, and their lowest bytes, their next ones and so on. So there is no loop over
single numbers, of which a job has a million.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from typing import TypeVar

from nccl_inspector.errors import RefusedError
from nccl_inspector.layout import HIST_BUCKETS
from nccl_inspector.model import ALGOS, FUNCS, PROTOS, Key, Line, Net, Peer, Window

WORD_MAX = (1 << 64) - 1
SIZE_CLASS_MAX = 63
KEYS_MAX = 1024  # of a process; the plugin has 256
ROWS_MAX = 8192  # peers or nets; the plugin has 1024 and 256
WINDOWS_MAX = 4096  # of a line; the plugin has 384

_COUNT = struct.Struct("<I")
_WORD_BYTES = 8
_KEY_NAMES = tuple(field.name for field in fields(Key) if field.name != "histogram")
_KEY_RATE = _KEY_NAMES.index("log2_rate_q20")  # the one signed word
_LIMITS = {
    "func": len(FUNCS) - 1,
    "size_class": SIZE_CLASS_MAX,
    "algo": len(ALGOS) - 1,
    "proto": len(PROTOS) - 1,
    "is_send": 1,
}
_KEY_LIMITS = tuple(_LIMITS.get(name, WORD_MAX) for name in _KEY_NAMES)
_SIGNED = frozenset({"log2_rate_q20", "best_rate_q20"})
# Communicator's id, rank + 1, func, size class, window, since, mean bytes of an operation.
_LINE = struct.Struct("<QIBBQIQ")
_START_S_MAX = (1 << 32) - 1

_Row = TypeVar("_Row", Peer, Net)


def _refuse(what: str) -> RefusedError:
    return RefusedError("bad_summary", what)


def _fold(number: int) -> int:
    """Return a number that is not negative: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unfold(number: int) -> int:
    return -(number + 1 >> 1) if number & 1 else number >> 1


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


class _Words:
    """Varints one after the other; what is not one is refused."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, limit: int = WORD_MAX) -> int:
        """Return the next number, at most `limit`."""
        number = shift = 0
        while shift < 70:
            if self._at >= len(self._data):
                raise _refuse("ends within a number")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if number > limit:
            raise _refuse("a number is too large")
        return number


def pack_keys(keys: Iterable[Key]) -> bytes:
    """Return the bytes of keys."""
    out = bytearray()
    for key in keys:
        words = [getattr(key, name) for name in _KEY_NAMES]
        words[_KEY_RATE] = _fold(words[_KEY_RATE])
        for word in (*words, len(key.histogram)):
            _varint(out, word)
        last = 0
        for bucket, count in key.histogram:
            _varint(out, bucket - last)
            _varint(out, count)
            last = bucket
    return bytes(out)


def _unpack_key(words: _Words) -> Key:
    numbers = [words.take(limit) for limit in _KEY_LIMITS]
    numbers[_KEY_RATE] = _unfold(numbers[_KEY_RATE])
    histogram, bucket = [], 0
    for _ in range(words.take(HIST_BUCKETS)):
        bucket += words.take(HIST_BUCKETS - 1 - bucket)
        histogram.append((bucket, words.take()))
    return Key(**dict(zip(_KEY_NAMES, numbers, strict=True)), histogram=tuple(histogram))


def unpack_keys(data: bytes) -> tuple[Key, ...]:
    """Return what `pack_keys` was given.

    Raises:
        RefusedError: these are no keys.
    """
    words = _Words(data)
    keys: list[Key] = []
    while words:
        if len(keys) == KEYS_MAX:
            raise _refuse("too many keys")
        keys.append(_unpack_key(words))
    return tuple(keys)


def _pack_columns(columns: Sequence[Sequence[int]]) -> bytes:
    """Return columns of one length, of numbers from 0 to WORD_MAX, as bytes."""
    parts = [_COUNT.pack(len(columns[0]))]
    for column in columns:
        width = -(-max(column, default=0).bit_length() // 8)
        raw = struct.pack(f"<{len(column)}Q", *column)
        parts += [bytes([width]), *(raw[place::_WORD_BYTES] for place in range(width))]
    return b"".join(parts)


def _unpack_columns(data: bytes, number: int, rows_max: int) -> list[Sequence[int]]:
    """Return so many columns; what follows them is refused."""
    if len(data) < _COUNT.size:
        raise _refuse("ends within a table")
    (count,) = _COUNT.unpack_from(data)
    if count > rows_max:
        raise _refuse("too many rows")
    columns: list[Sequence[int]] = []
    at = _COUNT.size
    for _ in range(number):
        width = data[at] if at < len(data) else _WORD_BYTES + 1
        at += 1
        if width > _WORD_BYTES or at + width * count > len(data):
            raise _refuse("ends within a column")
        raw = bytearray(_WORD_BYTES * count)
        for place in range(width):
            raw[place::_WORD_BYTES] = data[at : at + count]
            at += count
        columns.append(struct.unpack(f"<{count}Q", raw))
    if at != len(data):
        raise _refuse("more than its columns")
    return columns


def pack_rows(cls: type[_Row], rows: Sequence[_Row]) -> bytes:
    """Return the bytes of peers, or of nets."""
    columns: list[Sequence[int]] = []
    for field in fields(cls):
        column = [getattr(row, field.name) for row in rows]
        columns.append([_fold(word) for word in column] if field.name in _SIGNED else column)
    return _pack_columns(columns)


def unpack_rows(cls: type[_Row], data: bytes) -> tuple[_Row, ...]:
    """Return what `pack_rows` was given.

    Raises:
        RefusedError: these are none.
    """
    columns = []
    names = [field.name for field in fields(cls)]
    for name, column in zip(names, _unpack_columns(data, len(names), ROWS_MAX), strict=True):
        if max(column, default=0) > _LIMITS.get(name, WORD_MAX):
            raise _refuse("a number is too large")
        columns.append([_unfold(word) for word in column] if name in _SIGNED else column)
    return tuple(cls(*row) for row in zip(*columns, strict=True))


def _indices(windows: Sequence[Window]) -> Iterator[tuple[int, int]]:
    """Return first and last index, each from what it would be if no other kind came between."""
    expected = 1
    for window in windows:
        yield (
            _fold(window.first_index - expected),
            _fold(window.last_index - window.first_index),
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
        [_fold(size - count * mean) for size, count in zip(sizes, ops, strict=True)],
        *times,
        *zip(*_indices(line.windows), strict=True),
    ]
    return head + _pack_columns(columns)


def _take_indices(firsts: Sequence[int], lasts: Sequence[int]) -> Iterator[tuple[int, int]]:
    expected = 1
    for first, last in zip(firsts, lasts, strict=True):
        first_index = expected + _unfold(first)
        expected = first_index + _unfold(last) + 1
        yield first_index, expected - 1


def unpack_line(data: bytes) -> Line:
    """Return what `pack_line` was given.

    Raises:
        RefusedError: this is no time line.
    """
    if len(data) < _LINE.size:
        raise _refuse("ends within a time line")
    comm_id, rank, func, size_class, window_s, since_s, mean = _LINE.unpack_from(data)
    columns = _unpack_columns(data[_LINE.size :], len(Window._fields), WINDOWS_MAX)
    gaps, lates, ops, sizes, *times, firsts, lasts = columns
    starts = [(one + n) * window_s for n, one in enumerate(accumulate(gaps))]
    sizes = [_unfold(size) + count * mean for size, count in zip(sizes, ops, strict=True)]
    indices = list(zip(*_take_indices(firsts, lasts), strict=True))
    if not starts or not window_s or starts[-1] > _START_S_MAX or not all(ops):
        raise _refuse("an odd time line")
    if func >= len(FUNCS) or size_class > SIZE_CLASS_MAX or min(*sizes, *indices[0]) < 0:
        raise _refuse("an odd time line")
    rows = zip(starts, lates, ops, sizes, *times, *indices, strict=True)
    windows = tuple(map(Window._make, rows))
    return Line(comm_id, rank - 1, func, size_class, window_s, since_s, windows)
