# SPDX-License-Identifier: Apache-2.0
"""When a node without an agent was last collected: the time of the file `control/collected`."""

import os
import time
from contextlib import suppress
from pathlib import Path

_PATH = "control/collected"


def note_collection(run_fd: int) -> None:
    """Note that a collection has finished.

    Raises:
        OSError: the note cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(_PATH, flags, 0o644, dir_fd=run_fd)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def forget_collection(run_fd: int) -> None:
    """Remove the note: from now on an agent must run."""
    with suppress(OSError):
        os.unlink(_PATH, dir_fd=run_fd)


def collection_age_s(run_dir: Path) -> float | None:
    """Return the seconds since the last collection, or None if there was none.

    If the clock was set back, the age is how far it was set back.

    Raises:
        OSError: it is not possible to tell.
    """
    try:
        return abs(time.time() - (run_dir / _PATH).stat().st_mtime)
    except FileNotFoundError:
        return None
