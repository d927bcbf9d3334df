# SPDX-License-Identifier: Apache-2.0
"""The registry of findings: what is emitted is in it, what is in it is emitted, and its page."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

from nccl_inspector.analysis.hang import describe as hang_findings
from nccl_inspector.analysis.hardware import findings as hardware_findings
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.model import rules
from nccl_inspector.model.card import HANG_VERDICTS, Finding, RuleId
from nccl_inspector.model.rules import BY_ID, RULES, About, Rule
from nccl_inspector.render.findings_page import findings_page
from nccl_inspector.render.json import make_schema
from nccl_inspector.render.nccl_rules_page import nccl_rules_page
from tests.sandbox.layout import REPO

PACKAGE = REPO / "python" / "nccl_inspector"
REGISTRY = PACKAGE / "model" / "rules.py"
ENTRIES = {name for name, one in vars(rules).items() if isinstance(one, Rule)}
PAGE = REPO / "packaging" / "doc" / "findings.md"


@cache
def sources() -> dict[Path, ast.Module]:
    """The syntax of each module."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def calls_that_give_a_rule() -> Iterator[tuple[Path, ast.expr]]:
    """Yield where a finding is made or changed with a rule, and what that is made of."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            given = [word.value for word in node.keywords if word.arg == "rule"]
            if node.func.id == "Finding":
                given = given or node.args[:1]
                assert given, f"{path}:{node.lineno}: no rule"
            if node.func.id in ("Finding", "replace"):
                yield from ((path, one) for one in given)


def names_of_entries(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rules":
            yield node.attr


def test_every_finding_takes_its_rule_from_the_registry() -> None:
    found = list(calls_that_give_a_rule())
    assert len(found) > 15
    for where, rule in found:
        assert isinstance(rule, ast.Attribute), f"{where}:{rule.lineno}"
        assert rule.attr == "id", f"{where}:{rule.lineno}"


def test_only_the_registry_makes_ids_and_mypy_refuses_any_other_text() -> None:
    assert get_type_hints(Finding)["rule"] is RuleId
    made = [
        path
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("RuleId")
    ]
    assert set(made) == {REGISTRY}
    assert len(made) == len(RULES)


def test_every_entry_is_emitted_by_somebody() -> None:
    emitting = {path for path, _ in calls_that_give_a_rule()}
    used = {name for path in emitting for name in names_of_entries(sources()[path])}
    assert ENTRIES - used == set()


def test_no_id_is_spelled_elsewhere() -> None:
    # An id without a hyphen, such as `killed`, is a word of other things, too.
    ids = {one.id for one in RULES if "-" in one.id}
    for path, tree in sources().items():
        if path == REGISTRY:
            continue
        spelled = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in ids
        ]
        assert spelled == [], path
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".rule"):
                assert not any(isinstance(one, ast.Constant) for one in node.comparators), path


def test_every_hang_verdict_and_every_kind_of_device_has_its_rule() -> None:
    assert set(hang_findings._RULES) == set(HANG_VERDICTS)
    for word, rule in hang_findings._RULES.items():
        assert rule.id.removeprefix("hang-") == word.replace(" ", "-")
    kinds = {kind for kind, _ in load_counters()} - {"node"}
    assert {kind: one.id for kind, one in hardware_findings._RULES.items()} == {
        kind: f"hardware-{kind}" for kind in kinds
    }


def test_an_id_is_there_once_and_does_not_need_quoting() -> None:
    assert len(BY_ID) == len(RULES) == len(ENTRIES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", one) for one in BY_ID)


@pytest.mark.parametrize("rule", RULES, ids=lambda one: one.id)
def test_an_entry_says_what_it_means(rule: Rule) -> None:
    assert rule.summary.endswith(".")
    assert rule.summary.count(".") == 1
    assert rule.meaning.endswith(".")
    assert 1 <= len(re.findall(r"\.(?: |$)", rule.meaning)) <= 5
    assert not rule.action.endswith(".")
    assert not rule.otherwise.endswith(".")


def test_ids_by_what_they_are_about_are_those_that_the_verdict_goes_by() -> None:
    assert rules.ids_about(About.DATA) == {"not-measured", "dropped", "no-times", "silent"}
    hangs = rules.ids_about(About.HANG)
    assert hangs == {one for one in BY_ID if one.startswith("hang-")} | {"stopped-first"}
    assert rules.KILLED.about is About.ENDING


def test_the_schema_lists_the_ids() -> None:
    schema = make_schema()["$defs"]["Finding"]["properties"]["rule"]
    assert schema == {"enum": list(BY_ID)}


def test_the_page_of_findings_is_what_the_registry_makes() -> None:
    assert PAGE.read_text("utf-8") == findings_page(), "make pages"


def test_the_page_has_an_anchor_for_each_finding() -> None:
    text = findings_page()
    headings = re.findall(r"^### (\S+)$", text, re.M)
    assert sorted(headings) == sorted(BY_ID)
    assert set(re.findall(r"\]\(#([a-z-]+)\)", text)) == set(BY_ID)
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 100


def test_the_page_of_the_report_names_only_rules_that_there_are() -> None:
    text = Path(REPO / "packaging" / "doc" / "report.md").read_text("utf-8")
    named = re.findall(r"`((?:hang|slow|hardware)-[a-z-]+|stopped-first)`", text)
    assert named
    assert set(named) <= set(BY_ID)


def test_the_page_of_rules_is_what_the_catalogue_makes() -> None:
    assert (REPO / "packaging" / "doc" / "nccl-rules.md").read_text("utf-8") == nccl_rules_page()
