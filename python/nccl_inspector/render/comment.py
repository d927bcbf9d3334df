# SPDX-License-Identifier: Apache-2.0
"""A card as one line for AdminComment: people read it in sacct, `nccl-inspector show` parses it.

    NCCL DEGRADED (network): transfers on node n13 take 1.39 times as long, cost 33 s (0.4%) --
    NCCL DEGRADED(network) cost=33s/0.4% slow=2026-08-02T14:40:10Z+380s/-28%
    who=node:n13,port:n13%20mlx5_4 wait=9% ranks=32/32 found=0C,2W,1I conf=high attempt=0 v=1

It is one line of printable ASCII with at most 512 bytes: words for people, and behind them what
programs parse. Lines of older releases have only the second part, and are read as well. What is not
known is left out. A site may have text of its own before and after it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import (
    CAUSES,
    CONFIDENCES,
    CRITICAL,
    HEALTHY,
    INFO,
    STATUSES,
    WARNING,
    Card,
    Entity,
)
from nccl_inspector.model.headline import who_cost_what
from nccl_inspector.model.table_columns import cut
from nccl_inspector.model.wording import (
    briefly_cost,
    elapsed,
    instant,
    leading_finding,
    number,
    percent,
    said_entity,
    said_status,
    said_waiting,
    worst_first,
)
from nccl_inspector.system.printable import plain

BYTES_MAX = 512
WORDS_MAX = 280  # with less than that for entities, if there are many
_BETWEEN = " -- "
_TEXT_MAX = 1 << 16  # of a comment that is searched
_NAME_CHARS = 60
_ENTITIES_MAX = 5
_COUNT_MAX = 10**9 - 1
_LINE = re.compile(
    r"(?:^|(?<=\s))NCCL ([A-Z_]{1,20})(?:\(([a-z_]{1,40})\))?((?: [a-z]+=[!-~]*)*) v=1\b",
    re.IGNORECASE,
)
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_SHARE = r"(-?[0-9]{1,12}(?:\.[0-9]{1,6})?)%"
_COST = re.compile(rf"{_NUMBER}s(?:/{_SHARE})?")
_SLOW = re.compile(rf"([0-9T:Z-]{{20}})\+{_NUMBER}s(?:/{_SHARE})?", re.IGNORECASE)
_RANKS = re.compile(r"([0-9]{1,12})(?:/([0-9]{1,12}))?")
_FOUND = re.compile(r"([0-9]{1,9})C,([0-9]{1,9})W,([0-9]{1,9})I", re.IGNORECASE)
_ENTITY = re.compile(r"([^:,]{1,180}):([^:,]{1,180})")
# The words have no key=value, so they can forge none, and nothing that ends a text of Slurm's.
_NOT_IN_WORDS = str.maketrans(dict.fromkeys('="|\\', "_") | {"'": ""})
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class SlowTime:
    """The longest slow time; `depth` is negative."""

    start_s: float
    length_s: float
    depth: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a comment says about a card."""

    status: str
    cause: str
    confidence: str
    cost_s: float | None
    cost_share: float | None
    slow: SlowTime | None
    entities: tuple[Entity, ...]
    entities_left: int
    waiting_share: float | None
    ranks_seen: int
    ranks_expected: int | None
    found: tuple[int, int, int]  # critical, warnings, information
    attempt: int


def summarize(card: Card) -> Summary:
    """Return what a comment says; the entities of what the verdict is about come first."""
    verdict, quality = card.verdict, card.data_quality
    first = leading_finding(card)
    entities = tuple(
        dict.fromkeys(
            Entity(one.kind, one.name)
            for finding in (*([first] if first else ()), *worst_first(card.findings))
            if finding.severity != INFO
            for one in finding.entities
        )
    )
    slow = max(
        (
            SlowTime(one.period.start_s, one.period.end_s - one.period.start_s, one.depth)
            for one in card.timeline.degradations
        ),
        key=lambda one: one.length_s,
        default=None,
    )
    severities = [one.severity for one in card.findings]
    return Summary(
        verdict.status,
        verdict.cause,
        verdict.confidence,
        verdict.cost_s,
        verdict.cost_share,
        slow,
        entities[:_ENTITIES_MAX],
        max(0, len(entities) - _ENTITIES_MAX),
        verdict.waiting_share,
        quality.ranks_seen,
        quality.ranks_expected,
        (severities.count(CRITICAL), severities.count(WARNING), severities.count(INFO)),
        card.job.restart,
    )


def _word(text: str) -> str:
    """Return a user's text without separators and control characters."""
    return quote(plain(text[:_NAME_CHARS]), safe="._-[]/+")


def _share(value: float | None) -> str:
    return "" if value is None else f"/{round(value * 100, 1):g}%"


def _count(value: int) -> int:
    """Return a number that `read_comment` can parse: not negative, and at most nine digits."""
    return min(max(value, 0), _COUNT_MAX)


def _slow_word(slow: SlowTime) -> str:
    at = instant(slow.start_s)
    if at is None or slow.length_s >= 1e18:
        return ""
    return f"slow={at:{_TIME}}+{slow.length_s:.0f}s{_share(slow.depth)}"


