# SPDX-License-Identifier: Apache-2.0
"""What the controller service removes of old jobs, and what it leaves."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.config import Config
from nccl_inspector.controller.pruning import prune
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.store.index import reading, user_index
from nccl_inspector.store.queries import Wish, find_jobs
from tests.test_collect import HEAD
from tests.test_controller import config, enqueue, run_pass, stored, summarize

__all__ = ["config"]
DAY_S = 86400
OLD, YOUNG = 41, 42


def age(config: Config, job_id: int, days: float, now_s: float | None = None) -> None:
    """Let a job have ended so long ago."""
    at_s = (time.time() if now_s is None else now_s) - days * DAY_S
    for directory in (config.report_dir, config.store_dir):
        os.utime(directory / str(job_id), (at_s, at_s))


def jobs(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


@pytest.fixture
def kept(config: Config, tmp_path: Path) -> Config:
    """Two jobs with reports; node summaries stay 30 days and reports 365."""
    for job_id in (OLD, YOUNG):
        enqueue(config, job_id)
        summarize(config, tmp_path / str(job_id), job_id)
    assert run_pass(config, usual_makers(config)) == 0
    return config


def test_summaries_go_first_and_reports_with_their_rows_later(kept: Config) -> None:
    age(kept, OLD, 31)
    outcome = prune(kept, time.time())
    assert outcome.detail == "removed: node summaries of 1 job, over 30 days old"
    assert (jobs(kept.report_dir), jobs(kept.store_dir)) == ([YOUNG], [OLD, YOUNG])
    assert stored(kept) == [OLD, YOUNG]
    age(replace(kept, report_dir=kept.store_dir), OLD, 366)
    assert prune(kept, time.time()).detail == "removed: reports of 1 job, over 365 days old"
    assert jobs(kept.store_dir) == stored(kept) == [YOUNG]


def test_a_users_own_index_forgets_the_job_too(kept: Config) -> None:
    age(kept, OLD, 400)
    prune(kept, time.time())
    own = user_index(kept.store_dir, HEAD.uid)
    alone = kept.store_dir.with_name("alone")
    alone.mkdir()
    (alone / "index.db").write_bytes(own.read_bytes())
    with reading(alone) as (index, _):
        assert [job.job_id for job in find_jobs(index, Wish())] == [YOUNG]


def test_nothing_goes_where_all_is_kept(kept: Config) -> None:
    age(kept, OLD, 9000)
    assert prune(replace(kept, summary_days=0, report_days=0), time.time()).detail == ""
    assert jobs(kept.report_dir) == jobs(kept.store_dir) == [OLD, YOUNG]


def test_a_clock_that_is_years_ahead_removes_nothing(kept: Config) -> None:
    assert prune(kept, time.time() + 3650 * DAY_S).detail == ""
    assert jobs(kept.report_dir) == jobs(kept.store_dir) == [OLD, YOUNG]


def test_a_job_of_the_future_makes_no_other_one_old(kept: Config) -> None:
    age(kept, OLD, -3650)
    assert prune(kept, time.time()).detail == ""
    assert jobs(kept.report_dir) == [OLD, YOUNG]


def test_a_job_that_still_waits_in_the_queue_stays(kept: Config) -> None:
    age(kept, OLD, 400)
    assert prune(kept, time.time(), kept=[OLD]).detail == ""
    assert jobs(kept.report_dir) == [OLD, YOUNG]


def test_what_is_no_jobs_directory_stays(kept: Config, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (kept.report_dir / "40").symlink_to(elsewhere)
    (kept.report_dir / "39").touch()
    (kept.report_dir / "README").mkdir()
    for name in ("40", "39", "README"):
        os.utime(kept.report_dir / name, (0, 0), follow_symlinks=False)
    assert prune(kept, time.time()).detail == ""
    assert (elsewhere / "precious").exists()
    assert {"40", "39", "README"} < {path.name for path in kept.report_dir.iterdir()}


def test_the_service_prunes_and_says_once_where_it_may_not(
    kept: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    age(kept, OLD, 31)
    run_pass(kept, usual_makers(kept))
    assert jobs(kept.report_dir) == [YOUNG]
    assert "node summaries of 1 job," in caplog.text
    kept.report_dir.rename(kept.report_dir.with_name("gone"))
    run_pass(kept, usual_makers(kept))
    assert "not removed" in caplog.text
