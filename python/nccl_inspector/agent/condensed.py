# SPDX-License-Identifier: Apache-2.0
"""What is kept of processes that ended while their job goes on, so that their boxes can go.

On disk it is `jobs/<id>/condensed`, the agent's own: of each process a line of JSON (its box's name
and stamp, the task of a job array, how long the block is), then its block of the node summary. A
box takes 2.9 MiB, its block some kilobytes. What an agent that was killed has left half written is
overwritten by the next.
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
# Of one user's jobs on this node. A short step's process has 3 KiB; the tmpfs is everybody's.
CONDENSED_BYTES_MAX = 32 << 20
CONDENSED_MAX = 7936  # the summary takes 256 more (summary.PROCESSES_MAX)

_LINE_BYTES_MAX = 1024
_load = Checks("bad_condensed").load


@dataclass(frozen=True, slots=True)
class CondensedLine:
    """What is said of one process; the stamp is hostile.stamp_of its box."""

    name: str
    mtime_ns: int
    size: int
    inode: int
    array_task: str
    block_bytes: int

    @property
    def stamp(self) -> Stamp:
        """Tell its box from every other one."""
        return self.mtime_ns, self.size, self.inode


@dataclass(frozen=True, slots=True)
class Condensed:
    """A job's record: the whole processes, and where they end in the file."""

    lines: tuple[CondensedLine, ...] = ()
    blocks: tuple[bytes, ...] = ()
    end: int = 0


def _take_line(data: bytes, at: int) -> tuple[CondensedLine, int] | None:
    """Return a line and where its block begins; None: it is not all there."""
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
    """Return what is kept of a job; of one that has nothing, nothing.

    Raises:
        RefusedError: it is not what `append` writes.
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
    """Return how many bytes the record of a job has."""
    try:
        return os.stat(FILE, dir_fd=job_fd, follow_symlinks=False).st_size
    except OSError:
        return 0


def append(job_fd: int, end: int, line: CondensedLine, block: bytes) -> int:
    """Add a process behind `end`; return where the record ends now.

    Raises:
        OSError: there is no room; the record is as it was.
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
