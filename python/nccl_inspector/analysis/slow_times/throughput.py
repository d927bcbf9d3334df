# SPDX-License-Identifier: Apache-2.0
"""Find the job's own throughput in its output: lines such as `throughput per GPU: 314 TFLOP/s`.

The output is the user's and may contain anything: any bytes, endless lines, escape sequences,
prefixes of srun --label and torchrun, carriage returns of progress bars.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from math import inf
from statistics import median

from nccl_inspector.model.card import Period

LINE_BYTES_MAX = 4096  # of a longer line only this much is searched
LINES_MAX = 4_000_000  # about 10 s of work
READINGS_MAX = 20_000  # if there are more, every second one is dropped
UNIT_CHARS_MAX = 24
TOGETHER_S = 1.0
# No throughput in any unit is beyond these limits; within them, sums and shares do not overflow.
_VALUES = 1e-12, 1e24
SLACK_S = 120.0  # readings may lie this far outside of the job

# Possessive quantifiers (`++`) here and below: no character is tried twice.
_NUMBER = r"(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+"
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z\b|[+-]\d\d:?\d\d\b)?"
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BREAKS = re.compile(rb"[\r\n]+")

# Patterns of a line with throughput; the first one that finds anything is used for all lines.
# Groups: `value` with `unit`, or the time of an iteration as `seconds` or `milliseconds`; also
# `time`, if the line's time is not its first date.
BUILT_IN = (
    rf"throughput per GPU\s*+:\s*+(?:~\s*+)?+(?P<value>{_NUMBER})\s*+(?P<unit>[A-Za-z][\w/.]*+)",
    # Megatron-LM with --log-throughput
    rf"throughput per GPU \((?P<unit>[^()]{{1,{UNIT_CHARS_MAX}}}+)\)\s*+:\s*+(?P<value>{_NUMBER})",
    rf"elapsed time per iteration \(ms\)\s*+:\s*+(?P<milliseconds>{_NUMBER})",
)
_GROUPS = frozenset({"value", "unit", "seconds", "milliseconds", "time"})
_PER_S = "iterations/s"
_CUT = "only the first {:,} lines of what is read of it were looked at"


@dataclass(frozen=True, slots=True)
class Reading:
    """A throughput and when it was printed (Unix s); it is for the time since the last one."""

    time_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings; `refused` counts lines that matched but were not used, by reason."""

    unit: str
    found: tuple[Reading, ...]
    refused: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def apart_s(self) -> float:
        """The usual distance of two readings, in seconds; 0 if there are fewer than two."""
        times = [one.time_s for one in self.found]
        return median(two - one for one, two in pairwise(times)) if len(times) > 1 else 0.0


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern of a site or user.

    Raises:
        ValueError: it is no regular expression, or does not have the right groups.
    """
    try:
        pattern = re.compile(text)
    except re.error as err:
        raise ValueError(f"the throughput pattern is no regular expression: {err}") from err
    groups = set(pattern.groupindex)
    if not groups <= _GROUPS or len(groups & {"value", "seconds", "milliseconds"}) != 1:
        raise ValueError(
            "the throughput pattern must have one group named value, seconds or milliseconds, "
            "and may have unit and time"
        )
    return pattern


def read_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of an output that comes in pieces, without control characters."""
    rest = b""
    for chunk in chunks:
        *lines, rest = _BREAKS.split(rest + chunk)
        for line in lines:
            yield _clean(line)
        # The rest of a long line is not kept; where it ends does not matter.
        rest = rest[: LINE_BYTES_MAX + 1]
    yield _clean(rest)


def _clean(line: bytes) -> str:
    return _ESCAPES.sub("", line[:LINE_BYTES_MAX].decode("utf-8", "replace"))


def _when(text: str, zone: tzinfo, after_s: float) -> tuple[float, bool] | None:
    """Return the Unix time of the first date, and whether it has a zone; None: there is no date."""
    match = _TIME.search(text)
    if match is None:
        return None
    date, clock, fraction, offset = match.groups()
    try:
        when = datetime.fromisoformat(f"{date}T{clock}{offset or ''}")
        when += timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6]))
        if offset:
            return when.timestamp(), True
        local = when.replace(tzinfo=zone)
        time_s = local.timestamp()
        # When summer time ends, an hour comes twice; the order of the lines tells which one it is.
        return (time_s if time_s >= after_s else max(time_s, local.replace(fold=1).timestamp())), (
            False
        )
    except (ValueError, OverflowError):
        return None


