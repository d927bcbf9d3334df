# SPDX-License-Identifier: Apache-2.0
"""What people pasted into public reports is answered right: `logs`, `flight`, `probe --read`.

`public/` has inputs made to the shape of such reports, and `cases.tsv` what their answers must say.
"""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.cli import cli

_PLACE = Path(__file__).with_name("public")
_ROWS = [
    line.split("\t")
    for line in (_PLACE / "cases.tsv").read_text("ascii").splitlines()
    if not line.startswith("#")
]


def _parts(words: str) -> list[str]:
    return [] if words == "-" else words.split(" && ")


@pytest.fixture(autouse=True)
def _one_time() -> None:
    """A checkout gives files any time; dumps that are far apart would be of several runs."""
    paths = sorted(path for path in _PLACE.rglob("*") if path.is_file())
    for at, path in enumerate(paths):
        # Of dumps of one rank under two names the one that is first by name is the newest.
        os.utime(path, (1_795_600_000 - at * 1e-3,) * 2)


@pytest.mark.parametrize(("command", "status", "has", "lacks"), _ROWS, ids=[r[0] for r in _ROWS])
def test_a_public_report_is_answered_right(command: str, status: str, has: str, lacks: str) -> None:
    words = [str(_PLACE / word) if "/" in word else word for word in command.split()]
    found = CliRunner().invoke(cli, words)
    text = re.sub(r"\s+", " ", found.output)
    assert all(re.search(one, text) for one in _parts(has)), text
    assert not any(re.search(one, text) for one in _parts(lacks)), text
    assert status in ("-", str(found.exit_code)), text
