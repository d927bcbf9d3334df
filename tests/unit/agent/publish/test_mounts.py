# SPDX-License-Identifier: Apache-2.0
"""A user mounts something over what is his: whoever asks it would wait for his answer."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer

import pytest

from nccl_inspector.agent import job_dir as jobdir
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.remove_tree import remove_tree
from nccl_inspector.system.safe_files import directory, regular_file
from tests.support.boxes import (
    JOB_UID,
    BoxOf,
    lock_held,
    make_job,
    names,
    write_box,
    write_user_file,
)
from tests.support.marks import as_root
from tests.support.mounts import mounted
from tests.support.publishing import GAUGE, GOOD, PROM, STEM, published, publisher

pytestmark = as_root


@contextmanager
def never_answering(place: Path) -> Iterator[None]:
    """A FUSE file system whose server says nothing, not even hello: every question waits."""
    try:
        fuse_fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("no /dev/fuse")
    mode = "40000" if place.is_dir() else "100000"
    words = f"fd={fuse_fd},rootmode={mode},user_id={JOB_UID},group_id={JOB_UID},allow_other"
    argv = ["mount", "-i", "-t", "fuse", "-o", words, "evil", str(place)]
    done = subprocess.run(argv, pass_fds=[fuse_fd], capture_output=True, text=True)
    if done.returncode:
        os.close(fuse_fd)
        pytest.skip(f"mount: {done.stderr.strip()}")
    # Whoever waits cannot be interrupted: after this time he gets an error.
    abort = Timer(10, lambda: subprocess.run(["umount", "--force", "--lazy", str(place)]))
    abort.start()
    try:
        yield
    finally:
        abort.cancel()
        os.close(fuse_fd)
        subprocess.run(["umount", "--force", "--lazy", str(place)], capture_output=True)


def one_pass(run_dir: Path, tally: Tally) -> float:
    """How long a pass took, seconds."""
    with publisher(run_dir, tally) as one:
        begun_s = time.monotonic()
        one.run_pass()
        return time.monotonic() - begun_s


def test_a_file_system_that_never_answers_costs_only_its_own_job(run_dir: Path, raw: Path) -> None:
    other = make_job(run_dir / "jobs" / "43", 43)
    write_user_file(other / PROM, GOOD)
    write_user_file(raw / PROM, GOOD)
    tally = Tally()
    with lock_held(write_box(other, STEM, BoxOf(state=1))), never_answering(raw):
        assert one_pass(run_dir, tally) < 5
        assert names(run_dir / "prom") == ["43.prom"]
        jobs_fd = os.open(run_dir / "jobs", os.O_RDONLY)
        found = jobdir.look("42", jobs_fd)
        os.close(jobs_fd)
        assert found is not None


@pytest.mark.parametrize("name", [PROM, f"nccl_inspector_{STEM}.box", "nccl_inspector_mark"])
def test_nor_does_one_over_a_file(run_dir: Path, raw: Path, name: str) -> None:
    write_user_file(raw / PROM, GOOD)
    (raw / name).touch()
    tally = Tally()
    with never_answering(raw / name):
        assert one_pass(run_dir, tally) < 5
    assert (GAUGE in published(run_dir)) == (name == "nccl_inspector_mark")
    assert sum(tally.rejected.values()) == 1


def test_what_is_mounted_there_is_refused_with_its_reason(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    (raw / "nccl_inspector_mark").mkdir()
    source = write_user_file(run_dir / "elsewhere", GOOD)
    raw_fd = os.open(raw, os.O_RDONLY)
    with ExitStack() as stack:
        stack.callback(os.close, raw_fd)
        stack.enter_context(mounted(raw / PROM, "--bind", str(source)))
        stack.enter_context(mounted(raw / "nccl_inspector_mark", "-t", "tmpfs", "none"))
        with (
            pytest.raises(RefusedError, match="other_mount"),
            regular_file(PROM, JOB_UID, 1 << 20, raw_fd),
        ):
            pass
        with (
            pytest.raises(RefusedError, match="other_mount"),
            directory("nccl_inspector_mark", None, raw_fd),
        ):
            pass


def test_what_is_mounted_there_is_not_emptied(run_dir: Path, tmp_path: Path) -> None:
    place = run_dir / "ended" / "42.1"
    raw = make_job(place)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    ended_fd = os.open(run_dir / "ended", os.O_RDONLY)
    with mounted(raw, "--bind", str(precious)):
        with pytest.raises(OSError, match="other_mount"):
            remove_tree("42.1", ended_fd)
        assert names(precious) == ["file"]
    remove_tree("42.1", ended_fd)
    os.close(ended_fd)
    assert names(run_dir / "ended") == []
    assert names(precious) == ["file"]


def test_a_publisher_that_has_seen_a_job_withdraws_it_when_it_is_hidden(
    run_dir: Path, raw: Path
) -> None:
    write_user_file(raw / PROM, GOOD)
    with publisher(run_dir) as one:
        one.run_pass()
        assert GAUGE in published(run_dir)
        with mounted(raw, "-t", "tmpfs", "none"):
            one.run_pass()
            assert published(run_dir) == ""
        one.run_pass()
    assert GAUGE in published(run_dir)
