# SPDX-License-Identifier: Apache-2.0
"""What `make test-nccl` says of a box in which something is wrong. NCCL itself is tried there."""

from pathlib import Path

import pytest

from nccl_inspector.model.process import Process
from tests.nccl.box import Called
from tests.nccl.judge import Verdict, judge_rank, judge_steps
from tests.support.played_times import TURNS, play_works

CALLS = [Called("dp", "ReduceScatter", 4096), *[Called("dp", "AllReduce", 4096)] * TURNS]


@pytest.fixture
def right(tmp_path: Path) -> Process:
    """All of it has a time, though not the time that kernels of that run have."""
    return play_works(tmp_path, "graph", 7)


def differences(process: Process, calls: list[Called]) -> list[str]:
    verdict = Verdict("2.31.2")
    judge_rank(verdict, 3, calls, process, told=False)
    return verdict.differences


def test_times_that_are_not_the_kernels_are_differences(right: Process) -> None:
    assert differences(right, CALLS) == [
        "rank 3, dp, ReduceScatter: times of 50000 to 50000 ns",
        "rank 3, dp, AllReduce: times of 5000 to 5000 ns",
    ]


def test_an_operation_more_or_less_is_a_difference(right: Process) -> None:
    assert "rank 3, dp, AllReduce: called 99 with 405504 bytes, counted 100 with 409600" in (
        differences(right, CALLS[:-1])
    )
    assert "rank 3, dp, AllGather: called 1 with 8 bytes, counted 0 with 0" in (
        differences(right, [*CALLS, Called("dp", "AllGather", 8)])
    )


def test_times_that_are_held_back_without_a_reason_are_a_difference(tmp_path: Path) -> None:
    process = play_works(tmp_path, "self", 6)
    assert "rank 3, dp: times are mixed up for reason 0, the box says 1" in (
        differences(process, CALLS)
    )


def test_steps_that_were_not_counted_are_a_difference(right: Process) -> None:
    verdict = Verdict("2.31.2")
    judge_steps(verdict, 3, 5, right)
    assert verdict.differences == ["rank 3: 5 steps sent, counted 0"]
