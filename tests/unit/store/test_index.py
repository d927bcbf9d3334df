# SPDX-License-Identifier: Apache-2.0
"""The index of reports: what goes in comes out, to those who may read it, and it can be remade."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.nodes import nodes as nodes_command
from nccl_inspector.controller.report_child import rebuild
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card, Environment
from nccl_inspector.render.json import to_json
from nccl_inspector.settings.config import parse_config
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import (
    INDEX,
    BrokenIndexError,
    export_user,
    put,
    reading,
    user_index,
    writing,
)
from nccl_inspector.store.queries import JobFilter, Owner, find_jobs, last_jobs, own_past
from nccl_inspector.store.schema import VERSION
from tests.support.command_line import COMMAND
from tests.support.stored_cards import UID, card, communicator, operations

OTHER_UID, STRANGER_UID, ADMINS_GID = 4712, 4713, 9999


@pytest.fixture
def store(open_path: Path) -> Path:
    """A store that any user may pass through, as the service's account leaves it."""
    folder = open_path / "store"
    folder.mkdir()
    folder.chmod(0o711)
    return folder


def keep(store: Path, *cards: Card, gid: int | None = None) -> None:
    with writing(store / INDEX, gid) as index:
        for one in cards:
            put(index, rows_of(one))


def ids(store: Path, wish: JobFilter) -> list[int]:
    with reading(store) as (index, _):
        return [job.job_id for job in find_jobs(index, wish)]


