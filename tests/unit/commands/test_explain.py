# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector explain`: what a report's findings mean, without the documentation at hand."""

import re

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.cli import cli
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.rules import BY_ID, RULES
from nccl_inspector.nccl_log.catalogue import load_catalogue
from nccl_inspector.render.text import render_text
from tests.support import example_cards

LOG_RULES = load_catalogue().rules


def explain(*words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, ["explain", *words], env={"COLUMNS": str(columns)})


def test_without_an_id_all_are_listed() -> None:
    findings, log_rules = explain().stdout.split("\n\n")
    for text, ids in ((findings, [*BY_ID]), (log_rules, [*LOG_RULES])):
        _, *lines = text.splitlines()
        assert [line.split()[0] for line in lines if not line.startswith(" ")] == ids
        assert max(map(len, lines)) <= 80


def test_no_id_means_both_a_finding_and_a_rule_of_the_log() -> None:
    assert not BY_ID.keys() & LOG_RULES.keys()


def test_a_rule_of_the_log_is_explained_as_a_finding_is() -> None:
    for rule in LOG_RULES.values():
        text = " ".join(explain(rule.id).stdout.split())
        for words in (rule.id, rule.title[1:], rule.meaning, rule.action):
            assert " ".join(words.split()) in text


@pytest.mark.parametrize("columns", [60, 80, 300])
def test_a_finding_is_explained_with_its_severity_and_what_to_do(columns: int) -> None:
    for rule in RULES:
        text = " ".join(explain(rule.id, columns=columns).stdout.split())
        for words in (rule.id, rule.summary, rule.meaning, rule.action, rule.otherwise):
            assert " ".join(words.split()) in text


def test_what_a_report_tells_to_run_explains_each_of_its_findings() -> None:
    card = example_cards.network()
    (words,) = re.findall(r"what this means: nccl-inspector explain (.*)", render_text(card))
    done = explain(*words.split())
    assert done.exit_code == 0
    for one in card.findings:
        assert one.rule not in BY_ID or BY_ID[one.rule].summary in " ".join(done.stdout.split())


def test_an_unknown_id_is_an_error_that_says_where_they_are_listed() -> None:
    error = explain("straggler", "no-such").exception
    assert isinstance(error, InspectorError)
    assert "no-such: there is no such finding; nccl-inspector explain lists all" in str(error)
