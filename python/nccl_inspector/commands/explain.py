# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector explain`."""

import shutil
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.rules import BY_ID, RULES, SEVERITY_WORDS, Rule, severity_words
from nccl_inspector.nccl_log.catalogue import LogRule, load_catalogue
from nccl_inspector.render.text_layout import COLUMNS_MAX, Item, Paint, join, paragraph


def _listed(ids: Mapping[str, str]) -> list[Item]:
    width = max(map(len, ids)) + 2
    return [paragraph(name.ljust(width), summary) for name, summary in ids.items()]


def _explained(rule: Rule) -> list[Item]:
    return _entry(f"{rule.id}: {rule.summary}", rule.meaning, severity_words(rule), rule.action)


def _log_explained(rule: LogRule) -> list[Item]:
    severity = SEVERITY_WORDS[rule.severity]
    return _entry(f"{rule.id}: {_sentence(rule)}", rule.meaning, severity, rule.action)


def _sentence(rule: LogRule) -> str:
    return f"{rule.title[0].upper()}{rule.title[1:]}."


def _entry(title: str, meaning: str, severity: str, action: str) -> list[Item]:
    return [
        paragraph("", title, Paint.TITLE),
        *([paragraph("  ", meaning)] if meaning else []),
        paragraph("  severity: ", f"{severity}.", indent=4),
        *([paragraph("  what to do: ", f"{action}.", indent=4)] if action else []),
    ]


def _all(log_rules: Iterable[LogRule]) -> list[list[Item]]:
    """Return the lists of all ids, each with its summary."""
    return [
        [
            paragraph("", "Findings of a report", Paint.TITLE),
            *_listed({rule.id: rule.summary for rule in RULES}),
        ],
        [
            paragraph("", "Rules of NCCL's log (nccl-inspector logs)", Paint.TITLE),
            *_listed({rule.id: _sentence(rule) for rule in log_rules}),
        ],
    ]


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
def explain(ids: tuple[str, ...]) -> None:
    """Say what a finding means, how severe it is and what to do; alone, list all.

    ID is that of a finding, which a report prints below its findings, such as straggler; or that of
    a rule of NCCL's log, such as ib-retry-exceeded.
    """
    log_rules = load_catalogue().rules
    unknown = set(ids).difference(BY_ID, log_rules)
    if unknown:
        name = min(unknown)
        near = get_close_matches(name, [*BY_ID, *log_rules], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; nccl-inspector explain lists all"
        raise InspectorError(f"{name}: there is no such finding{hint}")
    columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
    blocks = [_explained(rule) for rule in RULES if rule.id in ids]
    blocks += [_log_explained(rule) for rule in log_rules.values() if rule.id in ids]
    click.echo(join(blocks or _all(log_rules.values()), columns, colour=False), nl=False)
