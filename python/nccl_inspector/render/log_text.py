# SPDX-License-Identifier: Apache-2.0
"""What NCCL's log says, for a terminal and as JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nccl_inspector.model.card import (
    CRITICAL,
    EXIT_CRITICAL,
    EXIT_HEALTHY,
    EXIT_NO_DATA,
    EXIT_WARNING,
    WARNING,
    Severity,
)
from nccl_inspector.model.wording import clock, node_list, number, volume
from nccl_inspector.nccl_log.catalogue import Role
from nccl_inspector.nccl_log.judge import (
    Fact,
    FirstError,
    LogFinding,
    LogReport,
    said_as_early,
    said_followers,
)
from nccl_inspector.render.text_layout import Item, Paint, bullet, join, paragraph

FORMAT = 1
NO_LINES = "no line of NCCL's or of PyTorch's watchdog was found"
_FINDINGS_SHOWN = 12
_QUOTED_CHARS = 300
_PAINTS = {CRITICAL: Paint.CRITICAL, WARNING: Paint.WARNING}


def exit_code(report: LogReport) -> int:
    """Return 0 if all is well, 1 after warnings, 2 after critical findings, 3 without any line."""
    if not report.lines:
        return EXIT_NO_DATA
    worst: Severity | None = report.worst
    if worst is CRITICAL:
        return EXIT_CRITICAL
    if worst is WARNING or report.only_consequences:
        return EXIT_WARNING
    return EXIT_HEALTHY


def render_log(report: LogReport, columns: int, *, everything: bool, colour: bool) -> str:
    """Return the report as text; `everything`: all findings and what they follow from."""
    title: Item = paragraph("NCCL'S LOG  ", _about(report), Paint.TITLE)
    blocks: list[list[Item]] = [[title]]
    if not report.lines:
        return join([*blocks, [bullet(NO_LINES), *_notes(report)]], columns, colour)
    if report.first is not None:
        words = said_first(report.first)
        blocks.append([paragraph("FIRST ERROR  ", words, Paint.CRITICAL)])
    elif words := report.no_first:
        blocks.append([paragraph("CAUSE  ", words, Paint.WARNING)])
    # If nothing but consequences is known, they are what there is to look at.
    everything_counts = everything or report.only_consequences
    told = [
        one for one in report.findings if everything_counts or one.rule.role is not Role.CONSEQUENCE
    ]
    shown = told if everything else told[:_FINDINGS_SHOWN]
    nothing: list[Item] = [paragraph("FINDINGS  ", "none", Paint.GOOD)]
    blocks.append(list(_findings(shown)) if shown else nothing)
    rest: list[Item] = []
    if len(told) > len(shown):
        rest.append(bullet(f"and {len(told) - len(shown)} more (--all shows all)"))
    folded = [
        f"{one.rule.id} ({number(one.processes, 'process')})"
        for one in report.findings
        if not everything_counts and one.rule.role is Role.CONSEQUENCE
    ]
    if folded:
        rest.append(bullet(f"what followed from errors: {', '.join(folded)} (--all shows all)"))
    blocks += [rest, _facts(report.facts), _notes(report)]
    return join(blocks, columns, colour)


def _about(report: LogReport) -> str:
    on = f" on {node_list(report.hosts)}" if report.hosts else ""
    return (
        f"{number(report.files, 'file')}, {volume(report.bytes)}; "
        f"{number(report.processes, 'process')}{on}"
    )


def said_first(first: FirstError) -> str:
    """Return who wrote the first error, when, and who followed."""
    when = f" at {clock(first.time_s)}" if first.time_s is not None else ""
    words = f"{first.who}{when}: {first.rule.title}"
    words += said_as_early(first.as_early) + said_followers(first.followers, first.within_s)
    if first.waited:
        words += f". {first.waited} had given up waiting before it, so something was wrong earlier"
    if first.unknown:
        words += f". Before it is a warning that is not in the catalogue ({first.unknown})"
    if not first.certain:
        words += ". Not all errors have a time, so another one may have been earlier"
    return words


def _findings(findings: Sequence[LogFinding]) -> Iterator[Item]:
    yield paragraph("FINDINGS", "", Paint.TITLE)
    for one in findings:
        paint = _PAINTS.get(one.severity, Paint.PLAIN)
        yield paragraph(f" {one.severity} ", f"{one.rule.id}: {one.rule.title}", paint, 5)
        lines = f"; {number(one.lines, 'line')}" if one.lines else ""
        yield paragraph("   who: ", f"{one.who or 'not known'}{lines}", indent=5)
        if one.detail:
            yield paragraph("   ", one.detail, indent=5)
        if one.quote is not None:
            yield paragraph(f"   {one.quote.place}: ", _quoted(one), indent=5)
        if one.rule.meaning:
            yield paragraph("   ", one.rule.meaning, indent=5)
        if one.action:
            yield paragraph("   -> ", one.action, indent=6)


def _quoted(one: LogFinding) -> str:
    if one.quote is None:
        return ""
    text = one.quote.record.message.decode("utf-8", "replace").strip()
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}..."


def _facts(facts: Sequence[Fact]) -> list[Item]:
    if not facts:
        return []
    items: list[Item] = [paragraph("FACTS", "", Paint.TITLE)]
    for fact in facts:
        words = ", ".join(
            value if fact.name == "set-up" else f"{value} ({count:,})"
            for value, count in fact.values
        )
        items.append(paragraph(f" {fact.name}: ", words, indent=3))
    return items


def _notes(report: LogReport) -> list[Item]:
    return [bullet(f"note: {note}") for note in report.notes]


def log_json(report: LogReport) -> str:
    """Return the report for programs, as one line."""
    return json.dumps(_plain(report)) + "\n"


def _plain(report: LogReport) -> dict[str, Any]:
    first = report.first
    return {
        "format": FORMAT,
        "files": report.files,
        "bytes": report.bytes,
        "lines": report.lines,
        "processes": report.processes,
        "hosts": list(report.hosts),
        "first_error": None
        if first is None
        else {
            "rule": first.rule.id,
            "who": first.who,
            "local_time": clock(first.time_s) if first.time_s is not None else None,
            "place": first.quote.place,
            "followers": first.followers,
            "within_s": first.within_s,
            "certain": first.certain,
            "as_early": list(first.as_early),
            "waited_before": first.waited,
            "unknown_before": first.unknown,
        },
        "no_first_error": report.no_first,
        "findings": [_plain_finding(one) for one in report.findings],
        "facts": [{"name": one.name, "values": [list(pair) for pair in one.values]}
                  for one in report.facts],
        "notes": list(report.notes),
    }  # fmt: skip


def _plain_finding(one: LogFinding) -> dict[str, Any]:
    quote = one.quote
    return {
        "rule": one.rule.id,
        "role": str(one.rule.role),
        "severity": str(one.severity),
        "scope": str(one.rule.scope),
        "title": one.rule.title,
        "who": one.who,
        "processes": one.processes,
        "names": list(one.names),
        "lines": one.lines,
        "detail": one.detail,
        "place": None if quote is None else quote.place,
        "text": None if quote is None else quote.record.message.decode("utf-8", "replace"),
        "meaning": one.rule.meaning,
        "action": one.action,
    }
