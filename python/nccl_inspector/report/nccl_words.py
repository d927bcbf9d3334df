# SPDX-License-Identifier: Apache-2.0
"""What a job's output says of its end, and NCCL of its set-up, as findings of the report.

One reader (nccl_log/reader.py) takes what NCCL, PyTorch, the program and the launchers wrote, and
tells which of their errors was the first. These are claims: the user can write such lines, too. So
they name no rank, node or port that anything else would be held against, they are never critical,
they do not change a verdict, and they are information if the measurements show that the job was
healthy, or if Slurm's record of the job says otherwise.
"""

import re
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
from nccl_inspector.nccl_log.catalogue import LogRule, Role, Scope, load_catalogue
from nccl_inspector.nccl_log.judge import LogFinding, LogReport, said_as_early, said_followers
from nccl_inspector.nccl_log.process_log import LAUNCHER
from nccl_inspector.nccl_log.record import Level
from nccl_inspector.report.flight_words import agreement, measured_roots
from nccl_inspector.slurm.job_record import OVER

SETTINGS_MAX = 3
_TOLD_MAX = 12
_TEXT_CHARS_MAX = 240
_SHOWN_CHARS = 120  # of an exception in a sentence
# By PyTorch's own counts; what the boxes say of a hang is more.
_COUNTS: Final = "rank-behind"
# How a rule is known: the text says what happened; a launcher or Slurm wrote it.
_PYTHON: Final = "python"
_LAUNCHER: Final = "launcher"
_RANK = re.compile(r"\b(?:rank|task) (\d{1,7})(?![\d,-])")
# Slurm's states of a job that it ended for the reason of a rule.
_STATES: Final = {"time-limit": "TIMEOUT", "slurm-node-failed": "NODE_FAIL"}
# States that say why a job failed, and the rules that say the same.
_FAILED_BY: Final = {
    "OUT_OF_MEMORY": frozenset({"oom-killed", "task-killed"}),
    "NODE_FAIL": frozenset({"slurm-node-failed"}),
}


@dataclass(frozen=True, slots=True)
class Told:
    """One finding of the log; the texts are the user's. `rule` is an id of the catalogue.

    `by_nccl`: NCCL or PyTorch wrote it, and not the program or a launcher.
    """

    rule: str
    who: str
    processes: int
    detail: str
    text: str
    place: str
    by_nccl: bool = True


@dataclass(frozen=True, slots=True)
class NcclWords:
    """What the log says; `first` is the rule of the first error, `followers` those after it.

    `as_early`: rules of other errors that may have been before it.
    """

    lines: int
    told: tuple[Told, ...]
    first: str = ""
    first_who: str = ""
    followers: int = 0
    within_s: float | None = None
    as_early: tuple[str, ...] = ()


def words_of(report: LogReport, counted: int | None = None) -> NcclWords:
    """Return the most important findings of a log.

    `counted`: bytes from which on the numbers of lines are not known; None: they all are.
    """
    told = [_told(one, counted) for one in report.findings if one.severity is not INFO]
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
        first.as_early,
    )


def _told(one: LogFinding, counted: int | None) -> Told:
    quote = one.quote
    if quote is None:
        return Told(one.rule.id, one.who, one.processes, one.detail, "", "")
    text = quote.record.message.decode("utf-8", "replace").strip()
    place = quote.place.rpartition("/")[2]
    if counted is not None and quote.order >= counted:
        place = place.rpartition(":")[0]
    by_nccl = quote.record.level is not Level.JOB
    return Told(
        one.rule.id, one.who, one.processes, one.detail, text[:_TEXT_CHARS_MAX], place, by_nccl
    )


def to_json(words: NcclWords) -> dict[str, Any]:
    """Return the words for another process."""
    return asdict(words)


def from_json(found: dict[str, Any]) -> NcclWords:
    """Return what `to_json` was given."""
    told = tuple(Told(**one) for one in found.pop("told"))
    return NcclWords(told=told, as_early=tuple(found.pop("as_early")), **found)


def tell_words(
    words: NcclWords | None,
    verdict: Verdict,
    findings: Sequence[Finding],
    *,
    state: str = "",
    requeued: bool = False,
) -> list[Finding]:
    """Return the findings beside those that were measured; `verdict` is by these alone.

    `state`: Slurm's word for the job's end, empty if it is not known. `requeued`: there was an
    attempt before, whose lines may be in the same output.
    """
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
    settings = _settings(told, severity)
    first = _first(words, told, state)
    if first is None:
        return list(settings)
    note = _against(first, state)
    if note:
        severity = INFO
    note = note or agreement(_ranks(first), findings)
    note += " It may be of an earlier attempt of the job." if requeued else ""
    return [_error(first, told, severity, note), *settings]


