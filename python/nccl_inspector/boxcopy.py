# SPDX-License-Identifier: Apache-2.0
"""Copy a box out of its process's reach and check that its header and tables fit the file.

Bounded in memory by BOX_BYTES_MAX, read with pread only: a mapping would let the
user end the reader with SIGBUS by cutting the file.
"""

from dataclasses import dataclass

from nccl_inspector.errors import RefusedError
from nccl_inspector.hostile import read_at
from nccl_inspector.layout import COMM, HEADER, HIST, KEY, MAGIC, OP, VERSION, Record

BOX_BYTES_MAX = 8 << 20  # the plugin's own is 1.8 MB, design.md allows it 4 MiB
NS_MAX = (1 << 63) - 1

_HEADER_BYTES_MAX = 1 << 16
# Four times the plugin's own tables and more: a later release may have larger ones.
_ROWS_MAX = {"comm": 1024, "key": 1024, "hist": 1024, "op": 65536}


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a box, inside the file and aligned."""

    offset: int
    count: int
    record: Record

    def bases(self) -> range:
        """Return where each record begins."""
        return range(self.offset, self.offset + self.count * self.record.size, self.record.size)


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """A copy of a box whose header and tables fit the file."""

    data: bytes
    comms: Table
    keys: Table
    hists: Table
    ops: Table

    def real_ns(self, tick: int) -> int:
        """Return the Unix time of a tick, 0 for no tick, counted from the nearest known."""
        if not tick:
            return 0
        near = HEADER.number(self.data, "beat_tick")
        since, base = ("beat_tick", "beat_real_ns") if near else ("clock.tick0", "clock.real0_ns")
        return min(max(HEADER.number(self.data, base) + self.span_ns(since, tick), 0), NS_MAX)

    def span_ns(self, since: str, tick: int) -> int:
        """Return the time from the tick in the header's member `since` to `tick`."""
        ticks = tick - HEADER.number(self.data, since)
        return ticks * HEADER.number(self.data, "clock.ns_per_tick_q32") >> 32


def read_state(fd: int) -> int:
    """Return the state word of a box; 0 when it has none yet.

    Raises:
        RefusedError: the file cannot be read.
    """
    data = read_at(fd, HEADER.offsets["state"] + 4, 0)
    whole = len(data) == HEADER.offsets["state"] + 4 and data.startswith(MAGIC)
    return HEADER.number(data, "state") if whole else 0


def _table(header: bytes, size: int, word: str, record: Record) -> Table:
    offset, bytes_each, count = (
        HEADER.number(header, f"{word}_{part}") for part in ("offset", "bytes", "count")
    )
    if count > _ROWS_MAX[word]:
        raise RefusedError("bad_box", f"{count} {word}s")
    if bytes_each != record.size or offset % 8 or offset < HEADER.number(header, "header_bytes"):
        raise RefusedError("bad_box", f"odd table of {word}s")
    if offset + bytes_each * count > size:
        raise RefusedError("bad_box", f"the table of {word}s goes beyond the file")
    return Table(offset, count, record)


def copy_box(fd: int, size: int) -> BoxCopy:
    """Return a copy of a box of `size` bytes.

    Raises:
        RefusedError: not a box, or one that contradicts itself; the reason is `bad_box`.
    """
    if not HEADER.size <= size <= BOX_BYTES_MAX:
        raise RefusedError("bad_box", f"{size} bytes")
    data = read_at(fd, size, 0)
    if len(data) != size:
        raise RefusedError("bad_box", "cut short while it was read")
    if not data.startswith(MAGIC):
        raise RefusedError("bad_box", "no magic word")
    if HEADER.number(data, "version") != VERSION:
        raise RefusedError("bad_box", f"version {HEADER.number(data, 'version')}")
    if not HEADER.size <= HEADER.number(data, "header_bytes") <= _HEADER_BYTES_MAX:
        raise RefusedError("bad_box", "odd header")
    if HEADER.number(data, "file_bytes") != size:
        raise RefusedError("bad_box", "not of the size that it says")
    comms, keys = _table(data, size, "comm", COMM), _table(data, size, "key", KEY)
    hists, ops = _table(data, size, "hist", HIST), _table(data, size, "op", OP)
    if hists.count != keys.count:
        raise RefusedError("bad_box", "not one histogram for each key")
    return BoxCopy(data, comms, keys, hists, ops)


def has_moved(fd: int, copy: BoxCopy, alive: bool) -> bool:
    """Tell whether the process folded, or was adding to a key, while the copy was made.

    A process that died while adding left one operation half added, which is no more
    than its due; one that died while folding left figures that belong to nobody.
    """
    if not alive:
        return HEADER.number(copy.data, "layout_seq") % 2 == 1
    header = read_at(fd, HEADER.size, 0)
    table = read_at(fd, copy.keys.count * KEY.size, copy.keys.offset)
    if len(header) < HEADER.size or len(table) < copy.keys.count * KEY.size:
        return True
    sequence = HEADER.number(copy.data, "layout_seq")
    if sequence % 2 or sequence != HEADER.number(header, "layout_seq"):
        return True
    return any(
        KEY.number(copy.data, "ops", base) != KEY.number(table, "begun", base - copy.keys.offset)
        for base in copy.keys.bases()
    )
