# SPDX-License-Identifier: Apache-2.0
"""disable, enable and status on one node."""

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.agent.collect import Backlog
from nccl_inspector.agent.kill_switch import Disabled, disable, enable, is_disabled, read_switch
from nccl_inspector.agent.service import Agent, run_agent, run_collect
from nccl_inspector.agent.status import find_flock, read_status
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config, parse_config
from tests.support.boxes import (
    BoxOf,
    line,
    lock_held,
    make_job,
    make_run_dir,
    metrics_text,
    names,
    write_box,
    write_user_file,
)
from tests.support.command_line import run


@pytest.fixture
def run_dir(open_path: Path) -> Path:
    made = make_run_dir(open_path / "run")
    made.chmod(0o755)
    (made / "control").chmod(0o755)
    return made


@pytest.fixture
def agent_lock(run_dir: Path) -> int:
    """Whose lock is held for the test's life: the agent's."""
    fd = os.open(run_dir / "jobs", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def call(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(*words, "--run-dir", str(run_dir))


def test_disable_writes_when_and_why_and_enable_takes_it_away(run_dir: Path) -> None:
    done = call(run_dir, "disable", "--reason", "NCCL 2.99 hangs")
    path = run_dir / "control" / "disabled"
    since, _, reason = path.read_text().partition(" ")
    assert abs(int(since) - time.time()) < 60
    assert reason == "NCCL 2.99 hangs\n"
    assert path.stat().st_mode & 0o7777 == 0o644
    assert done.returncode == 0
    assert done.stdout.startswith("disabled since 2")
    assert done.stdout.endswith(" UTC: NCCL 2.99 hangs\n")
    assert call(run_dir, "enable").stdout == "enabled\n"
    assert names(run_dir / "control") == []


def test_both_may_be_said_twice(run_dir: Path) -> None:
    first = disable(run_dir, "why")
    file = (run_dir / "control" / "disabled").stat()
    same = file.st_ino, file.st_mtime_ns
    assert disable(run_dir, "") == first
    file = (run_dir / "control" / "disabled").stat()
    assert (file.st_ino, file.st_mtime_ns) == same
    assert disable(run_dir, "why else") == Disabled(first.since, "why else")
    enable(run_dir)
    enable(run_dir)
    assert read_switch(run_dir) is None


def test_a_reason_is_one_plain_line(run_dir: Path) -> None:
    disable(run_dir, " a\nb\x1b[31m  \t" + "c" * 300)
    text = (run_dir / "control" / "disabled").read_text()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert text.split(" ", 1)[1].startswith("a b [31m ccc")
    assert len(text) < 220


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe", b"1 a\n2 b\n", b"9" * 5000])
def test_any_file_there_is_off(run_dir: Path, content: bytes) -> None:
    (run_dir / "control" / "disabled").write_bytes(content)
    run_fd = os.open(run_dir, os.O_RDONLY)
    assert is_disabled(run_fd)
    os.close(run_fd)
    state = read_switch(run_dir)
    assert state is not None
    assert state.since == 0


def test_a_link_or_directory_is_off_where_the_hooks_see_it(run_dir: Path) -> None:
    """Which is what `[ -e` and stat() follow: an end that is there."""
    switch = run_dir / "control" / "disabled"
    run_fd = os.open(run_dir, os.O_RDONLY)
    for target, off in (("/nowhere", False), ("disabled", False), ("/dev/null", True)):
        switch.symlink_to(target)
        seen = subprocess.run(["test", "-e", switch], check=False).returncode == 0
        assert (seen, is_disabled(run_fd), read_switch(run_dir) is not None) == (off, off, off)
        enable(run_dir)
        assert names(run_dir / "control") == []
    os.close(run_fd)
    switch.symlink_to("/nowhere")
    disable(run_dir, "why")
    assert not switch.is_symlink()
    enable(run_dir)
    switch.mkdir()
    assert read_switch(run_dir) == Disabled(0, "")
    assert call(run_dir, "enable").returncode == 1


def test_without_a_run_directory_there_is_one_line(tmp_path: Path) -> None:
    for word in ("disable", "enable"):
        done = call(tmp_path / "none", word)
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            done.stderr == f"nccl-inspector: {tmp_path}/none/control: No such file or directory\n"
        )


def test_the_switch_needs_its_right(run_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root has every right")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setuid(65534)
            disable(run_dir, "")
        except InspectorError as err:
            code = 0 if str(err) == f"{run_dir}/control: Permission denied" else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_switch(run_dir) is None


# The agent.


def configured(run_dir: Path, tmp_path: Path) -> Config:
    (tmp_path / "reports").mkdir()
    return parse_config(f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\n", "test")


def own(run_dir: Path) -> str:
    text = (run_dir / "prom" / "nccl_inspector_agent.prom").read_text()
    (found,) = [
        one for one in text.splitlines() if one.startswith("nccl_inspector_agent_disabled{")
    ]
    return found.rpartition(" ")[2]


def test_while_disabled_no_job_is_published_but_ended_ones_are_collected(
    run_dir: Path, tmp_path: Path
) -> None:
    raw = make_job(run_dir / "jobs" / "42")
    write_user_file(
        raw / "nccl_inspector_metrics_unknown_0_1.prom", metrics_text(line("nccl_gpu_info"))
    )
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Agent(configured(run_dir, tmp_path), run_fd)
    with lock_held(write_box(raw, "0_1", BoxOf(state=1))):
        one.run_pass(10)
        assert (names(run_dir / "prom")[0], own(run_dir)) == ("42.prom", "0")
        disable(run_dir, "")
        make_job(run_dir / "ended" / "41.1", 41)
        one.run_pass(10)
        assert names(run_dir / "prom") == ["nccl_inspector_agent.prom"]
        assert own(run_dir) == "1"
        assert names(run_dir / "ended") == []
        assert names(run_dir / "jobs") == ["42"]
        enable(run_dir)
        one.run_pass(10)
        assert (names(run_dir / "prom")[0], own(run_dir)) == ("42.prom", "0")
    one.close()
    os.close(run_fd)


# status


def renew(run_dir: Path, age_s: float = 0) -> None:
    """Do as the agent does each interval."""
    path = run_dir / "prom" / "nccl_inspector_agent.prom"
    path.touch()
    os.utime(path, (time.time() - age_s,) * 2)


def collected(run_dir: Path, age_s: float) -> None:
    """Do as a collection by the timer did so long ago."""
    path = run_dir / "control" / "collected"
    path.touch()
    os.utime(path, (time.time() - age_s,) * 2)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A run directory on a tmpfs of 1 MiB and 40 inodes."""
    point = tmp_path / "tiny"
    point.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=40", "none", str(point)]
    if subprocess.run(words, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield make_run_dir(point)
    finally:
        subprocess.run(["umount", point], check=True)


def test_an_agent_that_hangs_is_not_well(run_dir: Path, agent_lock: int) -> None:
    hangs = "not well            the agent does not renew what it publishes\n"
    for age_s in (None, 60, -3600):
        if age_s is not None:
            renew(run_dir, age_s)
        done = call(run_dir, "status")
        assert (done.returncode, hangs in done.stdout) == (4, True)
    renew(run_dir, 20)
    assert read_status(run_dir, 5).exit_code == 0
    renew(run_dir, 300)
    assert read_status(run_dir, 60).exit_code == 0, "agent_interval is a minute"
    os.close(agent_lock)


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_run_directory_that_is_nearly_full_is_not_well(tiny: Path, what: str) -> None:
    collected(tiny, 0)
    assert read_status(tiny, 5).exit_code == 0
    if what == "bytes":
        (tiny / "prom" / "fill").write_bytes(bytes(1000 << 10))
    else:
        for number in range(33):
            (tiny / "prom" / f"fill{number}").touch()
    found = read_status(tiny, 5)
    assert found.exit_code == 4
    assert re.fullmatch(f"[0-9]+% of the run directory's {what} are in use", found.trouble)


def test_a_node_without_an_agent_is_well_while_the_timer_collects(
    run_dir: Path, tmp_path: Path
) -> None:
    assert run_collect(configured(run_dir, tmp_path)) == Backlog(0, 0, 0)
    assert call(run_dir, "status").returncode == 0
    collected(run_dir, 181)
    done = call(run_dir, "status")
    assert done.returncode == 0
    row = "agent               not running; last collected without it 3 min ago\n"
    assert row in done.stdout
    disable(run_dir, "")
    assert call(run_dir, "status").returncode == 3
    enable(run_dir)
    collected(run_dir, 1200)
    done = call(run_dir, "status")
    assert done.returncode == 4
    assert "no agent runs, and nothing was collected for 20 min\n" in done.stdout


def test_an_agent_that_comes_takes_over_from_the_timer(run_dir: Path, tmp_path: Path) -> None:
    config = configured(run_dir, tmp_path)
    run_collect(config)
    run_agent(config, once=True)
    # In a container only the age of its own file tells that it has ended.
    os.utime(run_dir / "prom" / "nccl_inspector_agent.prom", (0, 0))
    assert "not well            no agent runs\n" in call(run_dir, "status").stdout


def test_an_agent_of_another_pid_namespace_is_known_by_what_it_renews(run_dir: Path) -> None:
    hidden = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    look = f"""
from pathlib import Path
from nccl_inspector.agent.status import read_status
print(read_status(Path({str(run_dir)!r}), 5).agent_pid)
"""
    if subprocess.run([*hidden, ""], check=False).returncode:
        pytest.skip("cannot make a pid namespace here")
    fd = os.open(run_dir / "jobs", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    said = []
    for age_s in (0, 60):
        renew(run_dir, age_s)
        done = subprocess.run([*hidden, look], capture_output=True, text=True, check=True)
        said.append(done.stdout.strip())
    assert said == ["0", "None"]
    os.close(fd)


def test_a_node_that_is_well_is_0_and_a_disabled_one_3(run_dir: Path, agent_lock: int) -> None:
    make_job(run_dir / "jobs" / "42")
    make_job(run_dir / "ended" / "41.1", 41)
    (run_dir / "ended" / ".done-40.1").mkdir()
    (run_dir / "prom" / "42.prom").write_text("x")
    os.utime(run_dir / "prom" / "42.prom", (time.time() + 1000,) * 2)
    renew(run_dir)
    done = call(run_dir, "status")
    assert (done.returncode, done.stderr) == (0, "")
    table = dict(row.split("  ", 1) for row in done.stdout.splitlines())
    assert {key: value.strip() for key, value in table.items() if key != "run directory"} == {
        "node": "enabled",
        "agent": f"running, pid {os.getpid()}",
        "jobs": "1",
        "ended jobs waiting": "1",
        "published files": "2, the newest 0.0 s old",
    }
    assert "inodes (not a file system of its own)" in table["run directory"]
    disable(run_dir, "why")
    renew(run_dir)  # a command may take some seconds on a busy machine
    done = call(run_dir, "status")
    assert done.returncode == 3
    assert "UTC: why" in done.stdout
    os.close(agent_lock)


def test_looking_for_the_agent_does_not_take_its_lock(run_dir: Path) -> None:
    assert read_status(run_dir, 5).agent_pid is None
    locks = (
        "1: FLOCK  ADVISORY  WRITE 77 fe:01:12 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 9 fe:01:13 0 EOF"
    )
    device = os.makedev(0xFE, 1)
    assert find_flock(locks, device, 12) == 77
    assert find_flock(locks, device, 13) is None, "it only waits for it"
    assert find_flock(locks.replace("77", "-1"), device, 12) == 0
    assert find_flock(locks.replace("FLOCK", "POSIX"), device, 12) is None


def test_a_dead_agent_or_no_directory_is_4(run_dir: Path) -> None:
    disable(run_dir, "")
    done = call(run_dir, "status")
    assert done.returncode == 4
    assert "not well            no agent runs\n" in done.stdout
    assert "node                disabled since" in done.stdout
    done = call(run_dir / "none", "status")
    assert (done.returncode, done.stderr) == (4, "")
    assert "No such file" in done.stdout
    assert "node                not known\n" in done.stdout


def test_who_may_not_see_is_told_so(run_dir: Path, agent_lock: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("root has every right")
    (run_dir / "jobs").chmod(0o711)
    (run_dir / "ended").chmod(0o700)
    disable(run_dir, "why")
    renew(run_dir)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            seen = read_status(run_dir, 5)
            words = f"{seen.exit_code} {seen.disabled and seen.disabled.reason} {seen.agent_pid}"
            os.write(writing, f"{words} {seen.jobs} {seen.ended} {seen.published}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 100).decode() == f"3 why {os.getpid()} None None 1"
    for fd in (reading, writing, agent_lock):
        os.close(fd)