def _tokens(one: Summary, entities: int) -> Iterator[str]:
    cause = f"({one.cause.replace(' ', '_')})" if one.cause else ""
    yield f"NCCL {one.status.replace(' ', '_')}{cause}"
    if one.cost_s is not None and one.cost_s < 1e18:
        yield f"cost={one.cost_s:.0f}s{_share(one.cost_share)}"
    if one.slow:
        yield _slow_word(one.slow)
    if one.entities:
        left = len(one.entities) - entities + one.entities_left
        names = [f"{_word(who.kind)}:{_word(who.name)}" for who in one.entities[:entities]]
        yield f"who={','.join([*names, f'+{left}'] if left else names)}"
    if one.waiting_share is not None:
        yield f"wait={_share(one.waiting_share)[1:]}"
    of = "" if one.ranks_expected is None else f"/{_count(one.ranks_expected)}"
    yield f"ranks={_count(one.ranks_seen)}{of}"
    yield "found={}C,{}W,{}I".format(*map(_count, one.found))
    if one.confidence:
        yield f"conf={one.confidence}"
    yield f"attempt={_count(one.attempt)}"
    yield "v=1"


def _words(card: Card, room: int) -> str:
    """Return the verdict in words for people, within `room`; its cost is never cut."""
    said = who_cost_what(card).removesuffix(".")
    cost = "" if said else briefly_cost(card.verdict)
    said = said or card.verdict.summary or "nothing is known"
    end = f", {cost}" if cost else ""
    text = f"NCCL {said_status(card.verdict)}: {said}"
    return cut(plain(text), room - len(end)).translate(_NOT_IN_WORDS) + end


def make_comment(card: Card) -> str:
    """Return the line: words first, then the rest, with as many entities as there is room for."""
    summary = summarize(card)
    lines = [
        " ".join(token for token in _tokens(summary, count) if token)
        for count in range(len(summary.entities), -1, -1)
    ]
    room = BYTES_MAX - len(_BETWEEN)
    words = _words(card, min(WORDS_MAX, room - len(lines[-1])))
    return words + _BETWEEN + next(line for line in lines if len(words) + len(line) <= room)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _part(share: str | None) -> float | None:
    return None if share is None else float(share) / 100


def _read_slow(words: Mapping[str, str]) -> SlowTime | None:
    found = _SLOW.fullmatch(words.get("slow", ""))
    if found is None:
        return None
    try:
        at = datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
    except ValueError as err:
        raise RefusedError("bad_comment", "it has an invalid time") from err
    return SlowTime(at.timestamp(), float(found[2]), _part(found[3]))


def _read_who(words: Mapping[str, str]) -> tuple[tuple[Entity, ...], int]:
    *names, last = words.get("who", "").split(",")
    left = int(last[1:]) if re.fullmatch(r"\+[0-9]{1,9}", last) else 0
    found = [_ENTITY.fullmatch(name) for name in (*names, *([] if left else [last]))]
    return tuple(Entity(unquote(one[1]), unquote(one[2])) for one in found if one), left


def read_comment(text: str) -> Summary:
    """Return what a comment says, wherever it is in the text; if there are two, the last.

    Raises:
        RefusedError: the reason is no_comment or bad_comment.
    """
    # sacctmgr makes all letters lower-case, also those of names.
    lines = list(_LINE.finditer(text[:_TEXT_MAX]))
    if not lines:
        raise RefusedError("no_comment", "there is no summary of a report in this text")
    status, cause, rest = lines[-1].groups("")
    words = dict(word.partition("=")[::2] for word in rest.split())
    ranks = _RANKS.fullmatch(words.get("ranks", ""))
    found = _FOUND.fullmatch(words.get("found", ""))
    status, cause = status.upper().replace("_", " "), cause.lower().replace("_", " ")
    known = status in STATUSES and cause in ("", *CAUSES)
    known = known and words.get("conf", "") in ("", *CONFIDENCES)
    attempt = words.get("attempt", "")
    if not known or ranks is None or found is None or not re.fullmatch("[0-9]{1,9}", attempt):
        raise RefusedError("bad_comment", "it is incomplete or was changed")
    cost = _COST.fullmatch(words.get("cost", ""))
    wait = re.fullmatch(_SHARE, words.get("wait", ""))
    entities, left = _read_who(words)
    return Summary(
        status,
        cause,
        words.get("conf", ""),
        _float(cost[1]) if cost else None,
        _part(cost[2]) if cost else None,
        _read_slow(words),
        entities,
        left,
        _part(wait[1]) if wait else None,
        int(ranks[1]),
        int(ranks[2]) if ranks[2] else None,
        (int(found[1]), int(found[2]), int(found[3])),
        int(attempt),
    )


def render_summary(one: Summary) -> str:
    """Return a comment as text with several lines."""
    cause = f" ({one.cause})" if one.cause else ""
    lines = [f"{one.status}{cause}" + (f", {one.confidence} confidence" if one.confidence else "")]
    if one.cost_s:
        share = f" ({percent(one.cost_share)} of its time)" if one.cost_share is not None else ""
        lines.append(f"it cost the job about {elapsed(one.cost_s)}{share}")
    if one.slow:
        depth = f" by {percent(-one.slow.depth)}" if one.slow.depth is not None else ""
        at = instant(one.slow.start_s)
        length = elapsed(one.slow.length_s)
        lines.append(f"slow{depth} for {length} from {at:%Y-%m-%d %H:%M:%S} UTC on")
    if one.entities:
        left = f" and {one.entities_left} more" if one.entities_left else ""
        lines.append(f"who: {', '.join(map(said_entity, one.entities))}{left}")
    if one.waiting_share is not None and one.status != HEALTHY:
        lines.append(said_waiting(one.waiting_share))
    of = "" if one.ranks_expected is None else f" of {one.ranks_expected:,}"
    lines.append(f"data of {one.ranks_seen:,}{of} ranks, attempt {one.attempt}")
    critical, warnings, infos = one.found
    said = f"{number(critical, 'critical finding')}, {number(warnings, 'warning')}"
    lines.append(f"{said}, {infos:,} for information")
    return "\n".join(map(plain, lines)) + "\n"
