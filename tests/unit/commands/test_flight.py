# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector flight`: text, JSON and exit status."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.cli import cli
from nccl_inspector.model.rules import BY_ID
from tests.support.flight_dumps import copy_case, dump, entry, write


def flight(*words: object, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, ["flight", *map(str, words)], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_text_names_rank_operation_and_lines_within_the_terminal(
    tmp_path: Path, columns: int
) -> None:
    result = flight(copy_case("absent", tmp_path), columns=columns)
    words = " ".join(result.stdout.split())
    assert "4 of 4 ranks, 15 operations, format 2.10, gloo" in words
    assert "rank 2 did not call all_reduce 4 of default_pg; 3 others wait in it" in words
    assert "/home/amy/train.py" in words
    assert "default_pg 4 3 4" in words
    assert "nccl-inspector explain flight-not-called" in words
    assert max(map(len, result.stdout.splitlines())) <= columns


@pytest.mark.parametrize(
    ("case", "status", "said"),
    [("healthy", 0, "NOTHING STUCK in what was dumped"), ("died", 2, "rank 3 left no dump")],
)
def test_the_exit_status_says_whether_something_is_stuck(
    tmp_path: Path, case: str, status: int, said: str
) -> None:
    result = flight(copy_case(case, tmp_path))
    assert result.exit_code == status
    assert said in " ".join(result.stdout.split())


def test_operations_in_flight_are_not_stuck(tmp_path: Path) -> None:
    value = dump([entry(0, 1, state="started")], {"0": [0, 1]})
    result = flight(write(tmp_path, {0: value, 1: value}, later_s=1))
    assert result.exit_code == 0
    assert "1 operation in flight for less than 5 s" in result.stdout


def test_a_warning_has_a_status_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, {0: dump([entry(0, 1)], {"0": [0, 1]})})
    result = flight(tmp_path)
    assert result.exit_code == 1
    assert "rank 1 of 2 ranks left no dump" in result.stdout


@pytest.mark.parametrize("data", [b"", b"cos\nsystem\n(S'id'\ntR.", b"\x7fELF" + bytes(500)])
def test_a_file_that_is_no_dump_is_named_with_the_reason(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    result = flight(path)
    assert result.exit_code == 3
    assert "NO DATA" in result.stdout
    assert "rank_0:" in result.stdout.replace("\n", "").replace(" ", "")
    assert "Traceback" not in result.output


def test_a_directory_without_dumps_is_one_line(tmp_path: Path) -> None:
    result = flight(tmp_path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"nccl-inspector: {tmp_path}: no dump of a flight recorder")


def test_json_has_everything_and_known_findings(tmp_path: Path) -> None:
    result = flight("--json", copy_case("absent", tmp_path))
    value = json.loads(result.stdout)
    assert (value["format"], value["exit_status"], value["ranks"]) == (1, 2, 4)
    assert value["groups"] == [{"name": "default_pg", "ranks": 4, "by_all": 3, "by_any": 4}]
    assert {one["rule"] for one in value["findings"]} <= {*BY_ID}


@pytest.mark.long
def test_many_findings_and_groups_are_cut(tmp_path: Path) -> None:
    pairs = {str(at): [2 * at, 2 * at + 1] for at in range(14)}
    ranks = {
        2 * at: dump([entry(0, 1, group=str(at), desc="undefined", state="started")], pairs)
        for at in range(14)
    }
    idle = {2 * at + 1: dump([entry(0, 9, group="x")], pairs) for at in range(14)}
    text = flight(write(tmp_path, ranks | idle)).stdout
    assert "and 4 findings more; --json has all" in text
    assert "7 more groups; --json has all" in text
