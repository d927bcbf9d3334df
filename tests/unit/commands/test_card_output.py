# SPDX-License-Identifier: Apache-2.0
"""The options that say what becomes of a card, and `show`."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from nccl_inspector.commands import show as show_module
from nccl_inspector.commands.card_output import OutputOptions, card_options, write_card
from nccl_inspector.errors import InspectorError
from nccl_inspector.render.comment import make_comment
from nccl_inspector.render.text import render_text
from tests.support import example_cards
from tests.support.example_cards import CARDS

LINE = make_comment(example_cards.network())


def report(name: str, *words: str, sendmail: Path = Path("/none")) -> Result:
    """Run a command with our options on one of the cards."""

    @click.command()
    @card_options
    @click.pass_context
    def command(context: click.Context, /, **options: Any) -> None:
        context.exit(write_card(CARDS[name](), OutputOptions(sendmail=sendmail, **options)))

    return CliRunner().invoke(command, words, env={"COLUMNS": None})


def test_without_options_it_is_text_without_colour_where_there_is_no_terminal() -> None:
    done = report("network")
    assert done.output == render_text(example_cards.network())
    assert "\x1b" not in done.output


def test_colour_can_be_had_anywhere_and_nowhere() -> None:
    assert "\x1b[" in report("network", "--color=always").output
    assert "\x1b" not in report("network", "--color=never").output
    assert report("network", "--color=red").exit_code == 2


@pytest.mark.parametrize(
    ("name", "status"),
    [("healthy", 0), ("network", 1), ("straggler", 1), ("hang", 2), ("failed", 2), ("no_data", 3)],
)
@pytest.mark.parametrize("word", ["--json", "--all"])
def test_the_exit_status_is_that_of_the_card(name: str, status: int, word: str) -> None:
    assert report(name, word).exit_code == status


def test_json_is_all_of_the_output() -> None:
    assert json.loads(report("straggler", "--json").output)["verdict"]["status"] == "DEGRADED"


def test_a_page_goes_into_a_file_or_to_the_output(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert report("network", "--html", str(page)).output == ""
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert report("network", "--html", "-").output.startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    done = report("network", "--html", str(tmp_path / "none" / "page.html"))
    assert isinstance(done.exception, InspectorError)
    assert str(done.exception).endswith("page.html: No such file or directory")


def test_a_mail_is_sent_and_a_page_written_at_once(tmp_path: Path) -> None:
    fake = tmp_path / "sendmail"
    fake.write_text(f"#!/bin/sh\ncat >{tmp_path}/mail\n")
    fake.chmod(0o755)
    page = tmp_path / "page.html"
    done = report("hang", "--mail", "amy", "--html", str(page), sendmail=fake)
    assert (done.exit_code, done.output) == (2, "")
    subject = b"NCCL HUNG, rank 2 (n11 GPU2), cost 37 min (28%): job 48213 gpt-pretrain"
    assert b"Subject: " + subject + b"\n" in (tmp_path / "mail").read_bytes()
    assert page.exists()


def show(*words: str, text: str | None = None, known: str | None = LINE) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show_module, "ask_slurm", lambda _job_id, _conf: known)
        return CliRunner().invoke(show_module.show, words, input=text)


def test_show_takes_a_text_a_job_and_the_input() -> None:
    first = "DEGRADED (network), high confidence"
    assert show(LINE).output.startswith(first)
    assert show("48213").output == show("-", text=f"sacct says\n {LINE} ").output
    assert show("48213").output.startswith(first)


@pytest.mark.parametrize(
    ("word", "known", "why"),
    [
        ("48213", None, "Slurm has no AdminComment of job 48213"),
        ("48213", "", "Slurm has no AdminComment of job 48213"),
        ("48213", "billing=7", "no_comment: there is no summary of a report in this text"),
        ("48213_1", LINE, "no_comment: there is no summary of a report in this text"),
    ],
)
def test_show_says_why_there_is_nothing_to_show(word: str, known: str | None, why: str) -> None:
    done = show(word, known=known)
    assert isinstance(done.exception, InspectorError)
    assert str(done.exception) == why


def test_help_says_what_every_option_does() -> None:
    text = report("network", "--help").output
    for option in ("--all", "--json", "--html", "--mail", "--color"):
        assert re.search(rf"{option}\b.*  +\S|{option}\b[^\n]*\n +\S", text)
