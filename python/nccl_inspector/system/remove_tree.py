# SPDX-License-Identifier: Apache-2.0
"""Remove a directory that a user may have filled, however deep and however full."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.safe_files import directory, entry_names

# Limit on the entries of one call, about half a second's work. The next call finds fewer.
ENTRIES_MAX = 50_000


@contextmanager
def _opened(name: str, dir_fd: int) -> Iterator[int]:
    """Open a directory; refuse one that a user has mounted there, until it is unmounted."""
    try:
        with directory(name, None, dir_fd) as fd:
            yield fd
    except RefusedError as err:
        raise OSError(errno.EBUSY, f"cannot be removed: {err}", name) from err


def _empty(name: str, top_fd: int, fresh: Iterator[int]) -> int:
    """Unlink the files in `name`, move its directories up beside it; return the entries seen."""
    seen = 0
    with _opened(name, top_fd) as fd:
        for child in entry_names(fd):
            seen += 1
            try:
                os.unlink(child, dir_fd=fd)
            except IsADirectoryError:
                _move_up(child, fd, top_fd, fresh)
    os.rmdir(name, dir_fd=top_fd)
    return seen


def _move_up(child: str, fd: int, top_fd: int, fresh: Iterator[int]) -> None:
    for number in fresh:
        name = f".removed-{number}"
        try:
            os.mkdir(name, 0o700, dir_fd=top_fd)
        except FileExistsError:
            continue
        os.rename(child, name, src_dir_fd=fd, dst_dir_fd=top_fd)
        return


def remove_tree(name: str, dir_fd: int) -> None:
    """Remove the directory `name` below `dir_fd` without following a link.

    A user's directories may be nested deeper than recursion, or one descriptor per level, allows.
    Therefore each directory is moved up to the top before it is emptied.

    Raises:
        OSError: it could not be removed completely; entries removed so far stay removed.
    """
    fresh, seen = count(), 0
    with _opened(name, dir_fd) as top_fd:
        while entries := entry_names(top_fd):
            for entry in entries:
                seen += 1
                try:
                    os.unlink(entry, dir_fd=top_fd)
                except IsADirectoryError:
                    seen += _empty(entry, top_fd, fresh)
                if seen > ENTRIES_MAX:
                    raise OSError(0, "has too many entries to remove in one go")
    os.rmdir(name, dir_fd=dir_fd)
