# SPDX-License-Identifier: Apache-2.0
"""A test that fails by chance is run once more, and one that is broken fails all the same."""

from pathlib import Path

import pytest

from tests.tools.again import run

CHANCE = """
from pathlib import Path
def test_that_fails_the_first_time():
    flag = Path(__file__).with_suffix(".flag")
    seen = flag.exists()
    flag.touch()
    assert seen
"""
BROKEN = "def test_that_always_fails():\n    assert False\n"


def play(folder: Path, text: str) -> tuple[int, list[str]]:
    path = folder / "test_played.py"
    path.write_text(text)
    return run(["-q", "--rootdir", str(folder), str(path)])


def test_what_failed_once_passes_and_is_said(tmp_path: Path) -> None:
    assert play(tmp_path, CHANCE) == (0, ["test_played.py::test_that_fails_the_first_time"])


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    status, once = play(tmp_path, CHANCE + BROKEN)
    assert (status, once) == (1, ["test_played.py::test_that_fails_the_first_time"])


@pytest.mark.parametrize("text", ["import nothing_of_that_name\n", ""])
def test_what_could_not_be_run_is_no_chance(tmp_path: Path, text: str) -> None:
    status, once = play(tmp_path, text)
    assert status not in (0, 1)
    assert once == []


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    many = "".join(BROKEN.replace("always", f"always_{number}") for number in range(11))
    assert play(tmp_path, CHANCE + many) == (1, [])
