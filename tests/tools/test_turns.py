# SPDX-License-Identifier: Apache-2.0
"""What CI leaves out at one commit it runs at another one."""

import pytest

from tests.tools.again import run
from tests.tools.turns import Turn

TESTS = [f"tests/test_a.py::test_{number}" for number in range(200)]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_each_test_has_its_turn_once(parts: int) -> None:
    turns = [Turn.of(f"{part}/{parts}") for part in range(parts)]
    found = [test for turn in turns for test in TESTS if turn.has(test)]
    assert sorted(found) == sorted(TESTS)


def test_a_commits_number_chooses_a_part_that_is_there() -> None:
    halves = [[test for test in TESTS if Turn.of(f"{commit}/2").has(test)] for commit in (6, 7)]
    assert all(60 < len(half) < 140 for half in halves)
    assert {Turn.of(f"{commit}/2").choose(["trixie", "forky"]) for commit in (0xABC, 0xABD)} == {
        "trixie", "forky",
    }  # fmt: skip


@pytest.mark.parametrize("parts", [2, 6, 8])
def test_each_release_has_each_part_of_the_cases(parts: int) -> None:
    suites = ["trixie", "forky"]
    seen = set()
    for number in range(parts):
        turn = Turn.of(f"{number}/{parts}")
        part = turn.part_for(suites)
        seen |= {(turn.choose(suites), test) for test in TESTS if part.has(test)}
    assert len(seen) == len(suites) * len(TESTS)


@pytest.mark.parametrize("words", ["1", "1/0", "x/2", "1/-1", ""])
def test_what_is_no_turn_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal|/"):
        Turn.of(words)


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_a_part_that_is_empty_is_no_failure(workers: int) -> None:
    words = ["-q", "-m", "long", "-n", str(workers), "tests/fuzzers/test_fuzzers.py"]
    assert run([*words, "--turn", "0/1000000007"]) == (0, [])
    assert run([*words, "-k", "nothing_of_that_name"]) == (5, [])
