# SPDX-License-Identifier: Apache-2.0
"""Throughput lines in a job's output, which is anything that a user's programs print."""

import time
from datetime import UTC
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times import throughput
from nccl_inspector.analysis.slow_times.progress import on_windows, segment_progress
from nccl_inspector.analysis.slow_times.throughput import (
    LINE_BYTES_MAX,
    Reading,
    Readings,
    compile_pattern,
    read_lines,
    read_throughput,
)
from nccl_inspector.model.card import Period

BERLIN = ZoneInfo("Europe/Berlin")
AT = 1_773_931_187.0  # 2026-03-19 14:39:47 UTC
SAID = "[2026-03-19 14:39:47.098640] -> throughput per GPU: ~314 TFLOP/s/GPU"
MEGATRON = (
    " [2026-03-19 14:39:47] iteration      100/  500000 | consumed samples:        25600 | "
    "elapsed time per iteration (ms): 1250.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | "
    "learning rate: 1.0E-04 | global batch size:   256 |"
)


def read(*lines: str, job: Period | None = None) -> Readings:
    data = "\n".join(lines).encode()
    return read_throughput(read_lines([data]), UTC, job)


@pytest.mark.parametrize(
    "line",
    [
        SAID,
        f"12: {SAID}",  # srun --label
        f"[rank3]:{SAID}",
        f"[default0]: {SAID}\r",
        f"\x1b[32m{SAID}\x1b[0m",
        SAID.replace("~314", "\x1b[1;31m~314\x1b[0m\x08"),
        f"step 3/4 [####] 75%\r\x1b[K{SAID}",
        f"caf\udce9 {SAID}",
        SAID.replace(" 14:39", "T14:39").replace("640]", "640Z]"),
        SAID.replace("14:39:47.098640", "15:39:47,098640 +0100"),
    ],
)
def test_a_line_is_found_in_whatever_it_lies(line: str) -> None:
    found = read_throughput(read_lines([line.encode("utf-8", "surrogateescape")]), UTC)
    assert found.found == (Reading(AT + 0.09864, 314.0),)
    assert found.unit == "TFLOP/s/GPU"


def test_megatron_needs_no_pattern() -> None:
    assert read(MEGATRON).found == (Reading(AT, 412.3),)
    assert read(MEGATRON).unit == "TFLOP/s/GPU"
    without = MEGATRON.replace("throughput per GPU (TFLOP/s/GPU): 412.3 |", "")
    assert read(without) == Readings("iterations/s", (Reading(AT, 0.8),), {})


def test_what_cannot_be_placed_in_time_is_refused_and_counted() -> None:
    found = read(SAID[29:], SAID.replace("2026-03-19", "2026-13-99"), SAID.replace("~314", "0"))
    assert found.found == ()
    assert found.refused == {"without a time": 2, "odd number": 1}


@pytest.mark.parametrize("number", ["9e999", "1e308", "1e-300"])
def test_a_number_that_no_throughput_can_be_is_refused(number: str) -> None:
    assert read(SAID.replace("~314", number), SAID).refused["odd number"] == 1


def test_readings_in_another_unit_are_not_mixed_in() -> None:
    found = read(SAID, SAID.replace("14:39", "14:41"), SAID.replace("TFLOP", "PFLOP"))
    assert len(found.found) == 2
    assert found.refused["in another unit"] == 1


def test_many_ranks_that_print_the_same_are_one_reading() -> None:
    lines = [f"{rank}: {SAID.replace('314', str(310 + rank))}" for rank in range(5)]
    assert read(*lines).found == (Reading(AT + 0.09864, 312.0),)


def test_a_job_in_another_zone_is_found_by_the_time_of_the_job() -> None:
    job = Period(AT - 600, AT + 600)
    local = read_throughput([SAID.replace("14:39", "15:39")], BERLIN, job)
    utc = read_throughput([SAID], BERLIN, job)
    assert local.found == utc.found == (Reading(AT + 0.09864, 314.0),)
    assert not local.notes
    assert "UTC" in utc.notes[0]


