# SPDX-License-Identifier: Apache-2.0
"""Times and job numbers as users of sacct and squeue write them.

Times are in UTC, as in all reports; sacct's are in the local time of its host. The forms of sacct
that are taken: https://slurm.schedmd.com/sacct.html (starttime).
"""

import re
from datetime import UTC, datetime, timedelta

import click

_AGO = re.compile(r"([0-9]{1,6})([mhdw])")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NOW = re.compile(
    r"now(?:-([0-9]{1,9})(s(?:econds?)?|m(?:inutes?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)?)?"
)
_DAYS_AGO = {"today": 0, "midnight": 0, "yesterday": 1}
_DATES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%m/%d/%y", "%m/%d/%y-%H:%M")
_TIMES = ("%H:%M", "%H:%M:%S")
WORDS = "12h, 7d, yesterday, now-1day, 08:30 or 2026-08-01T08:30 (UTC)"


def read_time(text: str, now_s: float) -> float:
    """Return the Unix time that a text means at a time.

    Raises:
        ValueError: it has none of the forms.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    word = text.casefold()
    if match := _AGO.fullmatch(word):
        return now_s - int(match[1]) * _UNIT_S[match[2]]
    if match := _NOW.fullmatch(word):
        unit = (match[2] or "s")[0]
        return now_s - int(match[1] or 0) * (1 if unit == "s" else _UNIT_S[unit])
    if word in _DAYS_AGO:
        return (today - timedelta(days=_DAYS_AGO[word])).timestamp()
    if word == "noon":
        return (today + timedelta(hours=12)).timestamp()
    for form in _DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    for form in _TIMES:
        try:
            at = datetime.strptime(text, form)
        except ValueError:
            continue
        return today.replace(hour=at.hour, minute=at.minute, second=at.second).timestamp()
    raise ValueError(f"not a time: {text}")


def time_option(_context: click.Context, _parameter: click.Parameter, text: str) -> float | None:
    """Return the Unix time of an option; None: it was not given."""
    if not text:
        return None
    try:
        return read_time(text, datetime.now(UTC).timestamp())
    except ValueError:
        raise click.BadParameter(f"not a time like {WORDS}") from None


def numbers_option(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    """Return the job ids of an option such as `4711,4712`."""
    words = [one for one in text.split(",") if one]
    if not all(one.isascii() and one.isdecimal() and len(one) < 12 for one in words):
        raise click.BadParameter("not job ids like 4711,4712")
    return tuple(map(int, words))
