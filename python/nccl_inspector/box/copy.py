# SPDX-License-Identifier: Apache-2.0
"""Copy a box into memory that its process cannot change; check its header and tables.

Samples, unions, channels and labels are not copied: box/sample_reader.py reads them when a job has
ended.
Memory is bounded by BOX_BYTES_MAX. The box is read with pread and not mapped: a user could end a
reader of a mapping with SIGBUS by cutting the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress

from nccl_inspector.box.layout import (
    COMM,
    HEADER,
    HIST,
    KEY,
    LINE,
    MAGIC,
    NET,
    OP,
    PEER,
    SAMPLES_MAX,
    VERSION,
    Reader,
    Struct,
)
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.safe_files import read_at

BOX_BYTES_MAX = 8 << 20  # the plugin's own box is 2.9 MiB
NS_MAX = (1 << 63) - 1

_HEADER_BYTES_MAX = 1 << 16
# At least four times the plugin's own tables, because a later release may have larger ones.
_ROWS_MAX = {
    "comm": 1024,
    "key": 1024,
    "hist": 1024,
    "op": 65536,
    "peer": 8192,
    "line": 64,
    "net": 1024,
    "sample": SAMPLES_MAX,
    "sample_kind": 1024,
    "union": 16,
    "skew": 1024,
    "label": 256,
}
# For Table.places: records in use have 1 in `used`.
USED = bytes(byte == 1 for byte in range(256))

_KEY_OPS, _KEY_BEGUN = KEY.reader("ops"), KEY.reader("begun")
_PEER_OPS, _PEER_BEGUN = PEER.reader("ops"), PEER.reader("begun")
_COMM_OPS = COMM.reader("enqueued", "completed")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a box; it lies inside the file and is aligned."""

    offset: int
    count: int
    record: Struct

    def bases(self) -> range:
        """Return the offset of each record."""
        return range(self.offset, self.offset + self.length, self.record.size)

    @property
    def length(self) -> int:
        """The size of the table in bytes."""
        return self.count * self.record.size

    def places(self, data: bytes, member: str, wanted: bytes) -> Iterator[int]:
        """Yield the indices of records whose `member` may be wanted, judged by its lowest byte.

        `wanted` has 256 bytes; byte values whose entry is not 0 are wanted. Most records of a box
        are unused, and this skips them faster than a look at each record.
        """
        first = self.offset + self.record.offsets[member]
        lowest = data[first : self.offset + self.length : self.record.size]
        return compress(range(self.count), lowest.translate(wanted))

    def rows(self, data: bytes, reader: Reader) -> Iterator[tuple[int, ...]]:
        """Yield the reader's integers of each record, in the order of the record's members."""
        return reader.words.iter_unpack(memoryview(data)[self.offset : self.offset + self.length])


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """A copy of a box; its header and tables fit the file."""

    data: bytes
    comms: Table
    keys: Table
    hists: Table
    ops: Table
    peers: Table
    lines: Table
    nets: Table

    def real_ns(self, tick: int) -> int:
        """Return the Unix time of a tick in ns, counted from the nearest known; 0 for tick 0."""
        return real_ns(self.data, tick)

    def span_ns(self, since: str, tick: int) -> int:
        """Return the ns from the tick in the header's member `since` to `tick`; may be negative."""
        return _span_ns(self.data, since, tick)


def _span_ns(header: bytes, since: str, tick: int) -> int:
    ticks = tick - HEADER.number(header, since)
    return ticks * HEADER.number(header, "clock.ns_per_tick_q32") >> 32


def real_ns(header: bytes, tick: int) -> int:
    """Return the Unix time of a tick by a box's header, as BoxCopy.real_ns."""
    if not tick:
        return 0
    near = HEADER.number(header, "beat_tick")
    since, base = ("beat_tick", "beat_real_ns") if near else ("clock.tick0", "clock.real0_ns")
    return min(max(HEADER.number(header, base) + _span_ns(header, since, tick), 0), NS_MAX)


def read_state(fd: int) -> int:
    """Return the state word of a box; 0 if the file has none yet.

    Raises:
        RefusedError: the file cannot be read.
    """
    data = read_at(fd, HEADER.offsets["state"] + 4, 0)
    whole = len(data) == HEADER.offsets["state"] + 4 and data.startswith(MAGIC)
    return HEADER.number(data, "state") if whole else 0


