# SPDX-License-Identifier: Apache-2.0
"""More than sixty public reports: what is in them is found, and nobody is accused who is innocent.

`pastes.tsv` has lines composed to the shape of each. A report that no rule knows says so.
"""

from pathlib import Path

import pytest

from nccl_inspector.render.log_text import exit_code
from tests.unit.nccl_log.made_logs import judged

_ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("pastes.tsv").read_text("ascii").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("source", "rules", "status", "behind", "text"), _ROWS)
def test_a_public_report_is_read_right(
    source: str, rules: str, status: str, behind: str, text: str
) -> None:
    found = judged(text.replace("\\n", "\n") + "\n")
    seen = {one.rule.id for one in found.findings}
    assert {one for one in rules.split() if one != "-"} <= seen, source
    assert exit_code(found) == int(status), source
    who = [one.who for one in found.findings if one.rule.id == "rank-behind"]
    assert who == ([] if behind == "-" else [behind]), source


def test_there_are_sixty_reports_and_more() -> None:
    assert len({row[0] for row in _ROWS}) >= 60
