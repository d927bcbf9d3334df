# SPDX-License-Identifier: Apache-2.0
"""A site whose hosts share an object store and no file system: from the agent to the reader."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from nccl_inspector.controller import object_pruning
from nccl_inspector.controller.due_reports import ToDo
from nccl_inspector.controller.job_survey import look_at
from nccl_inspector.controller.missed_ends import without_report
from nccl_inspector.controller.object_pruning import prune_objects
from nccl_inspector.controller.pruning import CLOCK, prune
from nccl_inspector.controller.queue import Entry
from nccl_inspector.controller.remake_index import rebuild
from nccl_inspector.controller.suspects import list_suspects
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.report.stored import stored_card
from nccl_inspector.settings.config import Config
from nccl_inspector.store.suspects import fetch_suspects
from nccl_inspector.summary.codec import encode
from nccl_inspector.summary.job_objects import (
    FETCHED,
    REPORTS,
    SUMMARIES,
    fetch_attempts,
    fetch_job,
    fetch_jobs,
    key_of,
    user_word,
)
from nccl_inspector.system.object_store import ObjectStore, StoredObject
from tests.support.command_line import environment, run
from tests.support.object_store import ObjectSite
from tests.support.queued_jobs import enqueue, left, run_pass, stored, summarize
from tests.support.summaries import HEAD

DAY_S = 86400.0
USER = HEAD.user


@pytest.fixture
def site(config: Config, object_site: ObjectSite) -> Config:
    return object_site.settings(config)


def look(config: Config, object_site: ObjectSite, *job_ids: int) -> dict[int, ToDo | str]:
    groups = {one: [Entry(f"{one}.1", 0, one, 0, 0.0, nodelist="n1")] for one in job_ids}
    return object_site.use(lambda _: look_at(groups, config, time.time()))


def send(
    config: Config, object_site: ObjectSite, folder: Path, job_id: int, het_job_id: str = ""
) -> None:
    """Put a job's summary where an agent puts it, and nothing into report_dir."""
    summarize(config, folder / str(job_id), job_id, het_job_id)
    (path,) = (config.report_dir / str(job_id)).iterdir()
    key = key_of(SUMMARIES, job_id, USER, path.name)
    object_site.put(key, path.read_bytes())
    shutil.rmtree(path.parent)


def ended(config: Config, object_site: ObjectSite, folder: Path, *job_ids: int) -> None:
    for job_id in job_ids:
        enqueue(config, job_id)
        send(config, object_site, folder, job_id)


def test_the_service_makes_reports_of_summaries_in_the_store_and_puts_them_there(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41, 42)
    assert run_pass(site, usual_makers(site)) == 0
    assert stored(site) == [41, 42]
    assert object_site.names(REPORTS) == [
        f"reports/{job_id}/{USER}/0.{kind}" for job_id in (41, 42) for kind in ("html", "json")
    ]
    object_site.use(lambda objects: fetch_job(objects, REPORTS, tmp_path, 41))
    ours = (site.store_dir / "41" / "0.json").read_bytes()
    assert (tmp_path / "41" / "0.json").read_bytes() == ours


def test_a_summary_is_fetched_once_and_again_if_it_changed(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41)
    path = site.report_dir / "41" / "n1.0.nodesummary"

    def fetched() -> int:
        """The file's number: each fetch makes a new one."""
        look(site, object_site, 41)
        return path.stat().st_ino

    first = fetched()
    whole = path.read_bytes()
    assert fetched() == first
    path.write_bytes(b"")  # a crash of the host
    fetched()
    assert path.read_bytes() == whole
    key = key_of(SUMMARIES, 41, USER, path.name)
    object_site.put(key, whole + b"\n")
    fetched()
    assert path.read_bytes() == whole + b"\n"


def test_what_is_wrong_with_one_job_holds_no_other_and_loses_nothing(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41, 42)
    object_site.put(key_of(SUMMARIES, 41, USER, "n2.0.nodesummary"), b"of a second node")
    (site.report_dir / "41").mkdir()
    (site.report_dir / "41" / ".n2.0.nodesummary.tmp").mkdir()  # nothing can be written there
    found = look(site, object_site, 41, 42)
    assert "n2.0.nodesummary" in str(found[41])
    assert isinstance(found[42], ToDo)
    assert found[42].due is not None
    assert (site.report_dir / "41" / FETCHED).read_text().startswith("n1.0.nodesummary\t")


def test_a_missing_report_dir_is_said_and_does_not_look_like_a_job_without_nccl(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41)
    site.report_dir.rmdir()
    assert look(site, object_site, 41) == {41: f"{site.report_dir}/41: No such file or directory"}
    assert run_pass(site, usual_makers(site)) == 1, "it waits"


