# SPDX-License-Identifier: Apache-2.0
"""Read a 64-bit shared library without loading it: its machine, its exports, its numbers.

A library that is loaded runs in the process that loads it, and one that was cut short kills it.
"""

import re
import struct
from dataclasses import dataclass

MACHINES = {62: "x86-64", 183: "aarch64"}
NUMBERS = {"x86_64": 62, "aarch64": 183}  # by what `uname -m` prints
BYTES_MAX = 64 << 20

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _DYNSYM = 1, 11
_SYMBOLS_MAX = 20_000
_GLIBC = re.compile(rb"\0GLIBC_2\.([0-9]{1,2})(?:\.[0-9]+)?(?=\0)")


@dataclass(frozen=True, slots=True)
class Elf:
    """`numbers`: exported objects of four bytes. `cut`: the file ends before its segments do.

    `glibc`: the newest version of glibc that it needs or, if it is glibc itself, has.
    """

    machine: int
    exports: frozenset[str]
    numbers: dict[str, int]
    cut: bool
    glibc: tuple[int, int] | None


def parse_elf(data: bytes) -> Elf:
    """Return what a library says of itself.

    Raises:
        ValueError: it is not a 64-bit little-endian ELF file.
    """
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit shared library")
    head = _HEADER.unpack_from(data)
    machine, segments_at, sections_at = head[2], head[5], head[6]
    segments = _table(data, _SEGMENT, segments_at, head[10])
    loaded = [(one[3], one[2], one[5]) for one in segments or () if one[0] == _LOAD]
    sections = _table(data, _SECTION, sections_at, head[12])
    ends = [offset + size for _, offset, size in loaded]
    cut = segments is None or not loaded or max(ends) > len(data)
    found = [int(match[1]) for match in _GLIBC.finditer(data)]
    glibc = (2, max(found)) if found else None
    exports, numbers = _symbols(data, sections or [], loaded)
    return Elf(machine, exports, numbers, cut, glibc)


def _table(
    data: bytes, form: struct.Struct, offset: int, count: int
) -> list[tuple[int, ...]] | None:
    """Return the records of a table; None if it is not all there."""
    if offset + count * form.size > len(data):
        return None
    return [form.unpack_from(data, offset + at * form.size) for at in range(count)]


def _symbols(
    data: bytes, sections: list[tuple[int, ...]], loaded: list[tuple[int, int, int]]
) -> tuple[frozenset[str], dict[str, int]]:
    names, numbers = set(), {}
    for section in sections:
        kind, offset, size, link = section[1], section[4], section[5], section[6]
        if kind != _DYNSYM or link >= len(sections):
            continue
        count = min(size // _SYMBOL.size, _SYMBOLS_MAX)
        strings = sections[link][4]
        for symbol in _table(data, _SYMBOL, offset, count) or ():
            name_at, _, _, place, address, length = symbol
            end = data.find(b"\0", strings + name_at)
            if not place or not name_at or end < 0:
                continue
            name = data[strings + name_at : end].decode("ascii", "replace")
            names.add(name)
            if length == 4 and (word := _word(data, loaded, address)) is not None:
                numbers[name] = word
    return frozenset(names), numbers


def _word(data: bytes, loaded: list[tuple[int, int, int]], address: int) -> int | None:
    for start, offset, size in loaded:
        at = offset + address - start
        if start <= address <= start + size - 4 and at + 4 <= len(data):
            return int.from_bytes(data[at : at + 4], "little")
    return None
