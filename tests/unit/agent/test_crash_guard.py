# SPDX-License-Identifier: Apache-2.0
"""A job's data that end the agent: after the second time the others have it back."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from nccl_inspector.agent import ended_job as endedjob
from nccl_inspector.agent import job_files as jobfiles
from nccl_inspector.agent.service import run_agent
from nccl_inspector.box.reader import read_box
from nccl_inspector.exposition.process_file import parse_file
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
from tests.support.ended_jobs import BOX

OWN = "nccl_inspector_agent.prom"
FILE = "nccl_inspector_metrics_unknown_0_1.prom"
POISON = b"poison"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    run_dir = make_run_dir(tmp_path / "run")
    (tmp_path / "reports").mkdir()
    return parse_config(
        f"run_dir = {run_dir}\nreport_dir = {tmp_path}/reports\nreport_user = root\n", "test"
    )


def agent_dies(config: Config) -> bool:
    """Run one pass in a process of its own, as the unit does; whether it ended badly."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run_agent(config, once=True)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def publish_two(config: Config) -> list[Path]:
    """Two jobs, the first of which has data that we do not understand."""
    boxes = []
    for job in (41, 42):
        raw = make_job(config.run_dir / "jobs" / str(job), job)
        boxes.append(write_box(raw, "0_1", BoxOf(state=1)))
        text = POISON if job == 41 else metrics_text(line("nccl_gpu_info"))
        write_user_file(raw / FILE, text)
    return boxes


@pytest.mark.parametrize("how", ["a mistake of ours", "a signal"])
def test_a_job_whose_data_end_the_agent_is_left_out_the_third_time(
    config: Config, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def fragile(data: bytes, *more: object) -> object:
        if data == POISON:
            if how == "a signal":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError
        return parse_file(data, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(jobfiles, "parse_file", fragile)
    first, second = publish_two(config)
    with lock_held(first), lock_held(second):
        assert agent_dies(config)
        assert agent_dies(config)
        assert not agent_dies(config)
    assert names(config.run_dir / "prom") == ["42.prom", OWN]
    own = (config.run_dir / "prom" / OWN).read_text()
    assert 'agent_rejected_files_total{cluster="",' in own
    assert 'reason="crashed"} 1\n' in own


def test_two_jobs_that_end_the_agent_are_both_left_out(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fragile(data: bytes, *more: object) -> object:
        if data == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        return parse_file(data, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(jobfiles, "parse_file", fragile)
    boxes = publish_two(config)
    raw = make_job(config.run_dir / "jobs" / "40", 40)
    boxes.append(write_box(raw, "0_1", BoxOf(state=1)))
    write_user_file(raw / FILE, POISON)
    with ExitStack() as held:
        for box in boxes:
            held.enter_context(lock_held(box))
        assert [agent_dies(config) for _ in range(6)] == [True] * 4 + [False] * 2
    assert names(config.run_dir / "prom") == ["42.prom", OWN]


def test_one_death_proves_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = config.run_dir.parent / "died"

    def killed_once(data: bytes, *more: object) -> object:
        if data != POISON and not deaths.exists():
            deaths.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return parse_file(data, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(jobfiles, "parse_file", killed_once)
    first, second = publish_two(config)
    with lock_held(first), lock_held(second):
        assert agent_dies(config)
        for _ in range(3):
            assert not agent_dies(config)
            assert names(config.run_dir / "prom") == ["42.prom", OWN]


def test_an_ended_job_whose_box_ends_the_agent_stops_no_other(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fragile(fd: int, size: int, stem: str, locked: bool) -> object:
        if stem == "0_13":
            raise ZeroDivisionError
        return read_box(fd, size, stem, locked)

    monkeypatch.setattr(endedjob, "read_box", fragile)
    for job, stem in ((41, "0_13"), (42, "0_1")):
        write_box(make_job(config.run_dir / "ended" / f"{job}.1", job), stem, BOX)
    assert agent_dies(config)
    assert agent_dies(config)
    assert not agent_dies(config)
    assert names(config.run_dir / "ended") == ["41.1"]


def test_a_broken_record_is_none(config: Config) -> None:
    (config.run_dir / "control" / "at_work").write_bytes(b"\xff" * 200)
    assert not agent_dies(config)
