# SPDX-License-Identifier: Apache-2.0
"""Look at files of the host: who owns them, who may change them, what they are."""

import os
import stat
from pathlib import Path

from nccl_inspector.doctor.elf import BYTES_MAX, parse_elf
from nccl_inspector.doctor.facts import FileFacts, Library
from nccl_inspector.system.printable import printable

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def file_facts(path: Path) -> FileFacts:
    """Return owner and mode of a file or directory, following links."""
    link_to = str(path.readlink()) if path.is_symlink() else ""
    try:
        status = path.stat()
    except OSError as err:
        return FileFacts(path, err.strerror or str(err), link_to=link_to)
    above = _writable_above(path)
    return FileFacts(path, "", status.st_uid, status.st_gid, status.st_mode, link_to, above)


def _writable_above(path: Path) -> str:
    """Return a directory above a path that others than root may change, or an empty text."""
    for folder in path.resolve().parents:
        status = folder.stat()
        others = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid else 0)
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_uid or (status.st_mode & others and not sticky):
            return str(folder)
    return ""


def others_may_change(file: FileFacts) -> str:
    """Return who else than root may change a file, as text; empty: nobody."""
    if file.uid:
        return f"{file.path} belongs to uid {file.uid}"
    if file.mode & stat.S_IWOTH or (file.mode & stat.S_IWGRP and file.gid):
        return f"{file.path} has mode {file.permissions:04o}"
    if file.writable_above:
        return f"others than root may change {file.writable_above}"
    return ""


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """Return the beginning of a regular file, without ever waiting for a FIFO.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    fd = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(22, "not a regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(bytes_max)
    finally:
        os.close(fd)


def read_text(path: Path, bytes_max: int = 1 << 20) -> str:
    """Return the text of a file of the host.

    Raises:
        OSError: as `read_bytes`.
    """
    return read_bytes(path, bytes_max).decode("utf-8", "replace")


def read_library(path: Path) -> Library:
    """Return what a library says of itself; it is not loaded."""
    file = file_facts(path)
    if file.problem:
        return Library(file, None, file.problem)
    try:
        return Library(file, parse_elf(read_bytes(path, BYTES_MAX)))
    except OSError as err:
        return Library(file, None, printable(err.strerror or str(err)))
    except ValueError as err:
        return Library(file, None, str(err))
