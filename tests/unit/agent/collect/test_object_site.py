# SPDX-License-Identifier: Apache-2.0
"""Summaries of ended jobs go into an object store, if the site has one."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent import collect
from nccl_inspector.agent.collect import Backlog
from nccl_inspector.agent.service import run_collect
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.job_objects import SUMMARIES
from tests.support.boxes import names, write_box
from tests.support.ended_jobs import BOX, end_job, ended
from tests.support.object_store import ObjectSite
from tests.unit.agent.collect.conftest import config as config
from tests.unit.agent.collect.conftest import run_dir as run_dir


def test_a_summary_goes_into_the_store_under_the_name_of_its_user(
    run_dir: Path, config: Config, object_site: ObjectSite
) -> None:
    write_box(end_job(run_dir, user="amy"), "0_77", BOX)
    shutil.chown(object_site.keys, config.report_user)
    assert run_collect(object_site.settings(config)) == Backlog(0, 0, 0)
    assert object_site.names(SUMMARIES) == ["summaries/42/amy/n1.0.nodesummary"]
    assert (ended(run_dir), names(config.report_dir)) == ([], [])


def test_a_job_stays_until_the_store_takes_its_summary(
    run_dir: Path, config: Config, object_site: ObjectSite
) -> None:
    write_box(end_job(run_dir), "0_77", BOX)
    shutil.chown(object_site.keys, config.report_user)
    site = object_site.settings(config)
    for url in ("s3://bucket/site?endpoint=http://127.0.0.1:9", "s3://bucket?secret=1"):
        assert run_collect(replace(site, object_url=url)) == Backlog(1, 0, 0)
    assert len(ended(run_dir)) == 1
    assert run_collect(site) == Backlog(0, 0, 0)
    assert len(object_site.names(SUMMARIES)) == 1


def test_only_the_account_of_the_reports_needs_the_keys(
    run_dir: Path, config: Config, object_site: ObjectSite
) -> None:
    write_box(end_job(run_dir), "0_77", BOX)
    assert run_collect(object_site.settings(config)) == Backlog(1, 0, 0), "root may read them"


def test_an_error_that_names_no_file_says_where_it_was(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(collect, "write_report_file", fill)
    write_box(end_job(run_dir), "0_77", BOX)
    assert run_collect(config) == Backlog(1, 0, 0)
    assert f"{config.report_dir}: No space left on device" in caplog.text