def find_table(header: bytes, size: int, word: str, record: Struct) -> Table:
    """Return the place of a table, from the header of a box of `size` bytes.

    Raises:
        RefusedError: it is not within the box, or is of another release; the reason is `bad_box`.
    """
    offset, bytes_each, count = (
        HEADER.number(header, f"{word}_{part}") for part in ("offset", "bytes", "count")
    )
    if count > _ROWS_MAX[word]:
        raise RefusedError("bad_box", f"too many {word}s: {count}")
    if bytes_each != record.size or offset % 8 or offset < HEADER.number(header, "header_bytes"):
        raise RefusedError("bad_box", f"the table of {word}s is invalid")
    if offset + bytes_each * count > size:
        raise RefusedError("bad_box", f"the table of {word}s goes beyond the file")
    return Table(offset, count, record)


def read_table(fd: int, table: Table) -> bytes:
    """Return the current bytes of one table.

    Raises:
        RefusedError: the box has become shorter than that; the reason is `bad_box`.
    """
    data = read_at(fd, table.length, table.offset)
    if len(data) != table.length:
        raise RefusedError("bad_box", "cut short while it was read")
    return data


def check_header(data: bytes, size: int) -> None:
    """Check the beginning of a box of `size` bytes.

    Raises:
        RefusedError: it is not a box, or is of another release; the reason is `bad_box`.
    """
    if not data.startswith(MAGIC):
        raise RefusedError("bad_box", "it does not begin like a box")
    if HEADER.number(data, "version") != VERSION:
        raise RefusedError("bad_box", f"unknown version {HEADER.number(data, 'version')}")
    if not HEADER.size <= HEADER.number(data, "header_bytes") <= _HEADER_BYTES_MAX:
        raise RefusedError("bad_box", "invalid size of the header")
    if HEADER.number(data, "file_bytes") != size:
        raise RefusedError("bad_box", "its size is not the one in its header")


def _find_tables(data: bytes, size: int) -> dict[str, Table]:
    """Return the tables of a BoxCopy; each lies within the first `size` bytes of the box."""
    records = {
        "comm": COMM, "key": KEY, "hist": HIST, "op": OP, "peer": PEER, "line": LINE, "net": NET,
    }  # fmt: skip
    return {f"{word}s": find_table(data, size, word, one) for word, one in records.items()}


def read_header(fd: int, size: int) -> bytes:
    """Return the header of a box of `size` bytes.

    Raises:
        RefusedError: not a box, or it contradicts itself; the reason is `bad_box`.
    """
    if not HEADER.size <= size <= BOX_BYTES_MAX:
        raise RefusedError("bad_box", f"impossible size: {size} bytes")
    header = read_at(fd, HEADER.size, 0)
    if len(header) != HEADER.size:
        raise RefusedError("bad_box", "cut short while it was read")
    check_header(header, size)
    return header


def copy_box(fd: int, size: int) -> BoxCopy:
    """Return a copy of a box of `size` bytes.

    Raises:
        RefusedError: not a box, or it contradicts itself; the reason is `bad_box`.
    """
    header = read_header(fd, size)
    # These tables come first in a box; what is behind them is not read.
    end = max(table.offset + table.length for table in _find_tables(header, size).values())
    data = read_at(fd, max(end, HEADER.size), 0)
    if len(data) < end:
        raise RefusedError("bad_box", "cut short while it was read")
    check_header(data, size)
    copy = BoxCopy(data, **_find_tables(data, len(data)))
    if copy.hists.count != copy.keys.count:
        raise RefusedError("bad_box", "the number of histograms does not fit the keys")
    return copy


def _was_adding(fd: int, copy: BoxCopy, table: Table, ops: Reader, begun: Reader) -> bool:
    """Tell whether the process added to a table while it was copied, or had added only half."""
    again = read_at(fd, table.length, table.offset)
    if len(again) < table.length:
        return True
    before = table.rows(copy.data, ops)
    return any(row != now for row, now in zip(before, begun.words.iter_unpack(again), strict=True))


def has_moved(fd: int, copy: BoxCopy, alive: bool) -> bool:
    """Tell whether anything was enqueued, completed or folded while the copy was made.

    A process that died while it added has left one operation half added, which is within the
    expected error. One that died while it folded has left figures that belong to no communicator.
    """
    if not alive:
        return HEADER.number(copy.data, "layout_seq") % 2 == 1
    if _was_adding(fd, copy, copy.keys, _KEY_OPS, _KEY_BEGUN):
        return True
    if _was_adding(fd, copy, copy.peers, _PEER_OPS, _PEER_BEGUN):
        return True
    if _was_adding(fd, copy, copy.comms, _COMM_OPS, _COMM_OPS):
        return True
    # Read last, so that it covers folding at any time since the copy of the header.
    header = read_at(fd, HEADER.size, 0)
    sequence = HEADER.number(copy.data, "layout_seq")
    return (
        len(header) < HEADER.size
        or sequence % 2 == 1
        or sequence != HEADER.number(header, "layout_seq")
    )
