# SPDX-License-Identifier: Apache-2.0
"""The options for what a command does with a report card.

The renderers are imported only when they are needed, because the agent starts through the same
cli.py.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import EXIT_NO_DATA, Card

COLOURS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Wish:
    """What to do with a card; without as_json, html and mail it is printed as text."""

    as_json: bool
    html: Path | None  # `-`: standard output
    mail: str  # the addresses; empty: no mail
    colour: str
    everything: bool
    sendmail: Path


def card_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of Wish to a command, as as_json, html, mail, colour and everything."""
    options = (
        click.option("--all", "everything", is_flag=True, help="Cut no table short."),
        click.option("--json", "as_json", is_flag=True, help="All of it, for programs."),
        click.option(
            "--html",
            type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
            help="A page for a browser into this file; - for standard output.",
        ),
        click.option("--mail", metavar="ADDRESS", default="", help="A mail with text and page."),
        click.option(
            "--color", "colour", type=click.Choice(COLOURS), default="auto", show_default=True,
            help="auto: on a terminal, without NO_COLOR.",
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


def write_card(card: Card, wish: Wish) -> int:
    """Write the card as wished; return the exit status, 0 to 3.

    Raises:
        InspectorError: a file cannot be written or a mail cannot be sent.
    """
    now = datetime.now(UTC)
    if wish.mail:
        from nccl_inspector.render.mail import make_mail, send

        send(make_mail(card, wish.mail, now), wish.sendmail)
    if wish.html is not None:
        from nccl_inspector.render.html import render_html

        _write_page(render_html(card, now), wish.html)
    if wish.as_json:
        from nccl_inspector.render.json import to_json

        click.echo(to_json(card, now), nl=False)
    elif not wish.mail and wish.html is None:
        from nccl_inspector.render.text import render_text

        colour = has_colour(wish.colour)
        # Without `color`, click would remove the colours if there is no terminal.
        click.echo(render_text(card, wish.everything, colour), nl=False, color=colour)
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
