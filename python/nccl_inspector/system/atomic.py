# SPDX-License-Identifier: Apache-2.0
"""Replace a file so that a reader sees either all of the old content or all of the new."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(dir_fd: int, name: str, own: str = "") -> Iterator[BinaryIO]:
    """Give a file beside `name` below `dir_fd`, of mode 0600, that is renamed after the block.

    Its name begins with a dot. `own`: a part of that, where others replace the same file.

    Raises:
        OSError: nothing has changed then, and nothing is left over.
    """
    beside = f".{name}{own}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=dir_fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        os.rename(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        with suppress(OSError):
            os.unlink(beside, dir_fd=dir_fd)
        raise


def replace_file(dir_fd: int, name: str, data: bytes, mode: int) -> None:
    """Write `.<name>.tmp` below `dir_fd`, then rename it to `name`.

    Raises:
        OSError: the write failed; `name` is unchanged and nothing is left behind.
    """
    with replacing(dir_fd, name) as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)


def replace_path(path: Path, data: bytes, mode: int) -> None:
    """Do the same for a path, in a directory of our own.

    Raises:
        OSError: its directory cannot be opened, or the write failed.
    """
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(fd, path.name, data, mode)
    finally:
        os.close(fd)