def seen_by(uid: int, store: Path) -> str:
    """What `history` says to a user, in a process of his own."""
    conf = store.parent / "x.conf"
    conf.write_text(f"store_dir = {store}\n")
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    done = subprocess.run(
        [*argv, *COMMAND, "history", "--conf", conf, "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_card_is_found_by_user_partition_verdict_and_time(store: Path) -> None:
    keep(
        store, card(1, end_s=100.0), card(2, end_s=300.0, partition="cpu"),
        card(3, end_s=200.0, user="bob", named="n1"),
    )  # fmt: skip
    assert ids(store, JobFilter()) == [2, 3, 1]
    assert ids(store, JobFilter(user="bob")) == [3]
    assert ids(store, JobFilter(partition="cpu")) == [2]
    assert ids(store, JobFilter(verdict="degraded")) == [3]
    assert ids(store, JobFilter(verdict="straggler")) == [3]
    assert ids(store, JobFilter(since_s=200.0)) == [2, 3]
    assert ids(store, JobFilter(limit=1)) == [2]


def test_an_attempt_that_is_stored_again_replaces_its_rows(store: Path) -> None:
    keep(store, card(1, named="n1"), card(1, restart=1), card(1, gbs=50.0))
    with reading(store) as (index, _):
        assert len(find_jobs(index, JobFilter())) == 2
        assert index.execute("SELECT count(*) FROM kinds").fetchone() == (2,)
        assert index.execute("SELECT count(*) FROM entities").fetchone() == (0,)
        assert index.execute("SELECT count(*) FROM job_nodes").fetchone() == (4,)


def test_many_jobs_that_are_less_alike_hide_none_that_is_just_like_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.store.queries._PAST_MAX", 3)
    other = Environment(nccl=("2.18.1",), gpu_models=("H100",))
    keep(store, card(1), card(2), *(replace(card(10 + at), environment=other) for at in range(9)))
    (kind,) = rows_of(card(7)).kinds
    with reading(store) as (index, _):
        found = own_past(index, [kind.key], Owner(UID, "amy"), 7)[kind.key]
    assert [one.job_id for one in found] == [18, 17, 16, 2, 1]


def test_of_many_jobs_each_user_has_a_share_of_those_that_are_looked_at(store: Path) -> None:
    keep(store, card(1, end_s=10.0, user="bob", uid=OTHER_UID))
    keep(store, *(card(10 + at, end_s=1000.0 + at) for at in range(10)))
    with reading(store) as (index, _):
        assert [job.job_id for job in last_jobs(index, 4)] == [19, 18, 17, 1]


def test_a_warnings_node_is_named_in_its_job_and_no_other(store: Path) -> None:
    keep(store, card(1, named="n2 GPU3"), card(2, named="n22"))
    with reading(store) as (index, _):
        seen = {job.job_id: job for job in last_jobs(index, 10)}
    assert seen[1].named == {"n2"}
    assert seen[2].named == frozenset()
    assert set(seen[1].local) == {"n1", "n2"}


def test_the_node_of_a_slow_communicator_is_told_apart_within_its_job() -> None:
    comms = [communicator(f"0x{at}", [f"n{at}"], "tp") for at in range(1, 5)]
    slow = replace(
        card(nodes="n[1-4]", communicators=comms),
        operations=tuple(operations(one.id, 60.0 if one.id == "0x3" else 100.0) for one in comms),
    )
    local = {row.node: row.local for row in rows_of(slow).nodes}
    assert local.pop("n3") == pytest.approx(-0.51, abs=0.01)
    assert local == {"n1": 0.0, "n2": 0.0, "n4": 0.0}


def test_the_past_of_a_kind_is_of_successful_jobs_of_that_user(store: Path) -> None:
    others = [card(n, gbs=90.0 + n) for n in range(1, 8)]
    failed = card(20, state="FAILED")
    older = replace(card(21), environment=Environment(nccl=("2.18.1",), gpu_models=("H100",)))
    keep(store, *others, failed, older, card(22, uid=OTHER_UID, user="bob"))
    (kind,) = rows_of(card(7)).kinds
    with reading(store) as (index, _):
        found = own_past(index, [kind.key], Owner(UID, "amy"), 7)[kind.key]
    assert [one.job_id for one in found] == [21, 6, 5, 4, 3, 2, 1]
    assert (found[0].key.nccl, found[1].bus_gbs) == ("2.18", 96.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="several users are needed")
def test_a_user_sees_his_own_jobs_and_nobody_elses(store: Path) -> None:
    keep(store, card(1), card(2, uid=OTHER_UID, user="bob"), gid=ADMINS_GID)
    for uid in (UID, OTHER_UID):
        export_user(store / INDEX, uid, ADMINS_GID)
    his = seen_by(UID, store)
    assert '"all_jobs": false' in his
    assert '"user": "amy"' in his
    assert "bob" not in his
    assert '"user": "bob"' in seen_by(OTHER_UID, store)
    assert "none of your jobs is in the index yet" in seen_by(STRANGER_UID, store)


@pytest.mark.skipif(os.geteuid() != 0, reason="several users are needed")
def test_the_files_can_be_opened_by_their_user_and_the_group_alone(store: Path) -> None:
    keep(store, card(1), gid=ADMINS_GID)
    export_user(store / INDEX, UID, ADMINS_GID)

    def can_read(uid: int, gid: int, path: Path) -> bool:
        argv = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "cat", str(path)]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    own = user_index(store, UID)
    assert can_read(STRANGER_UID, ADMINS_GID, store / INDEX)
    assert can_read(STRANGER_UID, ADMINS_GID, own)
    assert can_read(UID, UID, own)
    assert not can_read(UID, UID, store / INDEX)
    assert not can_read(STRANGER_UID, STRANGER_UID, own)


def test_an_index_that_is_none_is_said_and_made_anew_of_the_stored_reports(store: Path) -> None:
    for number in (1, 2):
        (store / str(number)).mkdir()
        (store / str(number) / "0.json").write_text(to_json(card(number), datetime.now(UTC)))
    (store / "2" / "1.json").write_bytes(b"{")
    (store / INDEX).write_bytes(b"this is no index" * 100)
    with pytest.raises(BrokenIndexError, match="controller --rebuild"):
        ids(store, JobFilter())
    with pytest.raises(BrokenIndexError):
        keep(store, card(3))
    config = replace(parse_config("", "none"), store_dir=store)
    assert rebuild(config) == (2, 1)
    assert sorted(ids(store, JobFilter())) == [1, 2]


def test_a_writer_that_was_killed_leaves_the_index_as_it_was(store: Path) -> None:
    keep(store, card(1))
    pid = os.fork()
    if not pid:
        with writing(store / INDEX, None) as index:
            index.execute("PRAGMA cache_size=1")  # so that it writes before it commits
            for number in range(2, 300):
                put(index, rows_of(card(number)))
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert (store / f"{INDEX}-journal").exists()
    keep(store, card(500))
    assert sorted(ids(store, JobFilter(limit=1000))) == [1, 500]


def test_an_index_of_a_newer_release_is_not_touched(store: Path) -> None:
    keep(store, card(1))
    with closing(sqlite3.connect(store / INDEX)) as index:
        index.execute(f"PRAGMA user_version={VERSION + 1}")
    with pytest.raises(InspectorError, match="newer release"):
        keep(store, card(2))
    with pytest.raises(InspectorError, match="another release"):
        ids(store, JobFilter())


def test_without_an_index_there_is_one_line(store: Path) -> None:
    with pytest.raises(InspectorError, match="no index"):
        ids(store, JobFilter())


def test_nodes_counts_users_and_only_if_asked_each_job(store: Path) -> None:
    conf = store.parent / "x.conf"
    conf.write_text(f"store_dir = {store}\n")
    pairs = [(1, 2), (2, 3), (3, 4), (4, 1)]
    # Of one user only; wherever n4 takes part it is slow.
    for number in range(40):
        nodes = [f"n{at}" for at in pairs[number % 4]]
        comms = [communicator(nodes=nodes)]
        gbs = (60.0 if "n4" in nodes else 100.0) + number % 3
        keep(store, card(number + 1, gbs=gbs, nodes=",".join(nodes), communicators=comms))

    def suspects(*words: str) -> list[str]:
        done = CliRunner().invoke(nodes_command, ["--conf", str(conf), "--json", *words])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)["nodes"]
        assert {one["users"] for one in found} == {1}
        return [one["node"] for one in found if one["z"] is not None]

    assert suspects() == []
    assert set(suspects("--each-job")) == {"n1", "n2", "n3", "n4"}


def test_half_of_a_character_in_a_text_does_not_stop_the_index(store: Path) -> None:
    keep(store, card(1, user="a\ud800my"))
    with reading(store) as (index, _):
        (job,) = find_jobs(index, JobFilter("", "", "", None, 10))
    assert job.user == "a?my"
