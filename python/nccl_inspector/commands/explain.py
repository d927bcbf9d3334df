# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector explain`."""

import shutil

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.rules import BY_ID, RULES, Rule, severity_words
from nccl_inspector.render.text_layout import COLUMNS_MAX, Item, Paint, join, paragraph


def _listed(rule: Rule) -> Item:
    return paragraph(rule.id.ljust(max(map(len, BY_ID)) + 2), rule.summary)


def _explained(rule: Rule) -> list[Item]:
    return [
        paragraph("", f"{rule.id}: {rule.summary}", Paint.TITLE),
        paragraph("  ", rule.meaning),
        paragraph("  severity: ", f"{severity_words(rule)}.", indent=4),
        *([paragraph("  what to do: ", f"{rule.action}.", indent=4)] if rule.action else []),
    ]


@click.command()
@click.argument("finding_ids", metavar="[FINDING]...", nargs=-1)
def explain(finding_ids: tuple[str, ...]) -> None:
    """Say what a finding means, how severe it is and what to do; alone, list all findings.

    FINDING is the id below the findings of a report, such as straggler.
    """
    wanted = set(finding_ids)
    rules = [rule for rule in RULES if rule.id in wanted]
    unknown = wanted.difference(BY_ID)
    if unknown:
        raise InspectorError(
            f"{min(unknown)}: there is no such finding; nccl-inspector explain lists all"
        )
    columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
    blocks = [_explained(rule) for rule in rules] or [[_listed(rule) for rule in RULES]]
    click.echo(join(blocks, columns, colour=False), nl=False)
