# SPDX-License-Identifier: Apache-2.0
"""A single collection from a timer, on nodes without an agent, leaves nothing that was due."""

import os
import time
from pathlib import Path

import pytest

from nccl_inspector.agent import collect
from nccl_inspector.agent import service as agent
from nccl_inspector.agent.collect import Backlog
from nccl_inspector.agent.service import run_collect
from nccl_inspector.settings.config import Config
from nccl_inspector.system import write_as_user as handover
from tests.support.boxes import lock_held, names, write_box
from tests.support.command_line import run
from tests.support.ended_jobs import BOX, end_job, ended
from tests.unit.agent.collect.conftest import config as config
from tests.unit.agent.collect.conftest import run_dir as run_dir


def end_many(run_dir: Path, count: int) -> None:
    for job in range(41, 41 + count):
        write_box(end_job(run_dir, job), "0_77", BOX)


def test_a_single_collection_goes_on_until_nothing_is_due(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PASS_S", 0)
    end_many(run_dir, 20)
    assert run_collect(config) == Backlog(0, 0, 0)
    assert ended(run_dir) == []
    assert len(names(config.report_dir)) == 20


def test_a_single_collection_that_has_no_more_time_says_what_it_leaves(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(collect, "PASS_S", 0)
    monkeypatch.setattr(agent, "COLLECT_S", 0.0)
    end_many(run_dir, 3)
    assert run_collect(config) == Backlog(0, 3, 0)
    conf = tmp_path / "conf"
    conf.write_text(f"run_dir = {run_dir}\nreport_dir = {tmp_path}/none\n")
    done = run("collect", "--conf", str(conf))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "nccl-inspector: 3 ended jobs are left: 3 could not be handed over, "
        "0 could not be tried in time"
    )


def test_a_single_collection_stops_when_storage_hangs(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "write_report_file", lambda *_: os.read(os.pipe()[0], 1))
    monkeypatch.setattr(agent, "CHILD_S", 0.2)
    monkeypatch.setattr(handover, "CHILD_S", 2)
    end_many(run_dir, 3)
    begun = time.monotonic()
    assert run_collect(config) == Backlog(0, 3, 0)
    assert time.monotonic() - begun < 5


def test_what_still_waits_for_its_processes_is_not_overdue(run_dir: Path, config: Config) -> None:
    box = write_box(end_job(run_dir, age_s=5), "0_77", BOX)
    (end_job(run_dir, 43).parent / "manifest").write_text("format=1\n")
    with lock_held(box):
        left = run_collect(config)
    assert (left, left.overdue) == (Backlog(0, 0, 2), 0)
