# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector compare`: what changed from one job to another.

It imports modules only when it needs them: the agent starts through the same cli.py, and should not
use memory for SQLite and the analysis.
"""

import json
from dataclasses import asdict
from pathlib import Path

import click

from nccl_inspector.commands.fetched_files import with_files_of
from nccl_inspector.commands.options import all_option, conf_option, json_option
from nccl_inspector.model.card import Card
from nccl_inspector.settings.config import read_config


@click.command()
@click.argument("a")
@click.argument("b")
@conf_option
@all_option
@json_option
def compare(a: str, b: str, conf: Path | None, everything: bool, as_json: bool) -> None:
    """Say what changed from job A to job B, such as the same script yesterday and today.

    A and B are job IDs; JOB.ATTEMPT names an earlier attempt. Differences that the histograms
    cannot tell apart are called noise.
    """
    from nccl_inspector.analysis.history.compare import compare as compare_cards
    from nccl_inspector.report.stored import find_card, parse_attempt
    from nccl_inspector.store.card_rows import nodes_of
    from nccl_inspector.store.text import difference_text

    config = read_config(conf)

    def find(words: str) -> Card:
        files = with_files_of(config, *parse_attempt(words), stored=True)
        return find_card(words, files.report_dir, files.store_dir)

    first, second = find(a), find(b)
    difference = compare_cards(first, second, set(nodes_of(first)), set(nodes_of(second)))
    if as_json:
        click.echo(json.dumps(asdict(difference)))
    else:
        click.echo(difference_text(difference, everything), nl=False)
