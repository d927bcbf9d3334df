# SPDX-License-Identifier: Apache-2.0
"""The zone of this machine's clock, with its summer time.

`datetime.astimezone().tzinfo` is only what the clock is ahead by at one moment.
"""

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """As the C library has it: by TZ, else /etc/localtime."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        """Return what the clock was ahead by; of an hour that comes twice by `fold`."""
        return None if at is None else at.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _: datetime | None) -> None:
        """Nobody asks."""

    def tzname(self, at: datetime | None) -> str | None:
        """Return the name of the time then, such as CEST."""
        return None if at is None else at.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, at: datetime) -> datetime:
        """Return a time in UTC as the clock had it."""
        local = datetime.fromtimestamp(at.replace(tzinfo=UTC).timestamp())
        return local.replace(tzinfo=self)
