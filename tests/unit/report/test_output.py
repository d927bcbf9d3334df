# SPDX-License-Identifier: Apache-2.0
"""What reading a job's output may cost, whatever its user has put there."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.slow_times.throughput import compile_pattern
from nccl_inspector.model.card import Period
from nccl_inspector.report import output as module
from nccl_inspector.report.job_context import RequestedInputs, gather
from nccl_inspector.report.output import CPU_S_MIN, Output, read_output
from tests.support.job_output import CONFIG, LINES, WEEK

PERIOD = Period(WEEK.start, WEEK.end)
# Lines, and seconds of CPU time that end this process.
_READ = """
import resource, sys
from datetime import UTC
from nccl_inspector.analysis.slow_times.throughput import LINE_BYTES_MAX, read_throughput
from tests.support.job_output import HOSTILE
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
read_throughput([line[:LINE_BYTES_MAX] for line in HOSTILE] * 400, UTC)
"""


def of(path: Path, cpu_s: float = 20.0, pattern: str = "") -> Output:
    patterns = (compile_pattern(pattern),) if pattern else ()
    return Output(path, None, PERIOD, patterns, cpu_s)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.out"
    path.write_text(LINES)
    return path


def test_no_line_makes_the_built_in_patterns_look_at_it_again_and_again() -> None:
    """10 MB, which took the patterns of before some minutes."""
    done = subprocess.run([sys.executable, "-c", _READ], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_readings_come_back_from_the_child_as_they_were(written: Path) -> None:
    told = read_output(of(written))
    found, seen = told.readings, told.seen
    assert found
    assert [one.value for one in found.found] == [300.0, 310.0]
    assert (found.unit, seen.state) == ("TFLOP/s", "present")
    assert seen.detail.startswith("2 readings of the job's output")


def test_a_pattern_of_the_site_that_a_line_drives_mad_costs_its_budget_alone(
    written: Path,
) -> None:
    written.write_text("a" * 4000 + "\n" + LINES)
    begin = os.times()
    told = read_output(of(written, 1.0, r"(?:a+)+b(?P<value>\d)"))
    found, seen = told.readings, told.seen
    used = os.times().children_user - begin.children_user
    assert found is None
    assert seen.detail == f"{written} is not read: it took more than 1 s of CPU time"
    assert used < 20


def test_what_was_read_when_the_time_was_over_stays_and_the_rest_is_told(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time of this test goes by a second for each look at it."""
    looks = iter(range(10**6))
    monkeypatch.setattr(time, "process_time", lambda: float(next(looks)))
    written.write_text(LINES + "\n".join("x" * 3 for _ in range(100_000)) + "\n" + LINES)
    told = read_output(of(written, 5.0))
    found, seen = told.readings, told.seen
    assert found
    assert len(found.found) == 2
    assert "for which 5 s of CPU time were enough" in seen.detail


def test_a_file_system_that_never_answers_holds_nobody_for_long(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WALL_S", 0.2)
    monkeypatch.setattr(module, "_open_regular", lambda *_: time.sleep(600))
    told = read_output(of(written))
    found, seen = told.readings, told.seen
    assert found is None
    assert f"{written} does not answer" in seen.detail


def test_a_child_that_breaks_off_leaves_a_report_without_throughput(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_open_regular", lambda *_: os._exit(3))
    told = read_output(of(written))
    found, seen = told.readings, told.seen
    assert found is None
    assert "the process that read it broke off" in seen.detail


def test_what_launchers_wrote_at_the_end_of_an_output_is_read_with_the_rest(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = "srun: error: n2: task 3: Killed\nsrun: error: n1: tasks 0-2: Exited with exit code 1\n"
    written.write_text(LINES + ends)
    told = read_output(of(written))
    assert told.readings is not None
    assert told.launchers is not None
    assert [(one.hosts, one.tasks) for one in told.launchers.ends] == [("n2", "3"), ("n1", "0-2")]
    # They come first, so a file that takes too long for the rest does not take them along.
    monkeypatch.setattr(module, "_read_words", lambda _: os._exit(3))
    again = read_output(of(written))
    assert (again.readings, again.launchers) == (None, told.launchers)


def test_an_output_without_throughput_and_one_that_is_not_there_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "has no throughput lines" in read_output(of(tmp_path / "empty")).seen.detail
    assert read_output(of(tmp_path / "none")).seen.detail.endswith(
        "none: No such file or directory"
    )


def test_without_a_share_of_time_the_output_is_not_opened_and_the_report_says_so(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "start_child", pytest.fail)
    asked = RequestedInputs(slurm=False, output=written, output_cpu_s=CPU_S_MIN / 2)
    given = gather(WEEK, CONFIG, asked)
    assert given.readings is None
    (seen,) = (one for one in given.inputs if one.source == "throughput")
    assert re.match("not read: this user's reports have used up their share", seen.detail)


def test_what_sbatch_sends_to_a_file_of_errors_is_read_too(written: Path) -> None:
    errors = written.with_name("slurm.err")
    ends = "srun: error: n2: task 3: Killed\n"
    warning = "n2:77:80 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by n1\n"
    errors.write_text(ends + warning)
    told = read_output(replace(of(written), errors=errors))
    assert told.readings
    assert told.launchers
    assert [one.tasks for one in told.launchers.ends] == ["3"]
    assert told.words
    assert (told.words.lines, told.words.first) == (2, "task-killed")
    # Python's `logging` writes there unless told otherwise.
    written.write_text("Loading\n")
    errors.write_text(ends + LINES)
    told = read_output(replace(of(written), errors=errors))
    assert told.readings
    assert [one.value for one in told.readings.found] == [300.0, 310.0]
    assert f"from {errors}" in told.seen.detail
    # One of them may be gone.
    written.unlink()
    again = read_output(replace(of(written), errors=errors))
    assert (again.readings, again.launchers) == (told.readings, told.launchers)
    errors.unlink()
    none = read_output(replace(of(written), errors=errors))
    assert (none.readings, none.launchers, none.words) == (None, None, None)
    assert none.seen.detail == f"{written}: No such file or directory"
