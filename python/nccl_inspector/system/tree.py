# SPDX-License-Identifier: Apache-2.0
"""The one way to open, list, write and remove below another root, such as that of an image.

A link in an image that begins with a slash means the image's root. Whoever made the image must not
be able to point root at a file of the host, at a FIFO or at a device. The same code serves this
machine, whose root is "/".

The kernel resolves a path (openat2 with RESOLVE_IN_ROOT); where it has no openat2, or a filter of
system calls forbids it, the path is walked part by part. Nothing opens what is no regular file and
no directory: to open a device may already do something.
"""

import ctypes
import errno
import fnmatch
import os
import re
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Self

from nccl_inspector.system.atomic import replacing
from nccl_inspector.system.safe_files import entry_names, read_at, reopen

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40  # as the kernel
_ENTRIES_MAX = 10_000
_MATCHES_MAX = 1000
_MAGIC = re.compile(r"[*?\[]")

_SYS_OPENAT2 = 437  # on every architecture
_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
_RACES_MAX = 8  # EAGAIN: something was renamed meanwhile
# What a kernel before 5.6, or a filter of system calls that does not know it, says.
_UNKNOWN = frozenset((errno.ENOSYS, errno.EPERM))

_libc = ctypes.CDLL(None, use_errno=True)


def _openat2(root_fd: int, path: str, flags: int = os.O_PATH | os.O_CLOEXEC) -> int | None:
    """Return a descriptor of what is at `path`; None: the kernel cannot do it.

    Raises:
        OSError: there is nothing, or too many links.
    """
    name = os.fsencode(path) or b"."
    how = _OPEN_HOW.pack(flags, 0, _NO_MAGICLINKS | _IN_ROOT)
    for _ in range(_RACES_MAX):
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(root_fd), ctypes.c_char_p(name),
            ctypes.c_char_p(how), ctypes.c_size_t(len(how)),
        )  # fmt: skip
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number in _UNKNOWN:
            return None
        if number != errno.EAGAIN:
            raise OSError(number, os.strerror(number), path)
    return None


def _walk(root_fd: int, path: str, flags: int | None = None) -> int:
    """Return the same without the kernel's help; `flags` None: an O_PATH descriptor.

    Raises:
        OSError: there is nothing, or too many links.
    """
    stack, names = [os.dup(root_fd)], [""]
    parts, links = deque(path.split("/")), 0
    try:
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if len(stack) > 1:
                    os.close(stack.pop())
                    names.pop()
                continue
            fd = os.open(part, _FLAGS, dir_fd=stack[-1])
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                stack.append(fd)
                names.append(part)
                continue
            try:
                target = os.readlink("", dir_fd=fd)
            finally:
                os.close(fd)
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            while target.startswith("/") and len(stack) > 1:
                os.close(stack.pop())
                names.pop()
            parts.extendleft(reversed(target.split("/")))
        if flags is not None and len(stack) > 1:
            return os.open(names[-1], flags | os.O_NOFOLLOW, dir_fd=stack[-2])
        return stack.pop()
    finally:
        for fd in stack:
            os.close(fd)


def _open_same(path_fd: int, open_again: Callable[[], int]) -> int:
    """Return a descriptor for reading of the regular file that an O_PATH descriptor stands for.

    `open_again` opens it by its name, for where there is no /proc, as in a chroot.

    Raises:
        OSError: it may not be read.
    """
    try:
        fd = reopen(path_fd)
    except FileNotFoundError:
        fd = open_again()
    if not os.path.samestat(os.fstat(fd), os.fstat(path_fd)):
        os.close(fd)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return fd


