# SPDX-License-Identifier: Apache-2.0
"""Read the lines of any file safely: with a length limit, and unpacked as far as possible."""

import os
import zlib
from collections import Counter
from collections.abc import Iterator

# A verbose line with 64 channels has 16 KB; a proxy trace of v4.4 with all its steps has a little
# more.
LINE_BYTES_MAX = 256 << 10
_CHUNK_BYTES = 1 << 20
# gzip shrinks even lines that are alike at most fiftyfold. A file that unpacks to much more was
# made to fill a disk.
_RATIO_MAX, _SMALL_BYTES = 300, 64 << 20


def _chunks(fd: int, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    at = begin
    while chunk := os.pread(fd, min(_CHUNK_BYTES, _CHUNK_BYTES if end is None else end - at), at):
        at += len(chunk)
        yield chunk


def _unpacked(packed: Iterator[bytes], refused: Counter[str]) -> Iterator[bytes]:
    """Yield the contents of gzip members, up to where the file is truncated or no valid gzip."""
    unpacker = zlib.decompressobj(wbits=31)
    room = _SMALL_BYTES
    for chunk in packed:
        data = chunk
        room += _RATIO_MAX * len(chunk)
        while data:
            try:
                found = unpacker.decompress(data, _CHUNK_BYTES)
            except zlib.error:
                refused["gzip_broken"] += 1
                return
            room -= len(found)
            if room < 0:
                refused["gzip_too_large"] += 1
                return
            if found:
                yield found
            if unpacker.eof:
                data = unpacker.unused_data
                unpacker = zlib.decompressobj(wbits=31)
            else:
                data = unpacker.unconsumed_tail
    if unpacker.unconsumed_tail or not unpacker.eof:
        rest = unpacker.flush(_CHUNK_BYTES)
        if rest:
            yield rest


def read_lines(
    fd: int, gzipped: bool, refused: Counter[str], part: tuple[int, int | None] = (0, None)
) -> Iterator[bytes]:
    """Yield the lines without their line ends; `refused` counts broken or too long ones, by reason.

    `part`: from which byte to which, of a file that is not compressed.

    The last line of a process that was killed or is still writing is often truncated and then is no
    valid record. A last line that only lacks its line end counts like any other.
    """
    chunks = _unpacked(_chunks(fd), refused) if gzipped else _chunks(fd, *part)
    kept, skipping = b"", False
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        kept += first
        for line in rest:
            if skipping or len(kept) > LINE_BYTES_MAX:
                refused["line_too_long"] += 1
                skipping = False
            else:
                yield kept
            kept = line
        if skipping or len(kept) > LINE_BYTES_MAX:
            kept, skipping = b"", True
    if skipping:
        refused["line_too_long"] += 1
    elif kept:
        yield kept
