# SPDX-License-Identifier: Apache-2.0
"""The short part of the trials: one job of each important kind, all the way to its report."""

import pytest

from tests.simulator.cases import CASES
from tests.simulator.trials import play_case

pytest.importorskip("tests.simulator.play")


@pytest.mark.parametrize("name", [one.name for one in CASES if one.fast])
def test_the_report_is_right_about(name: str) -> None:
    row = play_case(name, seed=1)
    assert "error" not in row, row["error"]
    assert row["accused"] == []
    wrong = [
        word
        for word in ("status_right", "class_right", "entity_right", "severity_right", "cost_right")
        if row[word] is False
    ]
    assert wrong == [], row["findings"]
