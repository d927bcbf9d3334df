# SPDX-License-Identifier: Apache-2.0
"""Parts of one large file, cut between two lines, and read from where they are."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


class _Giver(threading.Thread):
    """Puts bytes of a file into a pipe; `error` is why not all of them came."""

    def __init__(self, fd: int, begin: int, end: int, pipe: int) -> None:
        super().__init__(daemon=True)
        self._fd, self._begin, self._end, self._pipe = fd, begin, end, pipe
        self.error: OSError | None = None

    def run(self) -> None:
        """Give them all, and close the pipe."""
        try:
            self._give()
        except BrokenPipeError:
            pass  # the reader takes no more, and knows why
        except OSError as err:
            self.error = err
        finally:
            os.close(self._pipe)

    def _give(self) -> None:
        at = self._begin
        while at < self._end:
            given = os.splice(self._fd, self._pipe, min(_GIVE_BYTES, self._end - at), offset_src=at)
            if not given:
                raise OSError(errno.EIO, "it has become shorter")
            at += given


@contextmanager
def piped(fd: int, begin: int, end: int) -> Iterator[int]:
    """Give the descriptor of a pipe with these bytes of a file; nothing is copied to a disk.

    Raises:
        OSError: they could not all be read; what came through the pipe was not all.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    giver = _Giver(fd, begin, end, writing)
    giver.start()
    try:
        yield reading
    finally:
        os.close(reading)
        giver.join()
    if giver.error is not None:
        raise giver.error
