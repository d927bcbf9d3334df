# SPDX-License-Identifier: Apache-2.0
"""Remember what the agent was reading when it died, so that it does not die of it again and again.

A job's data can trigger a bug of ours that nobody knows. Nothing catches it: the agent ends, and
its unit starts it again. If it dies again while reading the same data, these are left out, and the
other jobs go on. A Python error, a signal and the kernel's memory killer are all treated alike.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from nccl_inspector.errors import RefusedError

# The first death may have another cause: an administrator's kill, or another job's memory use.
DEATHS_MAX = 2

_PATH = "control/at_work"
_RECORD_BYTES = 2048
_RECORDS_MAX = 32
_RECORD = re.compile(r"^([1-9]) ([a-z]+ [0-9.]{1,40})$", re.MULTILINE)


class AtWork:
    """A record in the run directory: whose data are being read, and what was fatal how often.

    An entry stays until the same data are read without a death, so that two fatal jobs cannot take
    turns.
    """

    def __init__(self, run_fd: int) -> None:
        """Read what the last agent left.

        Raises:
            OSError: the record cannot be opened.
        """
        self._run_fd = run_fd
        with self._record(os.O_RDWR | os.O_CREAT) as fd:
            text = os.pread(fd, _RECORD_BYTES, 0).decode("ascii", "replace")
            if not text:
                self._put(fd, "")  # allocates its page of the tmpfs while there is room
        self._deaths = {what: int(deaths) for deaths, what in _RECORD.findall(text)}

    @contextmanager
    def on(self, what: str, *harmless: type[Exception]) -> Iterator[None]:
        """Mark work as running; `what` is a word and a number, `harmless` errors are no deaths.

        Raises:
            RefusedError: the agent died of this work DEATHS_MAX times in a row.
        """
        deaths = self._deaths.pop(what, 0)
        if deaths >= DEATHS_MAX:
            self._deaths[what] = deaths
            raise RefusedError("crashed", "the agent ended while it read this")
        self._deaths[what] = deaths + 1
        for oldest in list(self._deaths)[:-_RECORDS_MAX]:
            del self._deaths[oldest]
        self._write()
        survived: tuple[type[Exception], ...] = (RefusedError, OSError, *harmless)
        try:
            yield
        except survived:
            self._over(what)
            raise
        self._over(what)

    def forgive(self) -> None:
        """Forget everything: the agent ends normally, and is started again on purpose."""
        self._deaths.clear()
        self._write()

    @contextmanager
    def _record(self, flags: int) -> Iterator[int]:
        """Open the record only for a moment.

        A file that stays open for writing would prevent its mount from being made read-only.
        """
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_PATH, flags, 0o600, dir_fd=self._run_fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def _over(self, what: str) -> None:
        del self._deaths[what]
        self._write()

    def _write(self) -> None:
        text = "".join(f"{deaths} {what}\n" for what, deaths in self._deaths.items())
        with self._record(os.O_WRONLY | os.O_CREAT) as fd:
            self._put(fd, text)

    @staticmethod
    def _put(fd: int, text: str) -> None:
        os.pwrite(fd, text.encode("ascii").ljust(_RECORD_BYTES, b"\n"), 0)
