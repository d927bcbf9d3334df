# SPDX-License-Identifier: Apache-2.0
"""Read files below another root, such as an unpacked image, without ever leaving it.

A link in an image that begins with a slash means the image's root. Whoever made the image must not
be able to point root at a file of the host, at a FIFO or at a device.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from nccl_inspector.system.safe_files import entry_names, read_at, reopen

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40
_ENTRIES_MAX = 10_000


class Tree:
    """A root directory, held open."""

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
    def _found(self, path: str) -> Iterator[int]:
        """Give an O_PATH descriptor of what is at `path`, following links inside the root.

        Raises:
            OSError: there is nothing, or too many links.
        """
        stack = [os.dup(self._fd)]
        parts, links = deque(path.split("/")), 0
        try:
            while parts:
                part = parts.popleft()
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                fd = os.open(part, _FLAGS, dir_fd=stack[-1])
                if not stat.S_ISLNK(os.fstat(fd).st_mode):
                    stack.append(fd)
                    continue
                target = os.readlink("", dir_fd=fd)
                os.close(fd)
                links += 1
                if links > _LINKS_MAX:
                    raise OSError(40, "too many links", path)
                while target.startswith("/") and len(stack) > 1:
                    os.close(stack.pop())
                parts.extendleft(reversed(target.split("/")))
            yield stack[-1]
        finally:
            for fd in stack:
                os.close(fd)

    def exists(self, path: str) -> bool:
        """Tell whether there is something at `path`."""
        try:
            with self._found(path):
                return True
        except OSError:
            return False

    def size(self, path: str) -> int:
        """Return the size of a regular file; -1: there is none."""
        try:
            with self._found(path) as fd:
                status = os.fstat(fd)
        except OSError:
            return -1
        return status.st_size if stat.S_ISREG(status.st_mode) else -1

    def read(self, path: str, bytes_max: int, offset: int = 0) -> bytes:
        """Return a part of a regular file; empty if there is none or it may not be read."""
        try:
            with self._found(path) as path_fd:
                if not stat.S_ISREG(os.fstat(path_fd).st_mode):
                    return b""
                fd = reopen(path_fd)
                try:
                    return read_at(fd, bytes_max, offset)
                finally:
                    os.close(fd)
        except OSError:
            return b""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is none."""
        try:
            with self._found(path) as path_fd:
                fd = reopen(path_fd)
                try:
                    return sorted(entry_names(fd))[:_ENTRIES_MAX]
                finally:
                    os.close(fd)
        except OSError:
            return []
