# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector logs`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.commands.logs import logs
from tests.unit.nccl_log.made_logs import PLACE

_WARNING = "n1:1:1 [0] a.cc:1 NCCL WARN Too many open files\n"


def run(*args: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(logs, [str(one) for one in args], input=stdin, env={"COLUMNS": "80"})


@pytest.mark.parametrize(
    ("name", "status"),
    [("nccl-2.30.7", 0), ("host-memory", 1), ("cascade", 2), ("pytorch-only", 2)],
)
def test_the_status_is_that_of_the_worst_finding(name: str, status: int) -> None:
    assert run(PLACE / f"{name}.log").exit_code == status


@pytest.mark.parametrize("path", sorted(PLACE.glob("*.log")), ids=lambda path: path.stem)
def test_each_log_fits_a_terminal_of_80_columns_and_is_ascii(path: Path) -> None:
    for wish in ([], ["--all"]):
        text = run(path, *wish).output
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 80


def test_the_first_error_stands_above_the_findings_and_consequences_are_one_line() -> None:
    lines = run(PLACE / "cascade.log").output.splitlines()
    assert lines[2].startswith("FIRST ERROR  rank 5 (n2) at 2026-11-25 10:41:12: a network adapter")
    assert "7 other processes followed within 3 s" in " ".join(" ".join(lines[2:6]).split())
    assert "what followed from errors: socket-closed (7 processes)" in "\n".join(lines)
    assert "C socket-closed" not in "\n".join(lines)
    assert "I socket-closed" in run(PLACE / "cascade.log", "--all").output


def test_json_has_all_findings_and_what_the_text_says() -> None:
    found = json.loads(run("--json", PLACE / "cascade.log").output)
    assert found["first_error"]["rule"] == "ib-retry-exceeded"
    assert found["first_error"]["followers"] == 7
    rules = [one["rule"] for one in found["findings"]]
    assert rules[0] == "ib-retry-exceeded"
    assert "socket-closed" in rules
    assert found["findings"][0]["place"].endswith("cascade.log:186")
    assert ["IB", 8] in next(one["values"] for one in found["facts"] if one["name"] == "network")


def test_a_folder_stands_for_all_files_below_it_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.log").write_text(_WARNING)
    (tmp_path / "other").write_text(_WARNING)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "a" / "fifo")
    found = json.loads(run("--json", tmp_path / "a").output)
    assert (found["files"], found["findings"][0]["lines"]) == (1, 1)


def test_standard_input_is_a_log_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from nccl_inspector.cli import main; main()", "logs", "-"],
        input=_WARNING, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "standard input:1: Too many open files" in done.stdout


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "No such file or directory"),
        (os.mkfifo, "neither a file nor a folder"),
    ],
)
def test_a_path_that_is_no_log_is_one_line_of_error(tmp_path: Path, make: object, why: str) -> None:
    path = tmp_path / "x"
    make(path)  # type: ignore[operator]
    done = run(path)
    assert done.exit_code == 3
    assert done.stderr == f"nccl-inspector: {path}: {why}\n"


def test_a_file_without_such_lines_is_told_and_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(bytes(range(256)) * 4096)
    done = run(path)
    assert done.exit_code == 3
    assert "no line of NCCL's or of PyTorch's watchdog was found" in done.output


def test_what_is_missing_of_a_torn_file_is_no_traceback(tmp_path: Path) -> None:
    whole = (PLACE / "cascade.log").read_bytes()
    path = tmp_path / "cut.log"
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        done = run(path)
        assert done.exit_code in (0, 1, 2, 3), done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)


def test_names_and_messages_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2Jb"
    path.write_bytes(b"n1:1:1 [0] NCCL WARN \x1b]0;title\x07 \xe2\x80\xae over\n")
    text = run(path).output
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x07" not in text
