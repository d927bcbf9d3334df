# SPDX-License-Identifier: Apache-2.0
"""The short part of the trials: one job of each important kind, all the way to its report."""

from pathlib import Path

import pytest

from tests.simulator.cases import CASES
from tests.simulator.trials import play_case, read_rows, trials, write_rows

pytest.importorskip("tests.simulator.play")


# These take 12 s and more, on a machine with nothing else to do.
LONG = (
    "healthy-fsdp-uneven", "healthy-pp", "gpu-ddp", "gpu-tp-dp", "gpu-second-half", "host-ddp",
    "nic-rail", "network-dip",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one.name, marks=[pytest.mark.long] if one.name in LONG else [])
     for one in CASES if one.fast],
)  # fmt: skip
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


def test_a_run_goes_on_where_an_earlier_one_was_stopped(tmp_path: Path) -> None:
    path, names = tmp_path / "rows.json.gz", [one.name for one in CASES[:3]]
    rows = [{"case": name, "seed": seed} for seed in (1, 2) for name in names]
    broken = {"case": names[0], "seed": 3, "error": "broken"}
    write_rows(path, [*rows, broken])
    found = read_rows(path)
    assert [(row["case"], row["seed"]) for row in found] == [
        (name, seed) for name in names for seed in (1, 2)
    ]
    known = {(row["case"], row["seed"]) for row in found}
    assert list(trials(CASES[:3], (1, 2), 1, True, False, None, known)) == []
    (again,) = trials(CASES[:1], (1, 2, 3), 1, True, False, None, known)
    assert (again["case"], again["seed"], "cost_true" in again) == (names[0], 3, True)
