# SPDX-License-Identifier: Apache-2.0
"""The agent's side of a job's mark (marking.py)."""

import re
from collections.abc import Mapping

from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.process_file import check_value
from nccl_inspector.exposition.text import SeriesLine, make_series
from nccl_inspector.marking import MARK_FILE, THROUGHPUT_MAX, UNITS
from nccl_inspector.system.clock import Clock
from nccl_inspector.system.safe_files import Stamp, read_at, regular_file, stamp_of

MARK_BYTES_MAX = 256
# A job that has not marked for this long has stopped or forgotten; no value is better than an old
# one.
MARK_STALE_S = 600.0

_TEXT = re.compile(rb"throughput=([ -~]{1,64})\nunit=([ -~]{1,64})\nend\n")


def parse_mark(data: bytes) -> tuple[str, str]:
    """Return the text of the number, and the unit.

    Raises:
        RefusedError: the file is invalid.
    """
    match = _TEXT.fullmatch(data)
    if match is None:
        raise RefusedError("bad_mark", "not as `nccl-inspector mark` writes it")
    value, unit = (part.decode("ascii") for part in match.groups())
    check_value(value)
    if float(value) > THROUGHPUT_MAX:
        raise RefusedError("bad_mark", "the throughput is too large")
    if unit not in UNITS:
        raise RefusedError("bad_mark", "unknown unit")
    return value, unit


class MarkWatch:
    """The mark of one job, from pass to pass; its age is measured by our own clock."""

    def __init__(self, identity: Mapping[str, str], clock: Clock) -> None:
        self._identity, self._clock = dict(identity), clock
        self._stamp: Stamp | None = None
        self._found: tuple[str, str] | None = None
        self._error: RefusedError | None = None
        self._marked_unix_s = self._marked_s = 0.0

    def stamp(self) -> Stamp | None:
        """Return the stamp of the published mark; None: nothing is published."""
        return self._stamp if self._is_fresh() else None

    def series(self) -> list[SeriesLine]:
        """Return the throughput and its time as series; none if there is no mark, or an old one."""
        if self._found is None or not self._is_fresh():
            return []
        value, unit = self._found
        name, when = "nccl_inspector_job_throughput", f"{self._marked_unix_s:.3f}"
        return [
            make_series(name, self._identity | {"unit": unit}, value),
            make_series(f"{name}_timestamp_seconds", self._identity, when),
        ]

    def refresh(self, raw_fd: int, uid: int) -> None:
        """Look for a new mark.

        Raises:
            RefusedError: the mark is invalid (raised in each pass until there is another), or it
                does not exist (reason `gone`).
        """
        try:
            with regular_file(MARK_FILE, uid, MARK_BYTES_MAX, raw_fd) as (fd, status):
                stamp = stamp_of(status)
                if stamp != self._stamp:
                    now = self._clock.unix_s()
                    self._marked_unix_s = min(max(status.st_mtime, 0.0), now)
                    age_s = now - self._marked_unix_s if self._stamp is None else 0.0
                    self._marked_s = self._clock.monotonic_s() - age_s
                    self._stamp, self._found, self._error = stamp, None, None
                    self._take(read_at(fd, MARK_BYTES_MAX, 0))
        except RefusedError:
            self._stamp, self._found, self._error = None, None, None
            raise
        if self._error:
            raise self._error.with_traceback(None)  # otherwise the traceback grows with each raise

    def _take(self, data: bytes) -> None:
        try:
            self._found = parse_mark(data)
        except RefusedError as err:
            self._error = err.with_traceback(None)

    def _is_fresh(self) -> bool:
        age_s = self._clock.monotonic_s() - self._marked_s
        return self._found is not None and age_s <= MARK_STALE_S
