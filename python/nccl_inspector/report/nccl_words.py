# SPDX-License-Identifier: Apache-2.0
"""What NCCL wrote into a job's output, as findings of the report.

These are claims: the user can write such lines, too. So they name no rank, node or port that
anything else would be held against, they are never critical, they do not change a verdict, and
they are information if the measurements show that the job was healthy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CRASHED,
    FAILED,
    HEALTHY,
    INFO,
    LOW,
    WARNING,
    Finding,
    Severity,
    Verdict,
)
from nccl_inspector.model.wording import number
from nccl_inspector.nccl_log.catalogue import LogRule, Role, load_catalogue
from nccl_inspector.nccl_log.judge import LogFinding, LogReport, said_followers

SETTINGS_MAX = 3
_TOLD_MAX = 12
_TEXT_CHARS_MAX = 240
# By PyTorch's own counts; what the boxes say of a hang is more.
_COUNTS: Final = "rank-behind"


@dataclass(frozen=True, slots=True)
class Told:
    """One finding of the log; the texts are the user's. `rule` is an id of the catalogue."""

    rule: str
    who: str
    processes: int
    detail: str
    text: str
    place: str


@dataclass(frozen=True, slots=True)
class NcclWords:
    """What the log says; `first` is the rule of the first error, `followers` those after it."""

    lines: int
    told: tuple[Told, ...]
    first: str = ""
    first_who: str = ""
    followers: int = 0
    within_s: float | None = None


def words_of(report: LogReport) -> NcclWords:
    """Return the most important findings of a log."""
    told = [_told(one) for one in report.findings if one.severity is not INFO]
    first = report.first
    if first is None:
        return NcclWords(report.lines, tuple(told[:_TOLD_MAX]))
    return NcclWords(
        report.lines,
        tuple(told[:_TOLD_MAX]),
        first.rule.id,
        first.who,
        first.followers,
        first.within_s,
    )


def _told(one: LogFinding) -> Told:
    quote = one.quote
    text = "" if quote is None else quote.record.message.decode("utf-8", "replace").strip()
    place = "" if quote is None else quote.place.rpartition("/")[2]
    return Told(one.rule.id, one.who, one.processes, one.detail, text[:_TEXT_CHARS_MAX], place)


def to_json(words: NcclWords) -> dict[str, Any]:
    """Return the words for another process."""
    return asdict(words)


def from_json(found: dict[str, Any]) -> NcclWords:
    """Return what `to_json` was given."""
    told = tuple(Told(**one) for one in found.pop("told"))
    return NcclWords(told=told, **found)


def tell_words(
    words: NcclWords | None, verdict: Verdict, findings: Sequence[Finding]
) -> list[Finding]:
    """Return the findings beside those that were measured; `verdict` is by these alone."""
    if words is None:
        return []
    hung = any(one.rule in rules.ids_about(rules.About.HANG) for one in findings)
    known = load_catalogue().rules
    told = [
        (known[one.rule], one)
        for one in words.told
        if one.rule in known and not (hung and one.rule == _COUNTS)
    ]
    severity = INFO if verdict.status == HEALTHY else WARNING
    return [*_errors(words, told, severity), *_settings(told, severity)]


def explain_failure(verdict: Verdict, words: NcclWords | None) -> str:
    """Return the summary of a job that failed and whose measurements do not say why."""
    rule = load_catalogue().rules.get(words.first) if words else None
    if (
        words is None
        or rule is None
        or verdict.status not in (FAILED, CRASHED)
        or verdict.confidence != LOW
    ):
        return verdict.summary
    return f"{verdict.summary}; NCCL wrote: {rule.title} ({words.first_who})"


def _errors(
    words: NcclWords, told: Sequence[tuple[LogRule, Told]], severity: Severity
) -> Iterator[Finding]:
    """Yield one finding: the first error, or the worst; the others are its detail."""
    errors = [(rule, one) for rule, one in told if rule.role is not Role.SETTING]
    if not errors:
        return
    rule, one = next(((r, o) for r, o in errors if r.id == words.first), errors[0])
    who, after = one.who, ""
    if rule.id == words.first:
        who = words.first_who
        after = said_followers(words.followers, words.within_s)
    others = ", ".join(
        f"{other.rule} ({number(other.processes, 'process')})"
        for _, other in errors
        if other is not one
    )
    yield Finding(
        rules.NCCL_ERROR.id,
        severity,
        LOW,
        f"NCCL's log: {rule.title} ({who or 'not known who'}){after}",
        _detail(rule, one) + (f" Also: {others}." if others else ""),
        actions=(rule.action,) if rule.action else (),
    )


def _settings(told: Sequence[tuple[LogRule, Told]], severity: Severity) -> Iterator[Finding]:
    settings = [(rule, one) for rule, one in told if rule.role is Role.SETTING]
    for rule, one in settings[:SETTINGS_MAX]:
        yield Finding(
            rules.NCCL_SETTING.id,
            severity,
            LOW,
            f"NCCL's log: {rule.title} ({one.who or 'not known who'})",
            _detail(rule, one),
            actions=(rule.action,) if rule.action else (),
        )


def _detail(rule: LogRule, one: Told) -> str:
    parts = [rule.id]
    if one.detail:
        parts.append(one.detail)
    if one.text:
        parts.append(f"{one.place}: `{one.text}`")
    return f"{'; '.join(parts)}. {rule.meaning}".strip()
