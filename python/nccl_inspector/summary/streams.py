# SPDX-License-Identifier: Apache-2.0
"""The parts of a summary that are unpacked later: in memory or, for a large job, in their file."""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.safe_files import NO_LINK, Stamp, read_at, stamp_of

# A job's processes are looked at node by node, and those of a node are in one file.
_FILES_KEPT = 4
_WHOLE_BYTES_MAX = 4 << 20  # of a larger file only what is needed is read


class SummaryVersion(NamedTuple):
    """A summary's file as it was when it was decoded."""

    path: Path
    stamp: Stamp


def _read(version: SummaryVersion, start: int, end: int) -> bytes:
    try:
        fd = os.open(version.path, NO_LINK)
        try:
            same = stamp_of(os.fstat(fd)) == version.stamp
            data = read_at(fd, end - start, start) if same else b""
        finally:
            os.close(fd)
    except OSError as err:
        raise RefusedError("bad_summary", os.strerror(err.errno or 0)) from err
    except RefusedError as err:
        raise RefusedError("bad_summary", str(err)) from err
    if len(data) != end - start:
        raise RefusedError("bad_summary", "it has changed since it was first read")
    return data


@lru_cache(_FILES_KEPT)
def _whole(version: SummaryVersion) -> bytes:
    return _read(version, 0, version.stamp[1])


class FileSlice:
    """Bytes of a summary that stay in its file until they are used."""

    __slots__ = ("_end", "_start", "_version")

    def __init__(self, version: SummaryVersion, start: int, end: int) -> None:
        """Take where the bytes are."""
        self._version, self._start, self._end = version, start, end

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._end - self._start

    def read(self) -> bytes | memoryview:
        """Return the bytes.

        Raises:
            RefusedError: the file is gone or another one; the reason is `bad_summary`.
        """
        if self._version.stamp[1] > _WHOLE_BYTES_MAX:
            return _read(self._version, self._start, self._end)
        return memoryview(_whole(self._version))[self._start : self._end]


# In memory these are views of the summary, so that data nobody unpacks is never copied.
Stream = bytes | memoryview | FileSlice


def bytes_of(stream: Stream) -> bytes | memoryview:
    """Return the bytes of a stream.

    Raises:
        RefusedError: they cannot be read any more; the reason is `bad_summary`.
    """
    return stream.read() if isinstance(stream, FileSlice) else stream
