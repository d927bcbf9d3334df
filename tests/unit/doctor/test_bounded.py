# SPDX-License-Identifier: Apache-2.0
"""A reader that hangs, fails or dies costs its own fact and nothing else."""

import os
import signal
import time
from pathlib import Path

import pytest

from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.facts import CannotTell, CannotTellError
from nccl_inspector.errors import InspectorError
from tests.support.processes import nothing_left


def _hang() -> None:
    time.sleep(60)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refused() -> None:
    raise InspectorError("x.conf:3: unknown key")


def _unknown() -> None:
    raise CannotTellError("slurmctld does not answer")


def _missing() -> None:
    Path("/nonexistent/file").stat()


def _bug() -> None:
    raise KeyError("a bug")


def test_readers_run_side_by_side_and_one_that_hangs_is_left_behind() -> None:
    begun = time.monotonic()
    found = gather({"one": lambda: 1, "hangs": _hang, "hangs too": _hang, "two": lambda: 2}, 1.0)
    assert time.monotonic() - begun < 5
    assert (found["one"], found["two"]) == (1, 2)
    assert found["hangs"] == found["hangs too"] == CannotTell("no answer in 1 s")


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        (_refused, "x.conf:3: unknown key"),
        (_unknown, "slurmctld does not answer"),
        (_missing, "/nonexistent/file: No such file or directory"),
        (_die, "its reader failed"),
        (_bug, "its reader failed"),
    ],
)
def test_a_reader_that_fails_is_no_traceback(
    reader: object, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = gather({"it": reader, "other": lambda: "well"})  # type: ignore[dict-item]
    assert found == {"it": CannotTell(reason), "other": "well"}
    assert capfd.readouterr() == ("", "")


def test_an_answer_larger_than_a_pipe_comes_whole() -> None:
    assert gather({"it": lambda: b"x" * (4 << 20)})["it"] == b"x" * (4 << 20)


def test_an_answer_without_an_end_is_not_taken() -> None:
    assert gather({"it": lambda: b"x" * (20 << 20)})["it"] == CannotTell("its reader failed")


def test_no_child_is_left() -> None:
    with nothing_left():
        gather({"one": lambda: 1, "hangs": _hang}, 0.5)
