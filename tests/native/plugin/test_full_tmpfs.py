# SPDX-License-Identifier: Apache-2.0
"""A neighbour has filled the tmpfs: a process that wrote before goes on writing, and is read."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.job_files import JobFiles, read_manifest
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import NODE_BYTES_MAX
from nccl_inspector.system.clock import SYSTEM_CLOCK
from tests.support.boxes import make_job
from tests.support.marks import as_root
from tests.support.mounts import fill, mounted
from tests.support.plugin_runs import environment
from tests.support.standin import started, until

pytestmark = as_root
ENDLESS = ["--steps", "1000000", "--sizes", "64K", "--rate", "400", "--compute-ms", "0"]
WRITTEN = "nccl_inspector_last_write_timestamp_seconds"
INTERVAL_US = 200_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "run"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "size=12m", "none"):
        yield place


def files_of(run: Path) -> tuple[Path, JobFiles, Tally]:
    """A job's raw/ of our own, as this process is the task's user, and what the agent has of it."""
    raw = make_job(run / "42", uid=os.getuid(), gid=os.getgid())
    os.chown(raw, os.getuid(), os.getgid())
    job_fd = os.open(run / "42", os.O_RDONLY)
    try:
        tally = Tally()
        return raw, JobFiles(*read_manifest(job_fd), "c", tally, SYSTEM_CLOCK), tally
    finally:
        os.close(job_fd)


def read(files: JobFiles, raw: Path) -> list[str]:
    """When each process wrote what the agent has of it now."""
    job_fd, raw_fd = (os.open(one, os.O_RDONLY | os.O_DIRECTORY) for one in (raw.parent, raw))
    try:
        files.refresh(job_fd, raw_fd, math.inf, NODE_BYTES_MAX)
    finally:
        os.close(job_fd)
        os.close(raw_fd)
    return [one.value for _, one in files.series() if one.metric.name == WRITTEN]


def test_in_a_full_tmpfs_series_go_on_and_no_text_is_torn(small: Path, tmp_path: Path) -> None:
    raw, files, tally = files_of(small)
    words = {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(INTERVAL_US)}
    with started(tmp_path, ENDLESS, ranks=2, env=environment(raw, **words)):
        until(lambda: len(read(files, raw)) == 2, "both ranks' series")
        assert fill(small) > 1 << 20
        seen: set[str] = set()

        def wrote_on() -> bool:
            found = read(files, raw)
            assert len(found) == 2, "no series is withdrawn, and no file refused"
            seen.update(found)
            return len(seen) >= 2 * 10

        until(wrote_on, "ten texts of each rank")
    assert tally.rejected == {}
