# SPDX-License-Identifier: Apache-2.0
"""Replace a file so that a reader sees either all of the old content or all of the new."""

import os
from contextlib import suppress


def replace_file(dir_fd: int, name: str, data: bytes, mode: int) -> None:
    """Write `.<name>.tmp` below `dir_fd`, then rename it to `name`.

    Raises:
        OSError: the write failed; `name` is unchanged and nothing is left behind.
    """
    beside = f".{name}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=dir_fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o600, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
        os.rename(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        with suppress(OSError):
            os.unlink(beside, dir_fd=dir_fd)
        raise