def _value(match: re.Match[str]) -> tuple[float, str] | None:
    words = match.groupdict()
    try:
        if words.get("value") is not None:
            value, unit = float(words["value"]), words.get("unit") or ""
        elif words.get("seconds") is not None:
            value, unit = 1 / float(words["seconds"]), _PER_S
        else:
            value, unit = 1000 / float(words["milliseconds"]), _PER_S
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        return None
    unit = "".join(char for char in unit if char.isprintable())[:UNIT_CHARS_MAX]
    return (value, unit) if _VALUES[0] <= value <= _VALUES[1] else None


class _Finder:
    """What one pattern finds."""

    def __init__(self, pattern: re.Pattern[str], zone: tzinfo) -> None:
        self._pattern, self._zone = pattern, zone
        self.rows: list[tuple[float, float, str, bool]] = []  # time, value, unit, had a zone
        self.refused, self.matches, self.step = Counter[str](), 0, 1

    def take(self, line: str) -> None:
        """Search one line."""
        match = self._pattern.search(line)
        if match is None:
            return
        self.matches += 1
        value = _value(match)
        after_s = self.rows[-1][0] if self.rows else -inf
        text = match.groupdict().get("time") or line
        when = _when(text, self._zone, after_s)
        if value is None:
            self.refused["odd number"] += 1
        elif when is None:
            self.refused["without a time"] += 1
        elif self.matches % self.step == 0:
            self.rows.append((when[0], *value, when[1]))
            if len(self.rows) > READINGS_MAX:
                del self.rows[::2]
                self.step *= 2


def _in_zone(
    rows: Sequence[tuple[float, float, str, bool]], zone: tzinfo, job: Period | None
) -> tuple[list[tuple[float, float]], list[str]]:
    """Return time and value of the rows within the job; in UTC if that puts more of them there."""
    if job is None:
        return [(time_s, value) for time_s, value, _, _ in rows], []

    def within(time_s: float) -> bool:
        return job.start_s - SLACK_S <= time_s <= job.end_s + SLACK_S

    def in_utc(time_s: float, said: bool) -> float:
        if said:
            return time_s
        return datetime.fromtimestamp(time_s, zone).replace(tzinfo=UTC).timestamp()

    local = [(time_s, value) for time_s, value, _, _ in rows if within(time_s)]
    utc = [
        (in_utc(time_s, said), value)
        for time_s, value, _, said in rows
        if within(in_utc(time_s, said))
    ]
    if len(utc) > len(local):
        return utc, ["times of its throughput lines taken for UTC: else they are not of this job"]
    return local, []


def _together(rows: Iterable[tuple[float, float]]) -> Iterator[Reading]:
    """Yield one reading (the median) for rows of about the same time: every rank may print it."""
    group: list[tuple[float, float]] = []
    for row in sorted(rows):
        if group and row[0] - group[0][0] >= TOGETHER_S:
            yield Reading(group[0][0], median(value for _, value in group))
            group = []
        group.append(row)
    if group:
        yield Reading(group[0][0], median(value for _, value in group))


def read_throughput(
    lines: Iterable[str],
    zone: tzinfo,
    job: Period | None = None,
    patterns: Sequence[re.Pattern[str]] | None = None,
) -> Readings:
    """Return the readings of an output; `zone` is used for times without a zone.

    Lines outside of the job are refused; readings of about the same time become one, their median.
    """
    wanted = patterns or [re.compile(text) for text in BUILT_IN]
    finders = [_Finder(pattern, zone) for pattern in wanted]
    rest = iter(lines)
    for line in islice(rest, LINES_MAX):
        for finder in finders:
            finder.take(line)
    cut = [] if next(rest, None) is None else [_CUT.format(LINES_MAX)]
    best = next((one for one in finders if one.rows), None)
    if best is None:
        best = max(finders, key=lambda one: one.matches)
        return Readings("", (), dict(best.refused), tuple(cut))
    unit = Counter(row[2] for row in best.rows).most_common(1)[0][0]
    rows = [row for row in best.rows if row[2] == unit]
    placed, notes = _in_zone(rows, zone, job)
    refused = best.refused + Counter(
        {"in another unit": len(best.rows) - len(rows), "not of this job": len(rows) - len(placed)}
    )
    notes += cut
    if best.step > 1:
        notes.append(f"one throughput line of {best.step} was taken")
    return Readings(unit, tuple(_together(placed)), dict(refused), tuple(notes))
