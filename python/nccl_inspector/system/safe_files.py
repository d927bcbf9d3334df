# SPDX-License-Identifier: Apache-2.0
"""Open files in a directory where a job's user may have put anything, without following tricks."""

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nccl_inspector.errors import RefusedError

_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_WRITING = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FDINFO_BYTES_MAX = 512
_MOUNT = re.compile(rb"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
_FLOCK = struct.Struct("hh4xqqi4x")  # struct flock of 64-bit Linux
_CHUNK_BYTES = 2 << 20  # a whole box in one read

# Opens without waiting, whatever it is; who opens it checks then what it is.
NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Identifies one version of a file: modification time (ns), size, inode.
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


def _mount_of(fd: int) -> bytes:
    """Return the id of the mount a descriptor is on; this asks only the kernel, no file system."""
    info_fd = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        match = _MOUNT.search(os.read(info_fd, _FDINFO_BYTES_MAX))
    finally:
        os.close(info_fd)
    if match is None:
        raise RefusedError("unreadable", "the kernel does not say on which mount it is")
    return match[1]


def reopen(path_fd: int, flags: int = _FLAGS) -> int:
    """Return a descriptor of the file behind an O_PATH descriptor, for reading; never waits.

    Raises:
        OSError: it may not be read, or its owner has a lease on it.
    """
    return os.open(f"/proc/self/fd/{path_fd}", flags)


@contextmanager
def _below(
    name: str, dir_fd: int, kind: int, flags: int = _FLAGS
) -> Iterator[tuple[int, os.stat_result]]:
    """Give a descriptor and the status of `name` if it is of `kind` (stat.S_IFREG, S_IFDIR).

    A user can mount a FUSE file system in their own directory. Every request to it, open and stat
    included, waits for that user's process. Therefore O_PATH looks the name up first, which sends
    no request; a name on another mount than its directory, or of another kind, is not opened.
    """
    try:
        path_fd = os.open(name, _PATH_FLAGS, dir_fd=dir_fd)
        try:
            if _mount_of(path_fd) != _mount_of(dir_fd):
                raise RefusedError("other_mount")
            status = os.fstat(path_fd)
            if stat.S_ISLNK(status.st_mode):
                raise RefusedError("link")
            if stat.S_IFMT(status.st_mode) != kind:
                raise RefusedError("not_regular")
            fd = reopen(path_fd, flags)
        finally:
            os.close(path_fd)
    except OSError as err:
        raise _refused(err) from err
    try:
        yield fd, os.fstat(fd)
    finally:
        os.close(fd)


def open_directory(name: str | Path, dir_fd: int | None = None) -> int:
    """Return a descriptor of a directory that belongs to the agent or to the service account.

    Raises:
        OSError: it does not exist, or is not a directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=dir_fd)


@contextmanager
def directory(name: str, uid: int | None, dir_fd: int) -> Iterator[int]:
    """Give a descriptor of the directory `name` below `dir_fd`; `uid` None: any owner is accepted.

    Raises:
        RefusedError: there is no such directory, or it is a link, not owned by `uid`, or a mount.
    """
    with _below(name, dir_fd, stat.S_IFDIR) as (fd, status):
        if uid is not None and status.st_uid != uid:
            raise RefusedError("wrong_owner")
        yield fd


@contextmanager
def directory_of_same_owner(name: str, dir_fd: int) -> Iterator[int]:
    """As `directory`; the owner must be that of the directory `dir_fd` (root, below `jobs/`).

    Raises:
        RefusedError: as `directory`.
    """
    with directory(name, os.fstat(dir_fd).st_uid, dir_fd) as fd:
        yield fd


@contextmanager
def regular_file(
    name: str, uid: int, max_bytes: int, dir_fd: int
) -> Iterator[tuple[int, os.stat_result]]:
    """Give a descriptor and the status of the regular file `name` below `dir_fd`.

    The link count is not checked: otherwise another user could make a file unreadable with a hard
    link to it.

    Raises:
        RefusedError: it does not exist, or is a link, not regular, not owned by `uid`, larger than
            `max_bytes`, or a mount.
    """
    with _below(name, dir_fd, stat.S_IFREG) as (fd, status):
        if status.st_uid != uid:
            raise RefusedError("wrong_owner")
        if status.st_size > max_bytes:
            raise RefusedError("too_big")
        yield fd, status


@contextmanager
def pipe_to_write(name: str, uid: int, dir_fd: int) -> Iterator[int]:
    """Give a descriptor for writing to the named pipe `name` below `dir_fd`; never waits.

    Raises:
        RefusedError: it does not exist, is no pipe, is not owned by `uid`, is a mount, or no
            process reads from it.
    """
    with _below(name, dir_fd, stat.S_IFIFO, _WRITING) as (fd, status):
        if status.st_uid != uid:
            raise RefusedError("wrong_owner")
        yield fd


def read_at(fd: int, count: int, offset: int) -> bytes:
    """Return `count` bytes from `offset`, or fewer if the file ends earlier.

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
    """Tell whether another process holds a record lock on the file; `fd` may be read-only."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))[0]
    return kind != fcntl.F_UNLCK


def entry_names(dir_fd: int) -> list[str]:
    """Return the names in a directory, in no particular order."""
    with os.scandir(dir_fd) as entries:
        return [entry.name for entry in entries]


def read_owners(name: str, max_bytes: int, dir_fd: int) -> bytes | None:
    """Return the content of a file of the directory's owner, or None if there is no such file.

    Raises:
        RefusedError: as `regular_file`.
    """
    owner = os.fstat(dir_fd).st_uid
    try:
        with regular_file(name, owner, max_bytes, dir_fd) as (fd, status):
            return read_at(fd, status.st_size, 0)
    except RefusedError as err:
        if err.reason == "gone":
            return None
        raise
