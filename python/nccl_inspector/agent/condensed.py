# SPDX-License-Identifier: Apache-2.0
"""What is kept of processes that ended while their job goes on, so that their boxes can be deleted.

It is the agent's own file `jobs/<id>/condensed`. For each process it has a line of JSON (its box's
name and stamp, the task of a job array, the length of the block), then the process's block of the
node summary. A box takes 2.9 MiB, its block some kilobytes. If an agent was killed while writing,
the next one overwrites the incomplete end.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.summary.checked_rows import take_row
from nccl_inspector.system.checked_json import Checks, dump
from nccl_inspector.system.safe_files import Stamp, read_owners

FILE = "condensed"
# For one user's jobs on this node. The process of a short step takes 3 KiB, but all share the
# tmpfs.
CONDENSED_BYTES_MAX = 32 << 20
CONDENSED_MAX = 7936  # the summary has room for 256 more (codec.PROCESSES_MAX)

_LINE_BYTES_MAX = 1024
_load = Checks("bad_condensed").load


@dataclass(frozen=True, slots=True)
class CondensedLine:
    """The facts about one process; the stamp is safe_files.stamp_of its box."""

    name: str
    mtime_ns: int
    size: int
    inode: int
    array_task: str
    block_bytes: int

    @property
    def stamp(self) -> Stamp:
        """The stamp, which identifies the box."""
        return self.mtime_ns, self.size, self.inode


@dataclass(frozen=True, slots=True)
class Condensed:
    """A job's record: the complete processes, and where they end in the file."""

    lines: tuple[CondensedLine, ...] = ()
    blocks: tuple[bytes, ...] = ()
    end: int = 0


def _take_line(data: bytes, at: int) -> tuple[CondensedLine, int] | None:
    """Return a line and where its block begins; None: it is not complete."""
    end = data.find(b"\n", at, at + _LINE_BYTES_MAX)
    if end < 0:
        return None
    values: Any = _load(data[at:end])
    if not isinstance(values, dict):
        raise RefusedError("bad_condensed", "not a line of this record")
    line: CondensedLine = take_row(
        CondensedLine, [values.get(field.name) for field in fields(CondensedLine)]
    )
    return (line, end + 1) if end + 1 + line.block_bytes <= len(data) else None


def read_condensed(job_fd: int) -> Condensed:
    """Return what is kept of a job; empty if there is no file.

    Raises:
        RefusedError: the file is not one that `append` wrote.
    """
    data = read_owners(FILE, CONDENSED_BYTES_MAX, job_fd) or b""
    lines, blocks, at = [], [], 0
    while at < len(data) and (found := _take_line(data, at)):
        line, begin = found
        at = begin + line.block_bytes
        lines.append(line)
        blocks.append(data[begin:at])
    return Condensed(tuple(lines), tuple(blocks), at)


def size_of(job_fd: int) -> int:
    """Return the size of a job's record in bytes; 0 if there is none."""
    try:
        return os.stat(FILE, dir_fd=job_fd, follow_symlinks=False).st_size
    except OSError:
        return 0


def append(job_fd: int, end: int, line: CondensedLine, block: bytes) -> int:
    """Add a process at offset `end`; return the new end of the record.

    Raises:
        OSError: there is no room; the record is unchanged.
    """
    words = {field.name: getattr(line, field.name) for field in fields(CondensedLine)}
    data = dump(words) + b"\n" + block
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(FILE, flags, 0o600, dir_fd=job_fd)
    try:
        os.ftruncate(fd, end)
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], end + written)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, end)
        raise
    finally:
        os.close(fd)
    return end + len(data)
