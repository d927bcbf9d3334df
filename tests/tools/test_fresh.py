# SPDX-License-Identifier: Apache-2.0
"""What `make test-fresh` takes from the host, and what it says of a run."""

import pytest

from tests.tools.fresh import Result, closing_lines, pip_settings

LISTING = """:env:.cert='/etc/ssl/own.pem'
:env:.default-timeout='180'
:env:.find-links='/opt/wheels'
global.cert='/etc/ssl/other.pem'
global.constraint='/etc/pip/constraints.txt'
global.extra-index-url='file:///opt/simple https://pip.example.net/more'
global.index-url='https://pip.example.net/simple'
list.format='columns'
"""
LOG = """....
========= 2310 passed, 12 skipped in 512.10s (0:08:32) =========
== once more: tests/a.py::test_b
=================== 1 passed, 3 deselected in 1.20s ====================
== FAILED ONCE of two runs: tests/a.py::test_b
========================= short test summary info ==========================
"""


def test_how_the_host_reaches_an_index_is_taken_and_nothing_of_its_disk() -> None:
    assert pip_settings(LISTING) == {
        "cert": "/etc/ssl/own.pem",
        "timeout": "180",
        "extra-index-url": "https://pip.example.net/more",
        "index-url": "https://pip.example.net/simple",
    }


def test_what_pytest_said_last_of_each_run_is_in_the_table() -> None:
    assert closing_lines(LOG) == (
        "2310 passed, 12 skipped in 512.10s (0:08:32)",
        "1 passed, 3 deselected in 1.20s",
        "== FAILED ONCE of two runs: tests/a.py::test_b",
    )


@pytest.mark.parametrize(
    ("status", "seconds", "words"),
    [(0, 599.0, "passed; x"), (0, 601.0, "passed, over 600 s; x"), (2, 5.0, "FAILED (2); x")],
)
def test_a_command_that_fails_or_takes_too_long_is_not_as_promised(
    status: int, seconds: float, words: str
) -> None:
    result = Result("trixie", "make test", status, seconds, ("x",))
    assert result.is_good == (words == "passed; x")
    assert result.row().endswith(f"{seconds:6.0f} s  {words}")
