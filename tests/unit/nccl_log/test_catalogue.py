# SPDX-License-Identifier: Apache-2.0
"""Every rule of the catalogue fits a line of NCCL's, and does not fit a near one."""

import re
import time
from pathlib import Path

import pytest

from nccl_inspector.nccl_log.catalogue import Role, load_catalogue, parse_version
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.system.tsv import read_tsv

_TABLE = Path(__file__).with_name("lines.tsv").read_text("ascii").splitlines()
LINES = [line.split("\t") for line in _TABLE if not line.startswith("#")]
RULES = load_catalogue().rules
# Found by comparing processes: tests/unit/nccl_log/test_compare.py.
COMPARED = {name for name, rule in RULES.items() if rule.known == "compared"}


def rules_of(version: str, line: str) -> set[str]:
    reader = LogReader()
    text = f"NCCL version {version}+cuda13.0\n{line}\n".replace("\\n", "\n")
    reader.read("job.out", [text.encode()], 2026)
    found = {hits.rule.id for hits in reader.log.hits.values()}
    # The call that came back with an error is told beside what failed in it.
    return found if len(found) == 1 else found - {"return-trace"}


@pytest.mark.parametrize(("rule", "version", "line", "near"), LINES)
def test_a_rule_fits_its_line_and_not_a_near_one(
    rule: str, version: str, line: str, near: str
) -> None:
    assert rules_of(version, line) == {rule}
    assert rule not in rules_of(version, near)


def test_every_rule_has_a_line() -> None:
    assert {row[0] for row in LINES} == set(RULES) - COMPARED


def test_every_form_of_a_rule_is_the_form_of_a_line() -> None:
    for form in load_catalogue().forms:
        of_rule = [row for row in LINES if row[0] == form.rule.id]
        assert any(
            (form.is_of(parse_version(version)) and form.fits(line.encode()))
            or form.fits(re.sub(r".*NCCL \w+ ", "", line).encode())
            or form.fits(b"DIAG " + re.sub(r".*NCCL \w+ ", "", line).encode())
            for _, version, line, _ in of_rule
        ), (form.rule.id, form.contains)  # fmt: skip


def test_a_text_that_nccl_changed_counts_for_the_versions_that_have_it() -> None:
    old = next(row for row in LINES if row[0] == "gpu-shared" and "Duplicate" in row[2])
    assert rules_of("2.28.9", old[2]) == {"gpu-shared"}
    assert rules_of("2.32.3", old[2]) == {"warning"}


def test_versions_do_not_count_for_rccl() -> None:
    """RCCL takes NCCL's texts over later than NCCL changes them."""
    old = next(row for row in LINES if row[0] == "gpu-shared" and "Duplicate" in row[2])
    reader = LogReader()
    reader.read("job.out", [f"RCCL version 2.30.4+hip7.1\n{old[2]}\n".encode()], 2026)
    assert set(reader.log.hits) == {"gpu-shared"}


def test_there_are_forty_rules_and_more_and_each_says_what_to_do_or_what_it_means() -> None:
    assert len(RULES) >= 40
    for name, rule in RULES.items():
        assert rule.meaning or rule.action, name
        assert not rule.title.endswith("."), name
        assert not rule.action.endswith("."), name
        assert not rule.meaning or rule.meaning.endswith("."), name


def test_what_follows_another_error_is_information() -> None:
    for rule in RULES.values():
        if rule.role is Role.CONSEQUENCE:
            assert rule.severity == "I", rule.id


@pytest.mark.parametrize("form", load_catalogue().forms, ids=lambda form: form.rule.id)
def test_no_line_of_4_kb_holds_a_pattern_up(form: object) -> None:
    """Runs of what the pattern itself looks for, and of single characters."""
    row = next(
        row for row in read_tsv("nccl_log/catalogue.tsv")
        if row[0] == form.rule.id  # type: ignore[attr-defined]
    )  # fmt: skip
    pieces = [row[8], re.sub(r"\W", "", row[9]) or "x", "0", " ", "a_", "ibv_reg_", "min 1 max "]
    for piece in pieces:
        message = (row[8] + piece * 4096)[:4096].encode()
        begin = time.thread_time()
        form.fits(message)  # type: ignore[attr-defined]
        assert time.thread_time() - begin < 0.05