class Tree:
    """A root directory, held open. All paths are of this root, with or without a slash before."""

    def __init__(self, root: Path) -> None:
        """Open the root.

        Raises:
            OSError: it is not a directory.
        """
        self._fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @contextmanager
    def found(self, path: str | PurePath) -> Iterator[int]:
        """Give an O_PATH descriptor of what is at `path`, following links inside the root.

        Raises:
            OSError: there is nothing, or too many links.
        """
        fd = self._open(path, None)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str | PurePath, flags: int | None) -> int:
        """Return a descriptor of what is at `path`; `flags` None: an O_PATH descriptor.

        Raises:
            OSError: as found() does.
        """
        if "\0" in str(path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        words = () if flags is None else (flags,)
        fd = _openat2(self._fd, str(path), *words)
        return _walk(self._fd, str(path), *words) if fd is None else fd

    @contextmanager
    def above(self, path: str | PurePath) -> Iterator[tuple[int, str]]:
        """Give an O_PATH descriptor of the directory that `path` is in, and its name there.

        Raises:
            OSError: the directory is not there, or `path` has no name.
        """
        pure = PurePath("/") / path
        if pure.name in ("", ".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        with self.found(pure.parent) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(pure.parent))
            yield fd, pure.name

    def status(self, path: str | PurePath) -> os.stat_result | None:
        """Return what is at `path`, following links inside the root; None: nothing."""
        try:
            with self.found(path) as fd:
                return os.fstat(fd)
        except OSError:
            return None

    def link_status(self, path: str | PurePath) -> os.stat_result:
        """Return what is at `path`, which may be a link itself.

        Raises:
            OSError: there is nothing.
        """
        with self.above(path) as (fd, name):
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def exists(self, path: str | PurePath) -> bool:
        """Tell whether there is something at `path`."""
        return self.status(path) is not None

    def is_file(self, path: str | PurePath) -> bool:
        """Tell whether a regular file is at `path`."""
        return (found := self.status(path)) is not None and stat.S_ISREG(found.st_mode)

    def is_directory(self, path: str | PurePath) -> bool:
        """Tell whether a directory is at `path`."""
        return (found := self.status(path)) is not None and stat.S_ISDIR(found.st_mode)

    def size(self, path: str | PurePath) -> int:
        """Return the size of a regular file; -1: there is none."""
        found = self.status(path)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else -1

    @contextmanager
    def file(self, path: str | PurePath) -> Iterator[int]:
        """Give a descriptor for reading of the regular file at `path`, which must be no link.

        Raises:
            OSError: there is nothing, or it is something else.
        """
        with self.above(path) as (dir_fd, name):
            path_fd = os.open(name, _FLAGS, dir_fd=dir_fd)
            try:
                kind = os.fstat(path_fd).st_mode
                if stat.S_ISLNK(kind):
                    raise OSError(errno.ELOOP, "it is a link", str(path))
                if not stat.S_ISREG(kind):
                    raise OSError(errno.EINVAL, "not a regular file", str(path))
                fd = _open_same(path_fd, lambda: os.open(name, _FILE, dir_fd=dir_fd))
            finally:
                os.close(path_fd)
            try:
                yield fd
            finally:
                os.close(fd)

    @contextmanager
    def directory(self, path: str | PurePath) -> Iterator[int]:
        """Give a descriptor for reading of the directory at `path`, which must be no link.

        Raises:
            OSError: there is nothing, or it is something else.
        """
        with self.above(path) as (dir_fd, name):
            fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, path: str | PurePath, bytes_max: int, offset: int = 0) -> bytes:
        """Return a part of a regular file, following links inside the root; empty if there is none
        or it may not be read."""
        try:
            with self.found(path) as path_fd:
                if not stat.S_ISREG(os.fstat(path_fd).st_mode):
                    return b""
                fd = _open_same(path_fd, lambda: self._open(path, _FILE & ~os.O_NOFOLLOW))
                try:
                    return read_at(fd, bytes_max, offset)
                finally:
                    os.close(fd)
        except OSError:
            return b""

    def names(self, path: str | PurePath) -> list[str]:
        """Return the names in a directory, following links inside the root, sorted; empty if there
        is none."""
        try:
            with self.found(path) as path_fd:
                if not stat.S_ISDIR(os.fstat(path_fd).st_mode):
                    return []
                fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path_fd)
                try:
                    return sorted(entry_names(fd))[:_ENTRIES_MAX]
                finally:
                    os.close(fd)
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that a pattern fits, as glob(3): no hidden names, sorted."""
        found = [""]
        for part in PurePath("/" + pattern).parts[1:]:
            if not _MAGIC.search(part):
                found = [f"{one}/{part}" for one in found]
                continue
            found = [
                f"{one}/{name}"
                for one in found
                for name in self.names(one)
                if fnmatch.fnmatchcase(name, part) and not name.startswith(".")
            ][:_MATCHES_MAX]
        return [one for one in found if self._has_name(one)]

    def _has_name(self, path: str) -> bool:
        """Tell whether there is something at `path`, be it a link that leads nowhere."""
        try:
            self.link_status(path)
        except OSError:
            return False
        return True

    def replace(
        self, path: str | PurePath, data: bytes, mode: int, *, is_new: bool = False
    ) -> None:
        """Write the file at `path` anew, all of it or nothing.

        A file that is there keeps its mode and its owner. A new one gets `mode` and is the
        caller's; with `is_new` so does one that was there.

        Raises:
            OSError: it cannot be written, or something else than a regular file is there.
        """
        with self.above(path) as (dir_fd, name):
            try:
                old = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            except FileNotFoundError:
                old = None
            if old is not None and not stat.S_ISREG(old.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if is_new:
                old = None
            with replacing(dir_fd, name) as file:
                file.write(data)
                file.flush()
                new = os.fstat(file.fileno())
                if old is not None and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), mode if old is None else stat.S_IMODE(old.st_mode))

    def make_directory(
        self, path: str | PurePath, mode: int, owner: tuple[int, int] | None = None
    ) -> None:
        """Make a directory with this mode, whatever the umask is; `owner`: a uid and a gid.

        Raises:
            OSError: it cannot be made, or there is something.
        """
        with self.above(path) as (dir_fd, name):
            os.mkdir(name, 0o700, dir_fd=dir_fd)
            fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
            try:
                if owner is not None:
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def make_link(self, path: str | PurePath, target: str) -> None:
        """Make a link; there may be one with this target already.

        Raises:
            OSError: it cannot be made, or there is something else.
        """
        with self.above(path) as (dir_fd, name):
            try:
                os.symlink(target, name, dir_fd=dir_fd)
            except FileExistsError:
                with suppress(OSError):
                    if os.readlink(name, dir_fd=dir_fd) == target:
                        return
                raise

    def remove(self, path: str | PurePath) -> None:
        """Remove a file or a link.

        Raises:
            OSError: it cannot be removed, or is a directory, or there is nothing.
        """
        with self.above(path) as (dir_fd, name):
            os.unlink(name, dir_fd=dir_fd)

    def remove_directory(self, path: str | PurePath) -> None:
        """Remove an empty directory.

        Raises:
            OSError: it is not empty, or no directory, or there is nothing.
        """
        with self.above(path) as (dir_fd, name):
            os.rmdir(name, dir_fd=dir_fd)
