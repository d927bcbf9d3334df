# SPDX-License-Identifier: Apache-2.0
"""The verdicts on dumps that PyTorch 2.13 wrote: four ranks with Gloo, as record_flight.py says."""

from pathlib import Path

import pytest

from nccl_inspector.flight.describe import Told, describe
from nccl_inspector.flight.files import read_dumps
from nccl_inspector.model import rules
from nccl_inspector.model.card import CRITICAL
from tests.support.flight_dumps import RECORDED, copy_case

# Rule, title, and what the detail has.
VERDICTS = {
    "absent": (
        rules.FLIGHT_NOT_CALLED,
        "rank 2 did not call all_reduce 4 of default_pg; 3 others wait in it",
        "in all_reduce, called from /home/amy/train.py",
    ),
    "given_up": (
        rules.FLIGHT_NOT_CALLED,
        "rank 2 did not call all_reduce 4 of default_pg; 3 others wait in it",
        "Rank 2 called last: all_reduce 3 of default_pg at /home/amy/train.py",
    ),
    "mismatched": (
        rules.FLIGHT_MISMATCHED,
        "rank 1 called all_gather Float [1024]; most called all_reduce Float [1024]",
        "in mismatched, called from",
    ),
    "sizes": (
        rules.FLIGHT_NO_DUMP,
        "rank 0 left no dump; 3 others wait in all_reduce 4 of default_pg",
        "in sizes",
    ),
    "died": (
        rules.FLIGHT_NO_DUMP,
        "rank 3 left no dump; 3 others wait in all_reduce 4 of default_pg",
        "in died",
    ),
    "wrapped": (
        rules.FLIGHT_NOT_CALLED,
        "rank 2 did not call all_reduce 25 of default_pg; 3 others wait in it",
        "Records of earlier operations were overwritten",
    ),
    "deadlock": (
        rules.FLIGHT_DEADLOCK,
        "rank 0 is in all_reduce 2 of tensor, rank 1 is in all_reduce 2 of data, rank 2 is in "
        "all_reduce 2 of tensor, rank 3 is in all_reduce 2 of data: each waits for another",
        "in deadlock",
    ),
    "stage": (
        rules.FLIGHT_NOT_CALLED,
        "rank 3 did not call all_reduce 2 of pair (2); 1 other waits in it",
        "1 other operation waits for the same.",
    ),
}  # fmt: skip


def told(case: str, folder: Path, suffix: str = "") -> Told:
    return describe(read_dumps([copy_case(case, folder, suffix)]))


@pytest.mark.parametrize("case", VERDICTS)
def test_what_went_wrong_is_found(tmp_path: Path, case: str) -> None:
    rule, title, detail = VERDICTS[case]
    (finding,) = told(case, tmp_path).findings
    assert (finding.rule, finding.severity, finding.title) == (rule.id, CRITICAL, title)
    assert detail in finding.detail


def test_a_healthy_job_has_no_finding(tmp_path: Path) -> None:
    found = told("healthy", tmp_path)
    assert (found.findings, found.in_flight, found.dumps) == ((), 0, 4)


def test_json_says_the_same_without_the_lines_of_the_program(tmp_path: Path) -> None:
    found = told("absent", tmp_path, ".json")
    assert found.dumps == 4
    assert [one.title for one in found.findings] == [VERDICTS["absent"][1]]
    assert "train.py" not in found.findings[0].detail


def test_the_pickle_is_taken_if_both_forms_are_there(tmp_path: Path) -> None:
    copy_case("absent", tmp_path, ".json")
    assert "train.py" in told("absent", tmp_path).findings[0].detail


def test_all_recorded_cases_are_judged() -> None:
    assert {one.name for one in RECORDED.iterdir()} == {*VERDICTS, "healthy"}
