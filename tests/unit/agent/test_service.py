# SPDX-License-Identifier: Apache-2.0
"""The agent as a service of its own process: reload, its endpoint, and its end."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.settings.config import read_config
from nccl_inspector.settings.in_force import agent_note, running_note
from tests.sandbox import wait_until
from tests.support.agent_service import OWN, service
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
from tests.support.command_line import COMMAND, environment, run
from tests.support.ended_jobs import BOX, end_job, ended
from tests.support.mounts import fill, mounted
from tests.support.processes import children, free_address
from tests.support.systemd_socket import Listener


@contextmanager
def hooked(
    tmp_path: Path, program: str, more: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """An agent with a part of it replaced, and its run directory."""
    run_dir = make_run_dir(tmp_path / "run")
    conf = tmp_path / "x.conf"
    conf.write_text(f"run_dir = {run_dir}\nreport_dir = {run_dir}\nagent_interval = 100ms\n")
    argv = [COMMAND[0], "-c", program, "agent", "--conf", str(conf)]
    with subprocess.Popen(argv, env=environment() | more, stdin=subprocess.PIPE) as process:
        try:
            yield process, run_dir
        finally:
            process.kill()


def answer(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as got:
            return str(got.read().decode())
    except OSError:
        return ""


def test_sighup_makes_the_agent_work_by_the_configuration_as_it_is_now(tmp_path: Path) -> None:
    with service(tmp_path, "cluster = old\n") as one:
        raw = make_job(one.run_dir / "jobs" / "42")
        text = metrics_text(line("nccl_gpu_info"))
        write_user_file(raw / "nccl_inspector_metrics_unknown_0_1.prom", text)
        prom = one.run_dir / "prom" / "42.prom"
        with lock_held(write_box(raw, "0_1", BoxOf(state=1))):
            one.until(prom.exists, "the job")
            assert 'cluster="old"' in prom.read_text()
            address = free_address()
            one.configure(f"cluster = new\nagent_interval = 100ms\nlisten = {address}\n")
            one.until(lambda: 'cluster="new"' in prom.read_text(), "the new name")
            one.until(lambda: 'nccl_gpu_info{cluster="new"' in answer(address), "the endpoint")
            other = free_address()
            one.configure(f"cluster = new\nagent_interval = 100ms\nlisten = {other}\n")
            one.until(lambda: answer(other), "the other endpoint")
            assert answer(address) == ""
            one.configure("cluster = newest\nagent_interval = 100ms\n")
            one.until(lambda: 'agent_jobs{cluster="newest"' in one.own(), "its own name")
            assert answer(other) == ""
            assert children(one.process.pid) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("intervall = 3\n", "unknown key 'intervall'"),
        pytest.param(
            "listen = 192.0.2.1:9435\n",
            "listen = 192.0.2.1:9435: Cannot assign requested address",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "# no run_dir\n",
            "run_dir has changed: restart the agent",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_broken_configuration_changes_nothing_but_the_log(
    tmp_path: Path, text: str, why: str
) -> None:
    address = free_address()
    with service(tmp_path, f"listen = {address}\ncluster = old\n") as one:
        one.until(lambda: answer(address), "the endpoint")
        if text.startswith("#"):
            one.conf.write_text("agent_interval = 100ms\n")
            one.process.send_signal(signal.SIGHUP)
        else:
            one.configure(f"cluster = new\nagent_interval = 100ms\n{text}")
        one.until(lambda: why in one.log.read_text(), "a line in the log")
        stamp = (one.run_dir / "prom" / OWN).stat().st_ino
        one.until(lambda: (one.run_dir / "prom" / OWN).stat().st_ino != stamp, "another pass")
        assert 'agent_jobs{cluster="old"' in one.own()
        assert answer(address)
        assert one.log.read_text().count("the old configuration stays in use") == 1


def test_the_endpoint_ends_with_the_agent_however_that_ends(tmp_path: Path) -> None:
    address = free_address()
    with service(tmp_path, f"listen = {address}\n") as one:
        one.until(lambda: answer(address), "the endpoint")
        (child,) = children(one.process.pid)
        one.process.kill()
        one.process.wait(10)
        wait_until(lambda: not Path(f"/proc/{child}/exe").exists(), 5, "the child is gone")
        assert answer(address) == ""


NO_FORK = """
import errno, os
usual = os.fork
def fork():
    if os.path.exists({flag!r}):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return usual()