def test_of_more_lines_than_are_looked_at_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 MiB of short lines would take longer than the report may."""
    monkeypatch.setattr(throughput, "LINES_MAX", 3)
    found = read(SAID, "x", "x", "x", SAID.replace("14:39", "14:49"))
    assert len(found.found) == 1
    assert found.notes == ("only the first 3 lines of what is read of it were looked at",)
    assert not read(SAID, "x", "x").notes


def test_lines_of_another_job_are_refused() -> None:
    found = read(SAID, job=Period(AT + 1000, AT + 2000))
    assert found.found == ()
    assert found.refused["not of this job"] == 1


def test_the_hour_that_comes_twice_is_told_by_the_order_of_lines() -> None:
    lines = [
        f"[2026-10-25 02:{minute}:00] throughput per GPU: 1 TFLOP/s" for minute in ("10", "50")
    ]
    found = read_throughput([*lines, *lines], BERLIN)
    times = [one.time_s for one in found.found]
    assert np.diff(times).tolist() == [2400, 1200, 2400]


def test_a_line_without_end_is_passed_over_and_the_next_one_read() -> None:
    chunks = [b"x" * 65536] * 64 + [b"\n", SAID.encode()]
    found = list(read_lines(chunks))
    assert max(map(len, found)) == LINE_BYTES_MAX
    assert read_throughput(found, UTC).found


@pytest.mark.parametrize("at", range(1, len(SAID), 7))
def test_it_does_not_matter_where_a_piece_ends(at: int) -> None:
    data = SAID.encode()
    assert read_throughput(read_lines([data[:at], data[at:]]), UTC).found


def test_lines_without_number_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "READINGS_MAX", 500)
    lines = (
        f"[2026-03-19T14:39:47Z] {n} throughput per GPU: {1 + n % 7} TFLOP/s" for n in range(1500)
    )
    found = read_throughput(lines, UTC)
    assert len(found.found) <= 500
    assert found.notes == ("one throughput line of 4 was taken",)


def test_hostile_lines_take_no_more_time_than_others() -> None:
    start = time.process_time()
    for piece in ("throughput per GPU:", "throughput per GPU (", "2026-03-19 ", "9" * 50, "~ " * 9):
        read_throughput([(piece * LINE_BYTES_MAX)[:LINE_BYTES_MAX]] * 50, UTC)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("pattern", "line", "wanted"),
    [
        (r"SamplesPerSec=(?P<value>[\d.]+)", "[2026-03-19 14:39:47] SamplesPerSec=12.5", 12.5),
        (r"step time (?P<seconds>[\d.]+)", "2026-03-19 14:39:47 step time 0.5", 2.0),
        (r"(?P<time>\S+ \S+) tok/s (?P<value>\d+)", "1999-01-01 00:00:00 x "
         "2026-03-19 14:39:47 tok/s 9", 9.0),
    ],
)  # fmt: skip
def test_a_site_may_have_a_pattern_of_its_own(pattern: str, line: str, wanted: float) -> None:
    found = read_throughput([line], UTC, patterns=[compile_pattern(pattern)])
    assert found.found == (Reading(AT, wanted),)


@pytest.mark.parametrize("pattern", ["(", "throughput", "(?P<value>1)(?P<seconds>2)", "(?P<x>1)"])
def test_a_pattern_without_use_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ValueError, match="the throughput pattern"):
        compile_pattern(pattern)


def test_a_reading_is_of_the_time_before_it() -> None:
    readings = Readings("x", tuple(Reading(float(t), t / 10) for t in (60, 120, 180, 1200)), {})
    values = on_windows(readings, 0, 30, 40).values
    assert values[:6].tolist() == [6, 6, 12, 12, 18, 18]
    assert np.isnan(values[6:38]).all()  # after a gap nobody knows since when
    assert values[38:].tolist() == [120, 120]


def test_a_slow_minute_is_found_among_readings_a_minute_apart() -> None:
    rng = np.random.default_rng(5)
    figures = 314 * np.exp(rng.normal(0, 0.004, 40))
    figures[20:22] *= 0.93
    readings = Readings(
        "x", tuple(Reading(AT + 61 * n, float(v)) for n, v in enumerate(figures)), {}
    )
    progress = on_windows(readings, int(AT) - 60, 10, 250)
    (dip,) = segment_progress(progress).dips
    assert abs(progress.start_s + 10 * dip.first - (AT + 61 * 19)) <= 10
    assert dip.depth == pytest.approx(-0.07, abs=0.01)


def test_four_readings_alone_are_too_few_to_judge() -> None:
    readings = Readings("x", tuple(Reading(AT + 60 * n, 300.0 + n) for n in range(4)), {})
    assert segment_progress(on_windows(readings, int(AT) - 60, 10, 24)).too_short