def test_many_jobs_of_many_nodes_need_few_threads(tmp_path: Path) -> None:
    counts = []

    class SlowStore:
        def list(self, folder: str) -> Iterator[StoredObject]:
            time.sleep(0.002)
            for node in range(16):
                yield StoredObject(f"{folder}/amy/n{node}.0.nodesummary", 1, "1", 1.0)

        def fetch(self, _key: str, file: BinaryIO, _most_bytes: int) -> None:
            time.sleep(0.002)
            counts.append(len({*threading.enumerate()} - before))
            file.write(b"1")

    before = {*threading.enumerate()}
    assert fetch_jobs(cast(ObjectStore, SlowStore()), SUMMARIES, tmp_path, range(1, 65)) == {}
    assert len(counts) == 64 * 16
    assert max(counts) <= 16


def test_a_component_that_nobody_queued_is_in_the_report(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    enqueue(site, 41, "het_job_id=41\n")
    for job_id in (41, 42):
        send(site, object_site, tmp_path, job_id, het_job_id="41")
    assert run_pass(site, usual_makers(site)) == 0
    card = stored_card(41, None, site.store_dir)
    assert card is not None
    assert card.data_quality.ranks_seen == 4


def test_a_store_that_does_not_answer_costs_no_report(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41)
    gone = replace(site, object_url="s3://bucket/site?endpoint=http://127.0.0.1:9")
    assert run_pass(gone, usual_makers(gone)) == 1
    assert [name.partition(".")[0] for name in left(site)] == ["41"]
    assert ".try" not in left(site)[0]
    assert run_pass(site, usual_makers(site)) == 0
    assert stored(site) == [41]


def test_ends_that_were_missed_are_found_by_their_summaries_in_the_store(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41)
    ends = [Entry(f"{job_id}.1", 0, job_id, 0, 0.0) for job_id in (41, 42)]
    found = object_site.use(lambda _: without_report(ends, site))
    assert [one.job_id for one in found] == [41]
    assert list(site.report_dir.iterdir()) == [], "it only lists them"


def test_the_index_is_made_anew_on_a_host_that_has_nothing(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41, 42)
    run_pass(site, usual_makers(site))
    empty = replace(site, store_dir=tmp_path / "store")
    empty.store_dir.mkdir()
    kept = empty.store_dir / "41" / "0.json"
    shutil.copytree(site.store_dir / "41", kept.parent)
    os.utime(kept, (1000, 1000))
    assert object_site.use(lambda _: rebuild(empty)) == (2, 0)
    assert stored(empty) == [41, 42]
    assert kept.stat().st_mtime == 1000, "what is there stays"
    fetched = empty.store_dir / "42"
    assert fetched.stat().st_mtime == int(fetched.stat().st_mtime), "as old as in the store"
    mode = (site.store_dir / "42" / "0.json").stat().st_mode
    assert (fetched / "0.json").stat().st_mode == mode


def test_all_components_of_a_heterogeneous_job_are_fetched(
    object_site: ObjectSite, tmp_path: Path
) -> None:
    for job_id, leader in ((41, "40"), (43, "40"), (44, "")):
        data = encode(replace(HEAD, job_id=job_id, node="n1", het_job_id=leader), [])
        name = f"n1.{HEAD.restart}.nodesummary"
        object_site.put(key_of(SUMMARIES, job_id, USER, name), data)
    for asked, expected in ((43, ["41", "43"]), (40, ["41", "43"]), (44, ["44"])):
        folder = tmp_path / str(asked)
        folder.mkdir()
        object_site.use(partial(fetch_attempts, into=folder, job_id=asked))
        assert sorted(path.name for path in folder.iterdir()) == expected


def test_of_two_users_of_one_job_id_the_newer_file_counts_and_each_may_ask_for_theirs(
    object_site: ObjectSite, tmp_path: Path
) -> None:
    object_site.put(key_of(REPORTS, 41, "bob", "0.json"), b"bob's, of last year")
    time.sleep(1.1)  # the store's times are whole seconds
    object_site.put(key_of(REPORTS, 41, "amy", "0.json"), b"amy's")
    for user, expected in (("", b"amy's"), ("bob", b"bob's, of last year"), ("amy", b"amy's")):
        folder = tmp_path / f"of{user}"
        folder.mkdir()
        object_site.use(partial(fetch_job, shelf=REPORTS, into=folder, job_id=41, user=user))
        assert (folder / "41" / "0.json").read_bytes() == expected


@pytest.mark.parametrize("key", ["reports/41/a/b/c", "reports/x/amy/0.json"])
def test_an_object_that_is_not_ours_is_left_alone(
    key: str, object_site: ObjectSite, tmp_path: Path
) -> None:
    object_site.put(key, b"something")
    folder = tmp_path / "fetched"
    folder.mkdir()
    object_site.use(partial(fetch_job, shelf=REPORTS, into=folder, job_id=41))
    assert list(folder.iterdir()) == []


def test_a_user_whose_name_cannot_be_in_a_key_is_named_by_uid() -> None:
    assert [user_word(name, 7) for name in ("amy", "a/b", "..", "", "amy@site")] == [
        "amy", "uid-7", "uid-7", "uid-7", "uid-7",
    ]  # fmt: skip


def test_what_is_too_old_goes_and_what_a_report_is_due_for_stays(
    site: Config, object_site: ObjectSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in (41, 42, 43):
        send(site, object_site, tmp_path, job_id)
    (site.controller_dir / "state").mkdir()
    later_s = time.time() + 40 * DAY_S

    def left_after(now_s: float, within_s: float = 60) -> list[str]:
        due_s = time.monotonic() + within_s
        words = (SUMMARIES, 30, now_s, {42}, site.controller_dir, due_s)
        object_site.use(lambda objects: prune_objects(objects, *words))
        return [key.split("/")[1] for key in object_site.names(SUMMARIES)]

    assert left_after(later_s) == ["41", "42", "43"], "our clock was set ahead, the store's was not"
    monkeypatch.setattr(object_pruning, "_store_time_s", lambda _objects: later_s)
    assert left_after(time.time()) == ["41", "42", "43"]
    assert left_after(later_s, 0) == ["42", "43"], "it has no time for more than one job"
    assert left_after(later_s, 0) == ["42", "43"], "it goes on behind it"
    assert left_after(later_s, 0) == ["42"]
    send(site, object_site, tmp_path, 40)
    assert left_after(later_s) == ["40", "42"], "it came to the end"
    assert left_after(later_s) == ["42"], "and begins again"


def test_the_service_says_what_it_removed_from_the_store(
    site: Config, object_site: ObjectSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(site, object_site, tmp_path, 41)
    run_pass(site, usual_makers(site))
    later_s = time.time() + 400 * DAY_S
    monkeypatch.setattr(object_pruning, "_store_time_s", lambda _objects: later_s)
    (site.controller_dir / CLOCK).write_text(f"{later_s - 7 * 3600} {later_s - 3600}\n")
    assert object_site.use(lambda _: prune(site, later_s)).detail == (
        "removed: node summaries of 1 job, over 30 days old; "
        "removed: reports of 1 job, over 365 days old"
    )
    assert object_site.names(SUMMARIES) == object_site.names(REPORTS) == []


def test_the_list_of_suspects_is_in_the_store(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    assert object_site.use(fetch_suspects) is None
    ended(site, object_site, tmp_path, 41)
    run_pass(site, usual_makers(site))
    assert object_site.use(lambda _: list_suspects(site, time.time())).detail == ""
    listed = object_site.use(fetch_suspects)
    assert listed is not None
    assert listed.jobs == 1


def test_commands_read_what_the_store_shows_them(
    site: Config, object_site: ObjectSite, tmp_path: Path
) -> None:
    ended(site, object_site, tmp_path, 41)
    run_pass(site, usual_makers(site))
    conf = tmp_path / "conf"
    conf.write_text(
        object_site.lines.replace(str(object_site.keys), f"{tmp_path}/none")
        + f"report_dir = {tmp_path}/none\nstore_dir = {tmp_path}/none\n"
    )

    def said(*words: str, **login: str) -> tuple[int, str]:
        done = run(*words, "--conf", str(conf), env=environment() | login)
        return done.returncode, done.stdout + done.stderr

    reader = object_site.server.login("reader")
    status, text = said("report", "41", **reader)
    assert (status, text.partition("  job ")[2][:13]) == (3, "41, user amy,"), text
    assert f"noindex:{tmp_path}/none" in "".join(text.split())
    data = encode(replace(HEAD, job_id=41, node="n1", restart=1), [])
    object_site.put(key_of(SUMMARIES, 41, USER, "n1.1.nodesummary"), data)
    for words in (("41", "41.0"), ("41.0", "41.1")):
        status, text = said("compare", *words, **reader)
        assert status == 0, text
    status, text = said("report", "40", **reader)
    assert (status, text.count("\n")) == (3, 1)
    assert f"no report of job 40: nothing of it is in s3://{object_site.bucket}/site" in text
    status, text = said("report", "41", **reader | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert (status, text.count("\n")) == (3, 1)
    assert "SignatureDoesNotMatch" in text
    assert "wrong" not in text
    assert not (tmp_path / "none").exists(), "what is fetched does not lie there"
