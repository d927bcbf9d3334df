# SPDX-License-Identifier: Apache-2.0
"""What the controller's epilog does, under each shell that may be a site's /bin/sh."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nccl_inspector.controller.queue import (
    QUEUED_MAX,
    USER_QUEUED_MAX,
    USER_QUEUED_MIN,
    Entry,
    Queue,
    bare_entry,
)
from tests.support.hook_scripts import SHELLS, sh
from tests.support.repository import REPO

HOOK = REPO / "epilog" / "nccl-inspector-epilogctld"
JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_RESTART_COUNT": "1",
    "SLURM_CLUSTER_NAME": "sandbox",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_ACCOUNT": "(null)",
    "SLURM_JOB_EXIT_CODE2": "3:0",
    "SLURM_JOB_UID": "1001",
    "SLURM_ARRAY_JOB_ID": "40",
    "SLURM_ARRAY_TASK_ID": "2",
}


@pytest.fixture
def controller_dir(tmp_path: Path) -> Path:
    (tmp_path / "ctl" / "queue").mkdir(parents=True)
    return tmp_path / "ctl"


@pytest.fixture(params=SHELLS)
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return sh(tmp_path, request.param)


def run(shell: Path, controller_dir: Path, *, hook: Path = HOOK, **env: str | bytes) -> str:
    """Run the hook, which must end with 0 and say one line at most; what it said."""
    done = subprocess.run(
        [shell, hook],
        env={"NCCL_INSPECTOR_TEST_CONTROLLER_DIR": str(controller_dir), **JOB, **env},
        cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.count(b"\n") <= 1
    return done.stderr.decode("ascii")


def queued(controller_dir: Path) -> list[Entry]:
    queue = Queue(controller_dir)
    try:
        entries, problems = queue.scan()
    finally:
        queue.close()
    assert problems == []
    return entries


def files(controller_dir: Path) -> list[Path]:
    return sorted((controller_dir / "queue").iterdir())


def test_it_is_short_and_passes_shellcheck() -> None:
    assert len(HOOK.read_text("ascii").splitlines()) <= 85
    assert os.access(HOOK, os.X_OK)
    done = subprocess.run(
        ["shellcheck", "-S", "style", HOOK], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


def test_an_ended_job_is_queued_with_what_slurmctld_says(shell: Path, controller_dir: Path) -> None:
    begun = time.time()
    assert run(shell, controller_dir) == ""
    (entry,) = queued(controller_dir)
    assert int(begun) <= entry.queued_s <= time.time()
    assert (entry.job_id, entry.restart, entry.cluster, entry.name) == (42, 1, "sandbox", "train")
    assert (entry.nodelist, entry.exit_code, entry.array_task) == ("n[1-4]", "3:0", "40_2")
    assert (entry.het_job_id, entry.leader, entry.tries) == (None, 42, 0)
    assert entry.uid == 1001
    (path,) = files(controller_dir)
    assert path.stat().st_mode & 0o777 == 0o640


def test_each_end_of_one_job_is_a_file(shell: Path, controller_dir: Path) -> None:
    for _ in range(3):
        assert run(shell, controller_dir) == ""
    assert len(queued(controller_dir)) == 3


def test_a_job_that_was_not_measured_is_not_queued(shell: Path, controller_dir: Path) -> None:
    assert run(shell, controller_dir, SPANK_NCCL_INSPECTOR="off") == ""
    assert files(controller_dir) == []


@pytest.mark.parametrize(
    "number", ["", "../etc", "7;false", "-1", "007", "7 8", "7\n8", "$(false)", "12345678901"]
)
def test_an_odd_number_is_one_log_line(shell: Path, controller_dir: Path, number: str) -> None:
    assert "SLURM_JOB_ID is not a number" in run(shell, controller_dir, SLURM_JOB_ID=number)
    assert files(controller_dir) == []


def test_texts_of_users_cannot_make_lines(shell: Path, controller_dir: Path) -> None:
    name = b"x\nhet_job_id=1\nend\n\x1b[31m\xff$(false)%s"
    assert run(shell, controller_dir, SLURM_JOB_NAME=name) == ""
    (entry,) = queued(controller_dir)
    assert entry.het_job_id is None
    assert entry.name.startswith("x?het_job_id=1?end??[31m")
    assert entry.name.endswith("$(false)%s")


def test_without_its_directory_it_says_one_line(shell: Path, tmp_path: Path) -> None:
    assert "not queued: there is no" in run(shell, tmp_path / "none")


def with_limits(tmp_path: Path, queued: int, user: int, least: int) -> Path:
    """The hook with other limits of the queue."""
    text, number = HOOK.read_text("ascii"), "=[0-9]+"
    for name, value in (("queued_max", queued), ("user_max", user), ("user_min", least)):
        text, count = re.subn(f"{name}{number}", f"{name}={value}", text)
        assert count == 1
    path = tmp_path / "short.sh"
    path.write_text(text, "ascii")
    return path


def test_a_full_queue_is_one_line(shell: Path, controller_dir: Path, tmp_path: Path) -> None:
    short = with_limits(tmp_path, queued=2, user=5000, least=0)
    for _ in range(3):
        said = run(shell, controller_dir, hook=short)
    assert "is full of jobs of uid 1001; does nccl-inspector controller run?" in said
    assert len(files(controller_dir)) == 2


def test_the_ends_of_one_user_displace_no_end_of_another(
    shell: Path, controller_dir: Path, tmp_path: Path
) -> None:
    (controller_dir / "dropped").mkdir()
    few = with_limits(tmp_path, queued=6, user=4, least=2)
    for uid in ("1001", "1003"):
        for _ in range(10):
            run(shell, controller_dir, hook=few, SLURM_JOB_UID=uid)
    assert run(shell, controller_dir, hook=few, SLURM_JOB_UID="1002") == ""
    uids = [one.uid for one in queued(controller_dir)]
    assert (uids.count(1001), uids.count(1002)) == (4, 1)
    queue = Queue(controller_dir)
    assert queue.take_dropped() == {"1001": 6, "1003": 8}
    assert queue.take_dropped() == {}
    queue.close()


def test_the_shares_of_the_queue_are_those_that_the_service_knows() -> None:
    text = HOOK.read_text("ascii")
    known = f"queued_max={QUEUED_MAX} user_max={USER_QUEUED_MAX} user_min={USER_QUEUED_MIN}"
    assert text.count(known) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="a full file system of our own needs root")
@pytest.mark.parametrize(
    ("options", "says", "is_kept"),
    [("size=4k", "queued by its number alone", True), ("nr_inodes=4", "not queued", False)],
)
def test_a_full_disk_is_one_line_and_takes_the_jobs_number_if_it_has_room_for_a_name(
    shell: Path, controller_dir: Path, options: str, says: str, is_kept: bool
) -> None:
    queue = controller_dir / "queue"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "full", queue], check=True)
    try:
        (queue / "1.1").write_bytes(b"x" * 4096)
        with suppress(OSError):
            while "inodes" in options:
                (queue / f"1.{len(files(controller_dir)) + 1}").touch()
        before = set(files(controller_dir))
        said = run(shell, controller_dir)
        assert says in said
        assert "queue full?" in said
        new = set(files(controller_dir)) - before
        assert len(new) == int(is_kept)
        for path in new:
            entry = bare_entry(path.name)
            assert (path.read_bytes(), entry.job_id, entry.uid) == (b"", 42, 1001)
            assert abs(entry.queued_s - time.time()) < 60
    finally:
        subprocess.run(["umount", queue], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_with_0(
    shell: Path, controller_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    fifo, waiting = tmp_path / "fifo", tmp_path / "waiting.sh"
    os.mkfifo(fifo)
    text = HOOK.read_text("ascii")
    assert text.count("\ncheck_room\n") == 1
    waiting.write_text(text.replace("\ncheck_room\n", f"\nread -r _ <{fifo}\n"), "ascii")
    env = {"NCCL_INSPECTOR_TEST_CONTROLLER_DIR": str(controller_dir), **JOB}
    with subprocess.Popen([shell, waiting], env=env) as process:
        fd = os.open(fifo, os.O_WRONLY)  # comes back when the hook has come that far
        process.send_signal(number)
        os.close(fd)
        assert process.wait(5) == 0
    assert files(controller_dir) == []
