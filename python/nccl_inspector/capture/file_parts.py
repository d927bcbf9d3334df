# SPDX-License-Identifier: Apache-2.0
"""Parts of one large file, cut between two lines, and read from where they are."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

PART_BYTES_MIN = 64 << 20
_LOOK_BYTES = 64 << 10
_GIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of a file of which the first byte is in this range; `end` is not in it."""

    begin: int
    end: int


def parts_of(size: int, most: int) -> list[Part]:
    """Return the parts of a file, of nearly equal sizes, none larger than `most` bytes."""
    count = max(1, -(-size // most))
    cuts = [size * at // count for at in range(count + 1)]
    return [Part(begin, end) for begin, end in pairwise(cuts)]


def _first_line_at(fd: int, at: int, size: int) -> int:
    """Return where the first line begins whose first byte is at `at` or later; `size` at most."""
    if at == 0:
        return 0
    seen = at - 1
    while seen < size:
        found = os.pread(fd, min(_LOOK_BYTES, size - seen), seen)
        if not found:
            return size
        end = found.find(b"\n")
        if end >= 0:
            return seen + end + 1
        seen += len(found)
    return size


def bytes_of(fd: int, part: Part, size: int) -> tuple[int, int]:
    """Return the first byte of a part's lines, and the byte after them."""
    last = size if part.end >= size else _first_line_at(fd, part.end, size)
    return min(_first_line_at(fd, part.begin, size), last), last


def _give(fd: int, begin: int, end: int, pipe: int) -> None:
    with suppress(OSError):  # the reader has closed it
        while begin < end:
            given = os.splice(fd, pipe, min(_GIVE_BYTES, end - begin), offset_src=begin)
            if not given:
                break
            begin += given
    os.close(pipe)


@contextmanager
def piped(fd: int, begin: int, end: int) -> Iterator[int]:
    """Give the descriptor of a pipe with these bytes of a file; nothing is copied to a disk."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    giver = threading.Thread(target=_give, args=(fd, begin, end, writing), daemon=True)
    giver.start()
    try:
        yield reading
    finally:
        os.close(reading)
        giver.join()
