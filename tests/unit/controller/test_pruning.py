# SPDX-License-Identifier: Apache-2.0
"""What the controller service removes of old jobs, and what it leaves."""

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller import pruning
from nccl_inspector.controller.pruning import CLOCK, prune
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import reading
from nccl_inspector.store.place import IndexPlace, index_of, user_index
from nccl_inspector.store.queries import JobFilter, find_jobs
from nccl_inspector.system.remove_tree import remove_tree
from tests.support.queued_jobs import enqueue, run_pass, stored, summarize
from tests.support.summaries import HEAD

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

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
    steady(config)
    return config


def steady(config: Config, hours: float = 7) -> None:
    """Let looks have followed each other for so long, the last one an hour ago."""
    now_s = time.time()
    (config.controller_dir / CLOCK).write_text(f"{now_s - hours * 3600} {now_s - 3600}\n")


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
    with reading(IndexPlace(alone)) as (index, _):
        assert [job.job_id for job in find_jobs(index, JobFilter())] == [YOUNG]


def test_nothing_goes_where_all_is_kept(kept: Config) -> None:
    age(kept, OLD, 9000)
    assert prune(replace(kept, summary_days=0, report_days=0), time.time()).detail == ""
    assert jobs(kept.report_dir) == jobs(kept.store_dir) == [OLD, YOUNG]


def test_a_clock_that_leaps_removes_nothing(kept: Config) -> None:
    ahead_s = time.time() + 3650 * DAY_S
    assert prune(kept, ahead_s).detail == ""
    # Somebody wrote by that clock, too.
    age(kept, YOUNG, 0, ahead_s)
    for hour in range(6):
        assert prune(kept, ahead_s + 3600 * hour).detail == ""
    assert prune(kept, time.time()).detail == "", "nor does its way back"
    assert jobs(kept.report_dir) == jobs(kept.store_dir) == [OLD, YOUNG]


def test_by_a_clock_years_ahead_that_stays_the_newest_job_tells_the_age(kept: Config) -> None:
    ahead_s = time.time() + 3650 * DAY_S
    (kept.controller_dir / CLOCK).write_text(f"{ahead_s - 30000} {ahead_s - 3600}\n")
    assert prune(kept, ahead_s).detail == ""
    assert jobs(kept.report_dir) == [OLD, YOUNG]


@pytest.mark.parametrize("words", ["", "x y", "1", "nan nan"])
def test_after_a_first_look_nothing_goes_for_some_hours(kept: Config, words: str) -> None:
    (kept.controller_dir / CLOCK).write_text(words)
    age(kept, OLD, 31)
    now_s = time.time()
    for hour in (0, 1, 5):
        assert prune(kept, now_s + 3600 * hour).detail == ""
    assert "1 job" in prune(kept, now_s + 3600 * 7).detail


def test_a_directory_that_cannot_be_removed_holds_up_no_other(
    kept: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in (OLD, YOUNG):
        age(kept, job_id, 400 - job_id)
    newest = kept.report_dir / "99", kept.store_dir / "99"
    for path in newest:
        path.mkdir()

    def fail(name: str, dir_fd: int) -> None:
        if name == str(OLD):
            raise PermissionError(13, "Permission denied", name)
        remove_tree(name, dir_fd)

    monkeypatch.setattr(pruning, "remove_tree", fail)
    outcome = prune(kept, time.time())
    assert outcome.word == "later"
    assert f"cannot be removed: {kept.report_dir / str(OLD)}: Permission denied" in outcome.detail
    assert jobs(kept.report_dir) == [OLD, 99]


def test_without_the_summaries_directory_reports_go_all_the_same(kept: Config) -> None:
    age(kept, OLD, 400)
    kept.report_dir.rename(kept.report_dir.with_name("gone"))
    outcome = prune(kept, time.time())
    assert jobs(kept.store_dir) == stored(kept) == [YOUNG]
    assert f"cannot be removed: {kept.report_dir}: No such file" in outcome.detail


def test_a_users_index_that_cannot_be_made_anew_is_none(
    kept: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    age(kept, OLD, 400)
    monkeypatch.setattr(pruning, "export_user", full)
    prune(kept, time.time())
    assert stored(kept) == [YOUNG]
    assert not user_index(kept.store_dir, HEAD.uid).exists(), "it would name what is gone"


def test_what_came_to_a_job_meanwhile_keeps_it(
    kept: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(kept, OLD, 400)

    def late(*_: object) -> None:
        (kept.store_dir / str(OLD) / "1.json").touch()

    monkeypatch.setattr(pruning, "_forget", late)
    prune(kept, time.time())
    assert jobs(kept.store_dir) == [OLD, YOUNG]


def test_a_directory_behind_a_link_of_the_administrators_is_pruned(kept: Config) -> None:
    age(kept, OLD, 400)
    real = kept.report_dir.rename(kept.report_dir.with_name("real"))
    kept.report_dir.symlink_to(real)
    prune(kept, time.time())
    assert jobs(real) == [YOUNG]


def test_components_and_jobs_set_aside_stay(kept: Config) -> None:
    for job_id in (OLD, YOUNG):
        age(kept, job_id, 400)
    (kept.report_dir / "99").mkdir()
    (kept.store_dir / "99").mkdir()
    enqueue(kept, OLD, "het_job_id=40\nnodelist=n[1-2]\n")
    (kept.controller_dir / "failed" / f"{YOUNG}.1700000000000000000.try5").touch()
    run_pass(replace(kept, controller_wait_s=9e9), usual_makers(kept))
    assert jobs(kept.report_dir) == [OLD, YOUNG, 99]


@pytest.mark.long
def test_a_great_backlog_is_gone_in_time(kept: Config) -> None:
    age(kept, OLD, 1)
    with closing(sqlite3.connect(index_of(kept).file)) as index, index:
        row = index.execute("SELECT * FROM jobs LIMIT 1").fetchone()
        marks = ",".join("?" * len(row))
        rows = [(None, row[1], number, *row[3:]) for number in range(100_000, 160_000)]
        index.executemany(f"INSERT INTO jobs VALUES ({marks})", rows)  # noqa: S608 - of our own
    for number in range(100_000, 101_000):
        path = kept.store_dir / str(number)
        path.mkdir()
        os.utime(path, (0, 0))
    assert "reports of 1,000 jobs" in prune(kept, time.time()).detail


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
    for _ in range(2):
        run_pass(kept, usual_makers(kept))
    assert caplog.text.count("cannot be removed") == 2, "once for each service"
