# SPDX-License-Identifier: Apache-2.0
"""The short part of the trials: one job of each important kind, all the way to its report."""

from pathlib import Path

import pytest

from tests.simulator.cases import CASES
from tests.simulator.trials import play_case, read_rows, trials, write_rows

pytest.importorskip("tests.simulator.play")


# Of the healthy, of those with a straggler and with a hang one each.
SHORT = ("healthy-phases", "host-phases-few", "hang-dies")


@pytest.mark.parametrize(
    "name",
    [pytest.param(one.name, marks=[] if one.name in SHORT else [pytest.mark.long])
     for one in CASES if one.fast],
)  # fmt: skip
def test_the_report_is_right_about(name: str) -> None:
    row = play_case(name, seed=1)
    assert "error" not in row, row["error"]
    assert row["accused"] == []
    assert row["contradictions"] == []
    wrong = [
        word
        for word in ("status_right", "class_right", "entity_right", "severity_right", "cost_right")
        if row[word] is False
    ]
    assert wrong == [], row["findings"]


def test_a_run_goes_on_where_an_earlier_one_was_stopped(tmp_path: Path) -> None:
    (cheap,) = [one for one in CASES if one.name == "host-phases-few"]
    cases = [*CASES[:2], cheap]
    path, names = tmp_path / "rows.json.gz", [one.name for one in cases]
    rows = [{"case": name, "seed": seed} for seed in (1, 2) for name in names]
    broken = {"case": names[0], "seed": 3, "error": "broken"}
    write_rows(path, [*rows, broken])
    found = read_rows(path)
    assert [(row["case"], row["seed"]) for row in found] == [
        (name, seed) for name in names for seed in (1, 2)
    ]
    known = {(row["case"], row["seed"]) for row in found}
    assert list(trials(cases, (1, 2), 1, True, False, None, known)) == []
    (again,) = trials([cheap], (1, 2, 3), 1, True, False, None, known)
    assert (again["case"], again["seed"], "cost_true" in again) == (cheap.name, 3, True)
