# SPDX-License-Identifier: Apache-2.0
"""A file in which one host gives signs of life, and others see whether it still does.

The file has the host's name. Each sign sets its time of modification. Who watches it counts on
their own clock for how long the file has not changed, so the hosts' clocks may differ.
"""

import os
from contextlib import suppress
from pathlib import Path

from nccl_inspector.system.printable import printable

OLD_S = 20.0  # without a change for so long there is no life
_LOOK_MAX_S = 2.0  # a look that comes later counts as so much: we may have hung ourselves
_BYTES = 256  # always written as a whole, so that it fits on a disk that is full
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_name(path: Path, host: str) -> None:
    """Say whose signs of life come from now on; an empty name: nobody's.

    Raises:
        OSError: the file cannot be written.
    """
    fd = os.open(path, _WRITE, 0o640)
    try:
        os.pwrite(fd, host.encode("utf-8", "replace")[: _BYTES - 1].ljust(_BYTES, b"\n"), 0)
        os.fsync(fd)  # network storage would show it to others only later
    finally:
        os.close(fd)


def give_sign(path: Path, host: str, named: str) -> bool:
    """Give a sign of life of `host`; tell whether that was possible, as not on a full disk.

    `named`: the name that was seen in the file.
    """
    try:
        if named == host:
            os.utime(path)
        else:
            write_name(path, host)
    except OSError:
        return False
    return True


class Watch:
    """What a host sees of the signs of life in a file."""

    def __init__(self, path: Path) -> None:
        """Look at nothing yet."""
        self._path = path
        self._seen: tuple[str, int] | None = None  # the name, and the time of the last sign
        self._looked_s = 0.0
        self._has_changed = False
        self.quiet_s = 0.0  # for so long we have not seen it change

    @property
    def host(self) -> str:
        """Return the name in the file, or an empty text."""
        return self._seen[0] if self._seen else ""

    @property
    def is_alive(self) -> bool:
        """Whether we have seen a sign in the last seconds."""
        return self._has_changed and self.quiet_s < OLD_S

    def look(self, now_s: float) -> None:
        """Look at the file; `now_s`: of time.monotonic(). If it cannot be read, nothing changes.

        It is opened each time, because network storage then asks its server for what is new.
        """
        before_s, self._looked_s = self._looked_s, now_s
        self.quiet_s += min(now_s - before_s, _LOOK_MAX_S) if before_s else 0.0
        with suppress(OSError):
            if (seen := _read(self._path)) != self._seen:
                self._has_changed = before_s > 0  # what was there at first may be old
                self._seen, self.quiet_s = seen, 0.0


def _read(path: Path) -> tuple[str, int]:
    """Return the name in the file, and when it was modified (ns).

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, _READ)
    try:
        text = os.pread(fd, _BYTES, 0).decode("utf-8", "replace")
        return printable(text.partition("\n")[0]), os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)
