# SPDX-License-Identifier: Apache-2.0
"""Children with limits: answers in any order, and a reason for each that gave none."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.limited import Limits, run_limited

FAST = Limits(cpu_s=1, wall_s=3, memory_bytes=64 << 20)


def answers(*works: Callable[[], bytes], limits: Limits = FAST) -> list[object]:
    found = dict(run_limited(works, limits))
    return [
        one.reason if isinstance(one, RefusedError) else one for _, one in sorted(found.items())
    ]


def burn() -> bytes:
    while True:
        pass


def hang() -> bytes:
    signal.pause()
    return b""


def grow() -> bytes:
    return bytes(1 << 30)


def die() -> bytes:
    os._exit(0)


def refuse() -> bytes:
    raise RefusedError("invalid_dump", "why\n\x1b[2J")


def test_each_answer_comes_with_its_number() -> None:
    works = [lambda at=at: b"%d" % at * 100_000 for at in range(12)]
    assert answers(*works) == [b"%d" % at * 100_000 for at in range(12)]


@pytest.mark.parametrize(
    ("work", "reason"),
    [(burn, "too_slow"), (hang, "too_slow"), (grow, "too_big"), (die, "unreadable"),
     (refuse, "invalid_dump"), (lambda: Path("/nowhere").read_bytes(), "unreadable")],
)  # fmt: skip
def test_what_exceeds_a_limit_or_ends_says_why_and_holds_up_no_other(
    work: Callable[[], bytes], reason: str
) -> None:
    assert answers(work, lambda: b"well", lambda: b"") == [reason, b"well", b""]


def test_a_refusal_keeps_its_words_without_control_characters() -> None:
    ((_, err),) = run_limited([refuse], FAST)
    assert str(err) == "invalid_dump: why??[2J"


def test_the_caller_keeps_its_own_limits() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert answers(lambda: b"well") == [b"well"]
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_child_can_write_no_file(tmp_path: Path) -> None:
    path = tmp_path / "planted"
    assert answers(lambda: b"%d" % path.write_bytes(b"x")) == ["unreadable"]
    assert path.read_bytes() == b""


def test_a_caller_that_takes_no_more_leaves_no_child() -> None:
    found = run_limited([lambda: b"", hang, hang], Limits(wall_s=60))
    next(found)
    begin_s = time.monotonic()
    found.close()
    assert time.monotonic() - begin_s < 2
