# SPDX-License-Identifier: Apache-2.0
"""The time zone of this machine's clock, with summer time.

`datetime.astimezone().tzinfo` is only the offset at one moment.
"""

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """The zone that the C library uses: TZ, else /etc/localtime."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        """Return the offset of the clock at a time; for an hour that occurs twice, by `fold`."""
        return None if at is None else at.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _: datetime | None) -> None:
        """Not needed."""

    def tzname(self, at: datetime | None) -> str | None:
        """Return the name of the zone at that time, such as CEST."""
        return None if at is None else at.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, at: datetime) -> datetime:
        """Return a time in UTC as local time."""
        local = datetime.fromtimestamp(at.replace(tzinfo=UTC).timestamp())
        return local.replace(tzinfo=self)
