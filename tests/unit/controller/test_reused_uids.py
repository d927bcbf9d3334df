# SPDX-License-Identifier: Apache-2.0
"""A number of a user that is given to somebody else: the reports are not."""

import os
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller.outcome import DONE, Outcome
from nccl_inspector.controller.reused_uids import revoke
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import export_user, put, reading, writing
from nccl_inspector.store.place import IndexPlace, index_of, user_index
from nccl_inspector.store.queries import JobFilter, find_jobs
from tests.support.postgres import Postgres
from tests.support.queued_jobs import ended_job, enqueue, run_pass, stored, summarize
from tests.support.stored_cards import UID, card, ids, keep
from tests.support.summaries import HEAD

needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="several users are needed")


def given_to(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Let every number have this name from now on; None: no name."""
    for module in ("owner", "sqlite_file"):
        monkeypatch.setattr(f"nccl_inspector.store.{module}.current_name", lambda _uid: name)


def can_read(uid: int, path: Path) -> bool:
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "cat", str(path)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def names_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as index:
        return {name for (name,) in index.execute("SELECT user FROM jobs")}


@pytest.fixture
def of_amy(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A stored report of the user whom the hooks named."""
    for folder in (config.store_dir, config.report_dir):
        folder.chmod(0o711)
    given_to(monkeypatch, None)
    ended_job(config, tmp_path, 42)
    assert run_pass(config, usual_makers(config)) == 0
    return config


@needs_users
def test_a_report_is_closed_when_its_users_number_has_another_name(
    of_amy: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, own = of_amy.store_dir / "42" / "0.json", user_index(of_amy.store_dir, HEAD.uid)
    assert can_read(HEAD.uid, report)
    assert can_read(HEAD.uid, own)
    given_to(monkeypatch, HEAD.user)
    assert revoke(of_amy) == Outcome(DONE)
    assert can_read(HEAD.uid, report), "it is the same user"
    given_to(monkeypatch, "newcomer")
    assert revoke(of_amy) == Outcome(DONE, "1 job of former owners of a uid closed")
    assert not can_read(HEAD.uid, report)
    assert names_in(own) == set()
    assert stored(of_amy) == [42], "root still sees it"
    assert revoke(of_amy) == Outcome(DONE)


@needs_users
def test_a_report_that_comes_after_its_users_number_was_given_away_is_not_the_new_users(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.store_dir.chmod(0o711)
    given_to(monkeypatch, "newcomer")
    ended_job(config, tmp_path, 42)
    assert run_pass(config, usual_makers(config)) == 0
    assert not can_read(HEAD.uid, config.store_dir / "42" / "0.json")
    assert names_in(user_index(config.store_dir, HEAD.uid)) == set()


def test_a_number_of_which_nobody_knows_the_name_stays_as_it_is(of_amy: Config) -> None:
    assert revoke(of_amy) == Outcome(DONE)
    assert names_in(user_index(of_amy.store_dir, HEAD.uid)) == {HEAD.user}


def test_a_users_own_index_has_no_job_of_whoever_had_the_number_before(config: Config) -> None:
    place = index_of(config)
    with writing(place, None) as index:
        for one in (card(1), card(2, user="newcomer")):
            put(index, rows_of(one))
    export_user(place, UID, None)
    assert names_in(user_index(config.store_dir, UID)) == {"newcomer"}


def test_the_index_of_whoever_had_the_number_before_is_not_read(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = index_of(config)
    with writing(place, None) as index:
        put(index, rows_of(replace(card(1))))
    export_user(place, UID, None)
    place.file.unlink()
    monkeypatch.setattr(os, "getuid", lambda: UID)
    with reading(place) as (index, all_jobs):
        assert (len(find_jobs(index, JobFilter())), all_jobs) == (1, False)
    given_to(monkeypatch, "newcomer")
    with pytest.raises(InspectorError, match="none of your jobs"), reading(place):
        pass


@needs_users
def test_summaries_of_all_components_of_a_former_users_job_are_closed(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.report_dir.chmod(0o711)
    for job_id in (42, 43):
        summarize(config, tmp_path / str(job_id), job_id)
        (place,) = (config.report_dir / str(job_id)).iterdir()
        head, _, rest = place.read_bytes().partition(b"\n")
        place.write_bytes(head.replace(b'"het_job_id": ""', b'"het_job_id": "42"') + b"\n" + rest)
        place.chmod(0o644)
        place.parent.chmod(0o755)
        enqueue(config, job_id, "het_job_id=42\n")
    assert run_pass(config, usual_makers(config)) == 0
    summary = config.report_dir / "43" / "n1.0.nodesummary"
    assert can_read(HEAD.uid, summary)
    given_to(monkeypatch, "newcomer")
    assert revoke(config).word == DONE
    assert not can_read(HEAD.uid, summary)


def test_in_a_database_the_rows_of_whoever_had_the_name_before_are_hidden(
    config: Config, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.new_database()
    place = IndexPlace(config.store_dir, postgres.url(database), "c1")
    keep(place, card(1), card(2, cluster="other"), card(3, uid=UID + 1))
    postgres.run_sql(database, "DROP ROLE IF EXISTS amy", "CREATE ROLE amy LOGIN")
    monkeypatch.setattr(
        "nccl_inspector.controller.reused_uids.has_name", lambda uid, _name: uid == UID + 1
    )
    done = revoke(replace(config, store_url=place.url, cluster="c1"))
    assert done == Outcome(DONE, "1 job of former owners of a uid closed")
    hers = replace(place, url=postgres.url(database, "amy"))
    assert sorted(ids(hers, JobFilter())) == [2, 3], "the other cluster's service hides its own"
