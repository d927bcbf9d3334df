# SPDX-License-Identifier: Apache-2.0
"""The options for what a command does with a report card.

The renderers are imported only when they are needed, because the agent starts through the same
cli.py.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from nccl_inspector.commands.options import all_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import EXIT_NO_DATA, Card

COLOURS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What to do with a card; without as_json, html and mail it is printed as text."""

    as_json: bool
    html: Path | None  # `-`: standard output
    mail: str  # the addresses; empty: no mail
    colour: str
    everything: bool
    sendmail: Path


def card_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add OutputOptions, as as_json, html, mail, colour and everything."""
    options = (
        all_option,
        click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON."),
        click.option(
            "--html",
            type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
            help="Write a page for a browser to this file; - is standard output.",
        ),
        click.option("--mail", metavar="ADDRESS", default="", help="Send text and page as a mail."),
        click.option(
            "--color", "colour", type=click.Choice(COLOURS), default="auto", show_default=True,
            help="auto: use colours on a terminal, unless NO_COLOR is set.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def has_colour(choice: str) -> bool:
    """Tell whether to print the text in colour (no-color.org)."""
    if choice == "auto":
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        return sys.stdout.isatty() and not is_dumb and not os.environ.get("NO_COLOR")
    return choice == "always"


def write_card(card: Card, output: OutputOptions) -> int:
    """Write the card as wished; return the exit status, 0 to 3.

    Raises:
        InspectorError: a file cannot be written or a mail cannot be sent.
    """
    now = datetime.now(UTC)
    if output.mail:
        from nccl_inspector.render.mail import make_mail, send

        send(make_mail(card, output.mail, now), output.sendmail)
    if output.html is not None:
        from nccl_inspector.render.html import render_html

        _write_page(render_html(card, now), output.html)
    if output.as_json:
        from nccl_inspector.render.json import to_json

        click.echo(to_json(card, now), nl=False)
    elif not output.mail and output.html is None:
        from nccl_inspector.render.text import render_text
        from nccl_inspector.render.text_layout import COLUMNS_MAX

        colour = has_colour(output.colour)
        columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
        text = render_text(card, output.everything, colour, columns)
        # Without `color`, click would remove the colours if there is no terminal.
        click.echo(text, nl=False, color=colour)
    return card.exit_code


def exit_judging(context: click.Context, make: Callable[[], int]) -> NoReturn:
    """End the command with the exit status that `make` returns.

    An InspectorError gives EXIT_NO_DATA instead of the usual 1, because 1 would mean that the job
    has warnings.
    """
    try:
        status = make()
    except InspectorError as err:
        click.echo(f"nccl-inspector: {err}", err=True)
        status = EXIT_NO_DATA
    context.exit(status)


def _write_page(page: str, path: Path) -> None:
    if str(path) == "-":
        click.echo(page, nl=False)
        return
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as err:
        raise InspectorError(f"{path}: {os.strerror(err.errno or 0)}") from err
