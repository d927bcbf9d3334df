# SPDX-License-Identifier: Apache-2.0
"""Open what a job's user may have put in a directory, without being led anywhere by it."""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from nccl_inspector.errors import RefusedError

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FLOCK = struct.Struct("hh4xqqi4x")  # struct flock of 64-bit Linux
_CHUNK_BYTES = 2 << 20  # a box in one

# What tells a file from its successor: modification time (ns), size, inode.
Stamp = tuple[int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def _refused(err: OSError) -> RefusedError:
    if err.errno == errno.ENOENT:
        return RefusedError("gone")
    if err.errno == errno.ELOOP:
        return RefusedError("link")
    if err.errno in (errno.ENXIO, errno.ENOTDIR, errno.ENODEV):
        return RefusedError("not_regular")
    return RefusedError("unreadable", os.strerror(err.errno or 0))


@contextmanager
def directory(name: str, uid: int, dir_fd: int) -> Iterator[int]:
    """Give a descriptor of the directory `name` below `dir_fd`.

    Raises:
        RefusedError: no such directory, a link, or not owned by `uid`.
    """
    try:
        fd = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=dir_fd)
    except OSError as err:
        raise _refused(err) from err
    try:
        if os.fstat(fd).st_uid != uid:
            raise RefusedError("wrong_owner")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def regular_file(
    name: str, uid: int, max_bytes: int, dir_fd: int
) -> Iterator[tuple[int, os.stat_result]]:
    """Give a descriptor and the status of the regular file `name` below `dir_fd`.

    The link count does not matter: a hard link that another user makes would
    otherwise spoil the owner's file.

    Raises:
        RefusedError: gone, a link, not regular, not owned by `uid`, or larger than `max_bytes`.
    """
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError as err:
        raise _refused(err) from err
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("not_regular")
        if status.st_uid != uid:
            raise RefusedError("wrong_owner")
        if status.st_size > max_bytes:
            raise RefusedError("too_big")
        yield fd, status
    finally:
        os.close(fd)


def read_at(fd: int, count: int, offset: int) -> bytes:
    """Return `count` bytes from `offset`; fewer when the file ends before.

    Raises:
        RefusedError: the file cannot be read.
    """
    parts = []
    while count > 0:
        try:
            part = os.pread(fd, min(count, _CHUNK_BYTES), offset)
        except OSError as err:
            raise _refused(err) from err
        if not part:
            break
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)


def is_locked(fd: int) -> bool:
    """Tell whether another process holds a record lock on the file, opened for reading or not."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))[0]
    return kind != fcntl.F_UNLCK


def entry_names(dir_fd: int) -> list[str]:
    """Return the names in a directory, in no order."""
    with os.scandir(dir_fd) as entries:
        return [entry.name for entry in entries]