def explain_failure(
    verdict: Verdict,
    words: NcclWords | None,
    findings: Sequence[Finding],
    *,
    state: str = "",
    requeued: bool = False,
) -> str:
    """Return the summary of a job that failed and whose measurements do not say why.

    What the output says first is added if it contradicts neither Slurm's record nor a measurement.
    """
    if words is None or verdict.status not in (FAILED, CRASHED) or verdict.confidence != LOW:
        return verdict.summary
    known = load_catalogue().rules
    told = [(known[one.rule], one) for one in words.told if one.rule in known]
    first = _first(words, told, state)
    if first is None or not first.is_first or requeued or _against(first, state):
        return verdict.summary
    if first.rule.id not in _FAILED_BY.get(state, {first.rule.id}):
        return verdict.summary
    measured = measured_roots(findings)
    if measured and (ranks := _ranks(first)) and measured.isdisjoint(ranks):
        return verdict.summary
    return f"{verdict.summary}; {first.writer} wrote: {first.words}"


@dataclass(frozen=True, slots=True)
class _First:
    """The error that stands for all; `is_first`: it was the first, and not only the worst."""

    rule: LogRule
    told: Told
    is_first: bool
    who: str
    after: str  # who followed

    @property
    def words(self) -> str:
        """Return what was written and by whom, in one sentence."""
        words = self.rule.title
        if self.rule.known == _PYTHON and self.told.text:
            text = self.told.text.splitlines()[0]
            words += f": {text if len(text) <= _SHOWN_CHARS else f'{text[:_SHOWN_CHARS]}...'}"
        if self.who == LAUNCHER:
            return words
        return f"{words} ({self.who or 'not known who'})"

    @property
    def writer(self) -> str:
        """Return who wrote it."""
        if self.told.by_nccl:
            return "NCCL"
        return "its launcher" if self.rule.known == _LAUNCHER else "the job"


def _first(words: NcclWords, told: Sequence[tuple[LogRule, Told]], state: str) -> _First | None:
    """Return the first error, or the worst if it is not known which was the first.

    What Slurm's record says anyway is no news, nor how a task ended: a finding of its own lists all
    ends.
    """
    errors = [
        (rule, one)
        for rule, one in told
        if rule.role is not Role.SETTING and (rule.id, state) not in _STATES.items()
    ]
    rule, one = next(((r, o) for r, o in errors if r.id == words.first), (None, None))
    if rule is not None and one is not None:
        after = said_as_early(words.as_early) + said_followers(words.followers, words.within_s)
        return _First(rule, one, is_first=True, who=words.first_who, after=after)
    for rule, one in errors:
        if rule.known != _LAUNCHER or rule.role is Role.ERROR:
            return _First(rule, one, is_first=False, who=one.who, after="")
    return None


def _ranks(first: _First) -> set[str]:
    """Return who failed by the words, as `rank 3`; empty if they are about others, or all."""
    if first.rule.role is not Role.ERROR or first.rule.scope is not Scope.PROCESS:
        return set()
    return {f"rank {number}" for number in _RANK.findall(first.who)}


def _against(first: _First, state: str) -> str:
    """Return a sentence if Slurm's record contradicts what was written of the job's end.

    A step may reach a time limit of its own, and the job go on.
    """
    own = _STATES.get(first.rule.id)
    if own is None or state not in OVER or state == own or "*** JOB " not in first.told.text:
        return ""
    return f" Slurm's record of the job says {state}, and that is what counts."


def _error(
    first: _First, told: Sequence[tuple[LogRule, Told]], severity: Severity, note: str
) -> Finding:
    """Return one finding: the first error, or the worst; the others are its detail."""
    others = ", ".join(
        f"{rule.id} ({number(one.processes, 'process')})"
        for rule, one in told
        if rule.role is not Role.SETTING and one is not first.told
    )
    source = "NCCL's log" if first.told.by_nccl else "The job's output"
    return Finding(
        rules.NCCL_ERROR.id,
        severity,
        LOW,
        f"{source}: {first.words}{first.after}",
        _detail(first.rule, first.told) + (f" Also: {others}." if others else "") + note,
        actions=(first.rule.action,) if first.rule.action else (),
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
