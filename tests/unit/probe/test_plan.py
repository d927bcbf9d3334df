# SPDX-License-Identifier: Apache-2.0
"""Sizes, and how often each is timed."""

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.bandwidth import bus_gbs
from nccl_inspector.probe.plan import (
    REPETITIONS_MAX,
    REPETITIONS_MIN,
    SIZE_MAX,
    SIZE_MIN,
    Repeats,
    repeats,
    sizes,
)
from nccl_inspector.probe.words import parse_size, size_words


def test_sizes_double_from_1_mib_to_1_gib() -> None:
    assert sizes(SIZE_MIN, SIZE_MAX) == [1 << at for at in range(20, 31)]
    assert sizes(3, 10) == [3, 6, 10]
    assert sizes(5, 5) == [5]


@pytest.mark.parametrize(
    ("operation_s", "budget_s", "wanted"),
    [
        (0.1, 1.0, Repeats(10, 1)),
        (0.1, 0.0, Repeats(REPETITIONS_MIN, 1)),  # even if the time is over
        (0.001, 60.0, Repeats(REPETITIONS_MAX, 20)),  # a timing is 20 ms or more
        (0.0, 60.0, Repeats(REPETITIONS_MAX, 1000)),
    ],
)
def test_timings_are_long_enough_and_end_in_time(
    operation_s: float, budget_s: float, wanted: Repeats
) -> None:
    assert repeats(operation_s, budget_s) == wanted


@pytest.mark.parametrize(
    ("text", "size"), [("64M", 64 << 20), ("1GiB", 1 << 30), ("4096", 4096), ("8KB", 8192)]
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "M", "1P", "9" * 40, "1M\n"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InspectorError, match="not a size"):
        parse_size(text)


def test_a_size_is_said_in_the_largest_unit_that_is_whole() -> None:
    assert [size_words(one) for one in (0, 4, 1 << 20, 3 << 19, 1 << 30)] == [
        "0 B", "4 B", "1 MiB", "1,536 KiB", "1 GiB",
    ]  # fmt: skip


# Of doc/PERFORMANCE.md of nccl-tests: busbw = algbw * factor, algbw = size / time.
@pytest.mark.parametrize(
    ("func", "factor"),
    [
        ("AllReduce", 2 * 7 / 8), ("AllGather", 7 / 8), ("ReduceScatter", 7 / 8),
        ("AlltoAll", 7 / 8), ("Gather", 7 / 8), ("Scatter", 7 / 8),
        ("Broadcast", 1), ("Reduce", 1), ("SendRecv", 1),
    ],
)  # fmt: skip
def test_the_factors_are_those_of_nccl_tests(func: str, factor: float) -> None:
    assert bus_gbs(func, 8 << 30, 8, 2.0) == pytest.approx((8 << 30) / 2e9 * factor)
