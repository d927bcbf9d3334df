# SPDX-License-Identifier: Apache-2.0
"""The kill switch of a node: `control/disabled` below the run directory.

While the file exists, prolog and SPANK plugin behave as if measuring were off, and the agent
publishes no job. It has one line: the Unix time of the switch, and a reason.
"""

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.safe_files import open_directory

_NAME = "disabled"
_LINE = re.compile(r"([0-9]{1,12})(?: ([^\n]*))?\n?")
_REASON_CHARS_MAX = 200
_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Disabled:
    """Since when (Unix seconds; 0: not known), and why (may be empty)."""

    since: int
    reason: str


def _plain(text: str) -> str:
    words = "".join(char if char.isprintable() else " " for char in text).split()
    return " ".join(words)[:_REASON_CHARS_MAX]


def is_disabled(run_fd: int) -> bool:
    """Tell whether the switch is on, whatever the file contains and whoever may read it.

    Links are followed, as the prolog and the SPANK plugin do: a dangling link is no switch.
    """
    try:
        os.stat(f"control/{_NAME}", dir_fd=run_fd)
    except OSError:
        return False
    return True


def read_switch(run_dir: Path) -> Disabled | None:
    """Return the content of the file; None: the node is enabled.

    Raises:
        OSError: it is not possible to tell.
    """
    path = run_dir / "control" / _NAME
    try:
        path.stat()
    except OSError as err:
        if err.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return Disabled(0, "")
    match = _LINE.fullmatch(text)
    return Disabled(int(match[1]), _plain(match[2] or "")) if match else Disabled(0, _plain(text))


@contextmanager
def _control(run_dir: Path) -> Iterator[int]:
    path = run_dir / "control"
    try:
        fd = open_directory(path)
        try:
            yield fd
        finally:
            os.close(fd)
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err


def disable(run_dir: Path, reason: str) -> Disabled:
    """Turn the switch on; if it is on, keep its time, and also its reason if none is given.

    Raises:
        InspectorError: there is no `control`, or it cannot be written.
    """
    with _control(run_dir) as fd:
        now = read_switch(run_dir)
        since = now.since if now and now.since else int(time.time())
        wanted = Disabled(since, _plain(reason) or (now.reason if now else ""))
        if wanted != now:
            line = f"{wanted.since} {wanted.reason}".rstrip() + "\n"
            replace_file(fd, _NAME, line.encode("utf-8"), 0o644)
        return wanted


def enable(run_dir: Path) -> None:
    """Turn the switch off, if it is on.

    Raises:
        InspectorError: there is no `control`, or it cannot be written.
    """
    with _control(run_dir) as fd:
        try:
            os.unlink(_NAME, dir_fd=fd)
        except FileNotFoundError:
            return