os.fork = fork
"""


@pytest.mark.long
def test_an_agent_that_can_start_no_process_for_a_while_goes_on_afterwards(tmp_path: Path) -> None:
    flag, address = tmp_path / "no-fork", free_address()
    flag.touch()
    text = f"listen = {address}\nreport_user = root\n"
    with service(tmp_path, text, NO_FORK.format(flag=str(flag))) as one:
        write_box(end_job(one.run_dir), "0_1", BOX)
        note = agent_note(read_config(one.conf))

        def says_why() -> bool:
            found = running_note(note)
            return found is not None and "temporarily unavailable" in found.trouble

        one.until(says_why, "it says what it cannot do")
        assert ended(one.run_dir) != []
        assert answer(address) == ""
        for why in ("cannot start the HTTP endpoint: ", "is not handed over, will try again"):
            assert one.log.read_text().count(why) == 1
        flag.unlink()
        one.until(lambda: answer(address), "the endpoint")
        one.until(lambda: ended(one.run_dir) == [], "the job is collected")
        one.until(lambda: not says_why(), "it says that nothing is wrong")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="a full file system of our own needs root")
def test_with_a_full_report_dir_the_node_is_not_well_and_the_doctor_says_make_room(
    tmp_path: Path,
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    with mounted(reports, "-t", "tmpfs", "-o", "size=64k,mode=0711", "full"):
        fill(reports)
        text = f"report_dir = {reports}\nreport_user = root\n"
        with service(tmp_path, text) as one:
            write_box(end_job(one.run_dir), "0_1", BOX)
            one.until(lambda: "No space left" in one.log.read_text(), "the failure")

            def status() -> tuple[int, str]:
                done = run("status", "--conf", str(one.conf))
                return done.returncode, done.stdout

            one.until(lambda: status()[0] == 4, "status is not well")
            assert "the summaries of ended jobs are not handed over: " in status()[1]
            assert "No space left on device" in status()[1]
            said = run("doctor", "--role", "node", "--conf", str(one.conf), "--json").stdout
            checks = {check["id"]: check for check in json.loads(said)["checks"]}
            assert checks["report-dir-full"]["outcome"] == "found"
            assert "Make room" in checks["report-dir-full"]["mend"]
            assert checks["report-dir"]["outcome"] == "well"
            assert checks["agent-settings"]["outcome"] == "well"
            (reports / "fill").unlink()
            one.until(lambda: ended(one.run_dir) == [], "the job is collected")
            one.until(lambda: status()[0] == 0, "status is well")


def test_the_agent_says_what_it_costs(tmp_path: Path) -> None:
    with service(tmp_path) as one:
        values = dict(row.rsplit(" ", 1) for row in one.own().splitlines() if row[0] != "#")
        found = {row.partition("{")[0]: float(value) for row, value in values.items()}
    process = "nccl_inspector_agent_process"
    assert 10e6 < found[f"{process}_resident_memory_bytes"] < 50 * 2**20
    assert 0 < found[f"{process}_cpu_seconds_total"] < 10
    assert found[f"{process}_start_time_seconds"] > 1.7e9
    assert 3 < found[f"{process}_open_fds"] < 50
    assert names(one.run_dir / "prom") == []


def under_systemd(systemd: Listener, watchdog_s: float) -> dict[str, str]:
    """The environment of a service of Type=notify with WatchdogSec."""
    return {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}


def beats_soon(systemd: Listener) -> bool:
    return "WATCHDOG=1" in systemd.heard()


def test_systemd_hears_of_the_first_pass_of_a_long_pause_and_of_the_end(tmp_path: Path) -> None:
    with Listener() as systemd:
        more = under_systemd(systemd, 0.4)
        with service(tmp_path, "agent_interval = 10m\n", **more) as one:
            one.until(lambda: beats_soon(systemd), "a beat in the pause")
            inode = (one.run_dir / "prom" / OWN).stat().st_ino
            one.until(lambda: beats_soon(systemd), "another beat")
            assert (one.run_dir / "prom" / OWN).stat().st_ino == inode, "it was the same pause"
        assert systemd.heard()[-1] == "STOPPING=1"


def test_ready_comes_after_the_first_pass(tmp_path: Path) -> None:
    with Listener() as systemd:
        program = (
            "from nccl_inspector.agent.service import Agent\n"
            "real = Agent.run_pass\n"
            "def slow(self, wait_s):\n"
            "    input()\n"
            "    real(self, wait_s)\n"
            "Agent.run_pass = slow\n"
            "from nccl_inspector.cli import main; main()\n"
        )
        with hooked(tmp_path, program, under_systemd(systemd, 60)) as (process, run_dir):
            time.sleep(1)
            assert systemd.heard() == []
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            heard: list[str] = []

            def is_heard() -> bool:
                heard.extend(systemd.heard())
                return bool(heard)

            wait_until(is_heard, 10, "it is ready")
            assert heard[0] == "READY=1"
            assert (run_dir / "prom" / OWN).exists()


def test_a_stopped_agent_says_no_more_and_abrt_writes_where_it_was(tmp_path: Path) -> None:
    with Listener() as systemd:
        with service(tmp_path, **under_systemd(systemd, 0.4)) as one:
            one.until(lambda: beats_soon(systemd), "a beat")
            one.process.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{one.process.pid}/stat")
            wait_until(lambda: ") T " in stat.read_text(), 5, "it is stopped")
            systemd.heard()
            time.sleep(1)
            assert systemd.heard() == []
            one.process.send_signal(signal.SIGABRT)
            one.process.send_signal(signal.SIGCONT)
            assert one.process.wait(10) == -signal.SIGABRT
        log = one.log.read_text()
        assert "Fatal Python error: Aborted" in log
        assert "service.py" in log


def test_only_the_agent_itself_writes_where_it_was(tmp_path: Path) -> None:
    address = free_address()
    with service(tmp_path, f"listen = {address}\n") as one:
        one.until(lambda: answer(address), "the endpoint")
        (child,) = children(one.process.pid)
        os.kill(child, signal.SIGABRT)
        one.until(lambda: "ended with status -6" in one.log.read_text(), "the child has ended")
        assert "Fatal Python error" not in one.log.read_text()


def test_a_pass_that_hangs_says_nothing_although_its_process_lives(tmp_path: Path) -> None:
    """The beat comes from the loop: a file system that does not answer holds it up."""
    program = (
        "import sys, time\n"
        "from nccl_inspector.agent.service import Agent\n"
        "real, passes = Agent.run_pass, []\n"
        "def hang(self, wait_s):\n"
        "    passes.append(1)\n"
        "    real(self, wait_s)\n"
        "    if len(passes) == 3: time.sleep(3600)\n"
        "Agent.run_pass = hang\n"
        "from nccl_inspector.cli import main; main()\n"
    )
    with (
        Listener() as systemd,
        hooked(tmp_path, program, under_systemd(systemd, 0.4)) as (process, _),
    ):
        heard: list[str] = []

        def passed() -> bool:
            heard.extend(systemd.heard())
            return heard.count("WATCHDOG=1") >= 3

        wait_until(passed, 30, "two passes")
        time.sleep(1)
        systemd.heard()
        time.sleep(1)
        assert systemd.heard() == []
        assert process.poll() is None


def test_the_endpoint_shows_no_old_values_of_an_agent_that_hangs(tmp_path: Path) -> None:
    address = free_address()
    with service(tmp_path, f"listen = {address}\n") as one:
        one.until(lambda: "nccl_inspector_agent_jobs{" in answer(address), "its page")
        one.process.send_signal(signal.SIGSTOP)
        own = one.run_dir / "prom" / OWN
        for age_s, shown in ((60, True), (300, False), (-300, False)):
            os.utime(own, (time.time() - age_s, time.time() - age_s))
            page = answer(address)
            assert ("nccl_inspector_agent_jobs{" in page) == shown
            assert "nccl_inspector_agent_http_requests_total" in page
        one.process.send_signal(signal.SIGCONT)
        one.until(lambda: "nccl_inspector_agent_jobs{" in answer(address), "its page again")
