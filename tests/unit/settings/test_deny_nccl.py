# SPDX-License-Identifier: Apache-2.0
"""The list of NCCL releases that comes with the package."""

import re

import pytest

from nccl_inspector.settings.config import parse_config
from nccl_inspector.settings.deny_nccl import Advised, advice_on, advised, is_listed
from tests.support.repository import DOC

ROW = re.compile(r"^\| ([0-9.-]+) \| (.+) \| <(https://\S+)> \|$", re.M)


def test_the_page_has_the_same_table() -> None:
    text = (DOC / "operate.md").read_text()
    section = text.split("## Releases of NCCL that are better not measured")[1].split("\n## ")[0]
    assert [Advised(*row) for row in ROW.findall(section)] == list(advised())


def test_every_line_has_versions_a_reason_and_a_public_report() -> None:
    assert advised()
    for one in advised():
        assert parse_config(f"deny_nccl = {one.versions}", "x.conf").deny_nccl == one.versions
        assert one.reason.endswith(".")
        assert one.reference.startswith("https://")


@pytest.mark.parametrize(
    ("version", "versions", "listed"),
    [
        ((2, 31, 2), "recommended", True),
        ((2, 32, 3), "recommended", False),
        ((2, 28, 3), "recommended,2.28.0-2.28.5", True),
        ((2, 31, 2), "2.28.0-2.28.5,recommended", True),
        ((2, 31, 2), "2.28.0-2.28.5", False),
        ((2, 9, 9), "2.28.0-2.28.5", False),
        ((2, 31, 2), "", False),
    ],
)
def test_the_word_stands_for_the_list(
    version: tuple[int, int, int], versions: str, listed: bool
) -> None:
    assert is_listed(version, parse_config(f"deny_nccl = {versions}", "x.conf").deny_nccl) == listed


def test_the_reason_is_told_for_a_listed_release_only() -> None:
    advice = advice_on((2, 31, 2))
    assert advice is not None
    assert "slower" in advice.reason
    assert advice_on((2, 31, 1)) is None
