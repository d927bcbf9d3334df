"""The page of what was verified: made of the runs, and held against them."""

import re
from typing import Any

import pytest

from tests.support.repository import REPO
from tests.tools.verified import SECTIONS, Session, add, check, render

OLD: dict[str, Any] = {
    "lines": {"Lifecycle": {"a job is requeued": "passed", "prolog in the job": "skipped"}},
    "tables": {"Modes": [["given", "seen"], ["prom", "prom"]]},
}
NEW: dict[str, Any] = {
    "lines": {"Lifecycle": {"a job is requeued": "passed", "prolog in the job": "passed"}},
    "tables": {"Modes": [["given", "seen"], ["prom", "prom"]]},
}
RUNS = {"22.05": OLD, "24.11": NEW}


def test_a_line_of_the_page_says_on_which_releases_it_held() -> None:
    page = render(RUNS)
    assert "|  | 22.05 | 24.11 |\n|---|---|---|\n| a job is requeued | yes | yes |\n" in page
    assert "| prolog in the job | n/a | yes |" in page
    assert "Modes (Slurm 22.05, 24.11)\n\n| given | seen |\n|---|---|\n| prom | prom |\n" in page


def test_the_page_that_was_made_passes_its_check() -> None:
    assert check(render(RUNS), RUNS) == []


def test_cases_that_were_not_run_before_are_added_and_nothing_else_changes() -> None:
    new = {"lines": {"Lifecycle": {"a node is lost": "passed"}}, "tables": {}}
    page = render(RUNS | {"26.05": new})
    assert "| a node is lost | not run | not run | yes |" in page
    later: dict[str, dict[str, Any]] = {
        "22.05": new | {"part": True},
        "24.11": {"lines": {"Lifecycle": {"a node is lost": "failed"}}},
    }
    added = add(page, later)
    assert "| a node is lost | yes | **NO** | yes |" in added
    assert added.replace("| yes | **NO** | yes |", "| not run | not run | yes |") == page
    assert add(page, {}) == page


def test_a_release_that_could_not_be_run_is_not_held_against_the_page() -> None:
    assert check(render(RUNS), {"22.05": OLD}) == []
    assert check(render(RUNS), {"24.11": NEW}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"lines": {"Lifecycle": {"a job is requeued": "passed"}}},
        {"lines": {"Lifecycle": OLD["lines"]["Lifecycle"] | {"a job is requeued": "failed"}}},
        {"lines": {"Lifecycle": OLD["lines"]["Lifecycle"] | {"a new case": "passed"}}},
        {"tables": {"Modes": [["given", "seen"], ["prom", "off"]]}},
    ],
    ids=["line gone", "failure", "new line", "another cell"],
)
def test_a_run_that_differs_from_the_page_is_told(change: dict[str, Any]) -> None:
    assert check(render(RUNS), {"22.05": OLD | change})
    assert check(render(RUNS), RUNS | {"22.05": OLD | change})


def test_a_part_of_the_cases_on_a_release_need_only_be_on_the_page() -> None:
    seen = {"24.11": {"lines": {"Lifecycle": {"a job is requeued": "passed"}}, "tables": {}}}
    part = {"24.11": seen["24.11"] | {"part": True}}
    assert check(render(RUNS), seen)
    assert check(render(RUNS), part) == []
    assert check(render(RUNS), {"22.05": OLD} | part) == []


@pytest.mark.parametrize(
    "change",
    [
        {"lines": {"Lifecycle": {"a job is requeued": "failed"}}},
        {"lines": {"Lifecycle": {"a new case": "passed"}}},
        {"tables": {"Modes": [["given", "seen"], ["prom", "off"]]}},
    ],
    ids=["failure", "new line", "another cell"],
)
def test_what_a_part_of_the_cases_saw_and_the_page_does_not_say_is_told(
    change: dict[str, Any],
) -> None:
    part = {"lines": {}, "tables": {}, "part": True} | change
    assert check(render(RUNS), {"22.05": OLD, "24.11": part})


def test_of_a_part_a_case_may_pass_that_the_page_says_was_not_run() -> None:
    """A new case is on the page before it has run on each release."""
    page = render({"22.05": OLD, "24.11": {"lines": {}, "tables": {}}})
    part = {"lines": {"Lifecycle": {"a job is requeued": "passed"}}, "tables": {}, "part": True}
    assert check(page, {"24.11": part}) == []
    part["lines"] = {"Lifecycle": {"a job is requeued": "failed"}}
    assert check(page, {"24.11": part})
    assert check(page, {"24.11": NEW}), "a whole run belongs on the page"


def test_of_several_tests_of_a_line_the_worst_counts() -> None:
    session = Session()
    for outcome in ("passed", "failed", "passed", "skipped"):
        session.add("Lifecycle", "a case", outcome)
    session.add("Lifecycle", "another", "skipped")
    session.add("Lifecycle", "another", "passed")
    assert session.lines == {"Lifecycle": {"a case": "failed", "another": "passed"}}


def test_a_section_that_the_page_does_not_have_is_a_mistake() -> None:
    assert "Lifecycle" in SECTIONS
    with pytest.raises(ValueError, match="not a section"):
        Session().add("Lifecicle", "a case", "passed")


def test_every_line_of_the_page_is_a_case_of_a_test() -> None:
    """A turn cannot tell that a line's test is gone."""
    sources = "".join(path.read_text() for path in (REPO / "tests").rglob("test_*.py"))
    literals = re.sub(r'"\s*\n\s*f?"', "", sources)
    page = (REPO / "packaging/doc/verified.md").read_text()
    lines = re.findall(r"^\| (.+?) \|.* (?:yes|n/a|not run) \|$", page, re.MULTILINE)
    assert len(lines) > 100
    assert [one for one in lines if one.removeprefix("on a node ") not in literals] == []
