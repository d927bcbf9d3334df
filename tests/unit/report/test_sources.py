# SPDX-License-Identifier: Apache-2.0
"""What is read of a job's own output, whatever the job's user has put there."""

import fcntl
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nccl_inspector.report.job_context import RequestedInputs, gather
from tests.support.job_output import CONFIG, LINES, WEEK

SUMMER = datetime(2026, 10, 23, 10, tzinfo=UTC).timestamp()
WINTER = datetime(2026, 10, 27, 10, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("zone", ["Europe/Berlin", ":Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"])
def test_times_of_an_output_are_those_of_the_clock_then_not_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    output = tmp_path / "slurm.out"
    output.write_text(LINES)
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        given = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=output))
    time.tzset()
    assert given.readings
    assert [one.time_s for one in given.readings.found] == [SUMMER, WINTER]


def test_a_fifo_of_the_user_in_place_of_his_output_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slurm.out")
    given = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=tmp_path / "slurm.out"))
    assert given.readings is None
    assert "is no file" in given.inputs[-1].detail


def test_a_lease_of_the_user_on_his_output_holds_nobody(tmp_path: Path) -> None:
    output = tmp_path / "slurm.out"
    output.write_text(LINES)
    with output.open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            begin_s = time.monotonic()
            given = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=output))
            assert time.monotonic() - begin_s < 5
        finally:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)
    assert given.readings is None
