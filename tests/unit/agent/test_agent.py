# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.agent import publish
from nccl_inspector.agent.collect import Backlog
from nccl_inspector.agent.service import Agent, run_agent, run_collect
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
from tests.support.command_line import COMMAND, environment
from tests.support.ended_jobs import BOX
from tests.support.publishing import samples


def configured(tmp_path: Path) -> Config:
    run_dir = make_run_dir(tmp_path / "run")
    (tmp_path / "reports").mkdir()
    return parse_config(
        f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\nagent_interval = 100ms\n", "test"
    )


def test_one_pass_publishes_the_agents_own_state(tmp_path: Path) -> None:
    config = configured(tmp_path)
    raw = make_job(config.run_dir / "jobs" / "42")
    write_user_file(raw / "nccl_inspector_metrics_unknown_0_1.prom", b"bad")
    build = line("nccl_inspector_build_info", plugin_version="0.1.0", nccl_version="2.30.7")
    write_user_file(
        raw / "nccl_inspector_metrics_unknown_0_2.prom", metrics_text(build, line("nccl_gpu_info"))
    )
    with (
        lock_held(write_box(raw, "0_1", BoxOf(state=1))),
        lock_held(write_box(raw, "0_2", BoxOf(state=1))),
    ):
        run_agent(config, once=True)
    own = samples(config.run_dir / "prom" / "nccl_inspector_agent.prom")
    assert own["nccl_inspector_agent_jobs"] == 1
    assert own["nccl_inspector_agent_rejected_files_total"] == 1
    assert own["nccl_inspector_agent_ended_jobs_waiting"] == 0
    assert own["nccl_inspector_build_info"] == 1
    assert own["nccl_inspector_agent_last_pass_timestamp_seconds"] > 1.7e9
    text = (config.run_dir / "prom" / "nccl_inspector_agent.prom").read_text()
    assert f'cluster="",node="{socket.gethostname().split(".")[0]}"' in text


def test_without_a_run_directory_the_agent_says_so(tmp_path: Path) -> None:
    config = parse_config(f"run_dir = {tmp_path}/none\n", "test")
    with pytest.raises(InspectorError, match="none: No such file"):
        run_agent(config, once=True)
    for name in ("jobs", "control"):
        (tmp_path / "none" / name).mkdir(parents=True)
    with pytest.raises(InspectorError, match="none/prom: No such file"):
        run_agent(config, once=True)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_file_system_ends_no_agent_and_leaves_no_old_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path)
    raw = make_job(config.run_dir / "jobs" / "42")
    write_user_file(
        raw / "nccl_inspector_metrics_unknown_0_1.prom", metrics_text(line("nccl_gpu_info"))
    )
    with lock_held(write_box(raw, "0_1", BOX_ALIVE)):
        run_agent(config, once=True)
        assert names(config.run_dir / "prom") == ["42.prom", "nccl_inspector_agent.prom"]
        monkeypatch.setattr(publish, "replace_file", full)
        run_agent(config, once=True)
    assert names(config.run_dir / "prom") == []
    assert "job 42: its file cannot be written: No space left" in caplog.text


def test_a_trouble_that_stays_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path)
    make_job(config.run_dir / "jobs" / "42")
    monkeypatch.setattr(publish, "replace_file", full)
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Agent(config, run_fd)
    one.run_pass(0)
    one.run_pass(0)
    one.close()
    os.close(run_fd)
    assert len(caplog.records) == 1


def test_a_pass_that_cannot_publish_leaves_no_old_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    (config.run_dir / "prom" / "42.prom").write_text("old")
    monkeypatch.setattr(publish.Publisher, "run_pass", full)
    run_agent(config, once=True)
    assert names(config.run_dir / "prom") == []


def test_an_agent_that_breaks_withdraws_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    (config.run_dir / "prom" / "42.prom").write_text("old")

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(publish.Publisher, "run_pass", broken)
    with pytest.raises(RuntimeError):
        run_agent(config, once=False)
    assert names(config.run_dir / "prom") == []


@pytest.mark.parametrize("name", ["jobs", "ended", "prom"])
@pytest.mark.parametrize("anew", [True, False])
def test_an_agent_ends_when_its_directories_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, anew: bool
) -> None:
    config = configured(tmp_path)
    passes = []

    def replace(*_: object) -> None:
        passes.append(name)
        shutil.rmtree(config.run_dir / name)
        if anew:
            (config.run_dir / f"new-{name}").mkdir()
            (config.run_dir / f"new-{name}").rename(config.run_dir / name)

    monkeypatch.setattr(Agent, "run_pass", replace)
    why = "its directories were replaced" if anew else f"{config.run_dir}/{name}: No such file"
    with pytest.raises(InspectorError, match=why):
        run_agent(config, once=False)
    assert passes == [name], "one pass, and no further one in the old place"


def test_a_second_agent_is_kept_out(tmp_path: Path) -> None:
    config = configured(tmp_path)
    jobs_fd = os.open(config.run_dir / "jobs", os.O_RDONLY)
    fcntl.flock(jobs_fd, fcntl.LOCK_EX)
    for run in (lambda: run_agent(config, once=True), lambda: run_collect(config)):
        with pytest.raises(InspectorError, match=f"another agent runs on {config.run_dir}"):
            run()
    os.close(jobs_fd)
    assert run_collect(config) == Backlog(0, 0, 0)


def test_the_agents_own_series_keep_their_identity(tmp_path: Path) -> None:
    config = configured(tmp_path)
    own = config.run_dir / "prom" / "nccl_inspector_agent.prom"
    run_fd = os.open(config.run_dir, os.O_RDONLY)
    one = Agent(config, run_fd)
    one.run_pass(0)
    assert 'nccl_inspector_agent_jobs{cluster="",' in own.read_text()
    make_job(config.run_dir / "jobs" / "42")
    one.run_pass(0)
    (config.run_dir / "jobs" / "42").rename(config.run_dir / "ended" / "42.1")
    one.run_pass(0)
    assert 'nccl_inspector_agent_jobs{cluster="",' in own.read_text()
    one.close()
    os.close(run_fd)


def test_sigterm_ends_the_service_in_order_and_withdraws_its_files(tmp_path: Path) -> None:
    config = configured(tmp_path)
    raw = make_job(config.run_dir / "jobs" / "42")
    write_user_file(
        raw / "nccl_inspector_metrics_unknown_0_1.prom", metrics_text(line("nccl_gpu_info"))
    )
    make_job(config.run_dir / "ended" / "41.1", 41)
    conf = tmp_path / "x.conf"
    conf.write_text(f"run_dir = {config.run_dir}\nagent_interval = 100ms\n")
    with lock_held(write_box(raw, "0_1", BOX_ALIVE)):
        done = subprocess.Popen(
            [*COMMAND, "agent", "--conf", str(conf)],
            env=environment(),
        )
        own = config.run_dir / "prom" / "nccl_inspector_agent.prom"
        while not own.exists():
            assert done.poll() is None
        assert (config.run_dir / "prom" / "42.prom").exists()
        done.send_signal(signal.SIGTERM)
        assert done.wait(10) == 0
    assert names(config.run_dir / "prom") == []
    assert names(config.run_dir / "ended") == []


BOX_ALIVE = BoxOf(BOX.comms, BOX.keys, state=1)
