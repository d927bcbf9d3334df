# SPDX-License-Identifier: Apache-2.0
"""Notes about reports that are stored and are not in the index yet; late_entries.py enters them."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nccl_inspector.controller.queue import STATE

FOLDER = f"{STATE}/unentered"
_NAME = re.compile(r"([1-9][0-9]{0,9})\.([0-9]{1,9})")  # job and attempt


def note(controller_dir: Path, job_id: int, attempt: int) -> None:
    """Note that a report is to be entered. Raises OSError: it is not noted."""
    folder = controller_dir / FOLDER
    folder.mkdir(mode=0o750, exist_ok=True)
    (folder / f"{job_id}.{attempt}").touch()


def noted(controller_dir: Path) -> Iterator[tuple[int, int]]:
    """Yield job and attempt of each report that is to be entered. Raises OSError."""
    with suppress(FileNotFoundError):
        for path in (controller_dir / FOLDER).iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), int(match[2])


def are_noted(controller_dir: Path) -> bool:
    """Tell whether there are reports to be entered."""
    with suppress(OSError):
        return next(noted(controller_dir), None) is not None
    return False


def settle(controller_dir: Path, job_id: int, attempt: int) -> None:
    """Remove a note. Raises OSError."""
    (controller_dir / FOLDER / f"{job_id}.{attempt}").unlink(missing_ok=True)


def waiting(controller_dir: Path) -> tuple[int, float]:
    """Return how many reports are to be entered, and for how long (s) the oldest has waited.

    Raises:
        OSError: the notes cannot be read.
    """
    times_s = []
    for job_id, attempt in noted(controller_dir):
        with suppress(FileNotFoundError):  # entered meanwhile
            path = controller_dir / FOLDER / f"{job_id}.{attempt}"
            times_s.append(path.stat().st_mtime)
    return len(times_s), time.time() - min(times_s) if times_s else 0.0
