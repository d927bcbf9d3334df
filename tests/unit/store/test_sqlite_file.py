# SPDX-License-Identifier: Apache-2.0
"""The index as a file: who may read it, and what becomes of it when it is hurt."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nccl_inspector.controller.remake_index import rebuild
from nccl_inspector.errors import InspectorError
from nccl_inspector.render.json import to_json
from nccl_inspector.settings.config import parse_config
from nccl_inspector.store import sqlite_file, sqlite_schema
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.errors import BrokenIndexError
from nccl_inspector.store.index import export_user, put, writing
from nccl_inspector.store.place import INDEX, IndexPlace, user_index
from nccl_inspector.store.queries import JobFilter
from nccl_inspector.store.tables import VERSION
from tests.support.command_line import COMMAND
from tests.support.stored_cards import UID, card, ids, keep, store_in

OTHER_UID, STRANGER_UID, ADMINS_GID = 4712, 4713, 9999


SCHEMAS = Path(__file__).parent / "schemas"


def shape_of(place: IndexPlace) -> object:
    """The tables of an index with their columns and indexes, in their order."""
    with closing(sqlite3.connect(place.file)) as index:
        tables = [name for (name,) in index.execute(
            "SELECT name FROM sqlite_master WHERE type='table' ORDER BY 1")]  # fmt: skip
        columns = {
            one: [  # SQLite takes a key for NOT NULL, said or not
                (name, kind, bool(not_null or key), default, key)
                for _, name, kind, not_null, default, key in index.execute(
                    f"PRAGMA table_info({one})"
                )
            ]
            for one in tables
        }
        indexes = {
            one: sorted(
                str(index.execute(f"PRAGMA index_info({name})").fetchall())
                for _, name, *_ in index.execute(f"PRAGMA index_list({one})")
            )
            for one in tables
        }
    return columns, indexes


@pytest.fixture
def place(open_path: Path) -> IndexPlace:
    """A store that any user may pass through, as the service's account leaves it."""
    return store_in(open_path)


def test_two_who_make_the_index_at_the_same_moment_both_write_it(
    place: IndexPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = sqlite_schema.version_of
    others = [2]

    def look_and_be_slow(index: sqlite3.Connection) -> int:
        found = look(index)
        while others:
            keep(place, card(others.pop()))
        return found

    monkeypatch.setattr(sqlite_schema, "version_of", look_and_be_slow)
    keep(place, card(1))
    assert sorted(ids(place, JobFilter())) == [1, 2]


def seen_by(uid: int, place: IndexPlace) -> str:
    """What `history` says to a user, in a process of his own."""
    conf = place.store_dir.parent / "x.conf"
    conf.write_text(f"store_dir = {place.store_dir}\nstore_url = {place.url}\n")
    argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    done = subprocess.run(
        [*argv, *COMMAND, "history", "--conf", conf, "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="several users are needed")
def test_a_user_sees_his_own_jobs_and_nobody_elses(place: IndexPlace) -> None:
    keep(place, card(1), card(2, uid=OTHER_UID, user="bob"), gid=ADMINS_GID)
    for uid in (UID, OTHER_UID):
        export_user(place, uid, ADMINS_GID)
    his = seen_by(UID, place)
    assert '"all_jobs": false' in his
    assert '"user": "amy"' in his
    assert "bob" not in his
    assert '"user": "bob"' in seen_by(OTHER_UID, place)
    assert "none of your jobs is in the index yet" in seen_by(STRANGER_UID, place)


def test_two_hosts_that_make_a_users_index_at_once_do_not_disturb_each_other(
    place: IndexPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a host that was cut off goes on with what it had begun."""
    keep(place, card(1))
    copy = sqlite_file._copy_user
    others = [1]

    def copy_beside_another(index: sqlite3.Connection, uid: int) -> None:
        if others:
            others.pop()
            export_user(place, uid, None)
        copy(index, uid)

    monkeypatch.setattr(sqlite_file, "_copy_user", copy_beside_another)
    export_user(place, UID, None)
    own = user_index(place.store_dir, UID)
    assert list(own.parent.iterdir()) == [own]
    with closing(sqlite3.connect(own)) as index:
        assert index.execute("SELECT count(*) FROM jobs").fetchone() == (1,)


def test_what_a_killed_process_left_of_a_users_index_is_removed_when_it_is_old(
    place: IndexPlace,
) -> None:
    keep(place, card(1))
    export_user(place, UID, None)
    own = user_index(place.store_dir, UID)
    old, new = (own.with_name(f".{own.name}.{word}.tmp") for word in ("1f", "2f"))
    for path in (old, new):
        path.touch()
    os.utime(old, (1e9, 1e9))
    export_user(place, UID, None)
    assert sorted(own.parent.iterdir()) == [new, own]


@pytest.mark.skipif(os.geteuid() != 0, reason="several users are needed")
def test_the_files_can_be_opened_by_their_user_and_the_group_alone(place: IndexPlace) -> None:
    keep(place, card(1), gid=ADMINS_GID)
    export_user(place, UID, ADMINS_GID)

    def can_read(uid: int, gid: int, path: Path) -> bool:
        argv = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "cat", str(path)]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    own = user_index(place.store_dir, UID)
    assert can_read(STRANGER_UID, ADMINS_GID, place.file)
    assert can_read(STRANGER_UID, ADMINS_GID, own)
    assert can_read(UID, UID, own)
    assert not can_read(UID, UID, place.file)
    assert not can_read(STRANGER_UID, STRANGER_UID, own)


def test_an_index_that_is_none_is_said_and_made_anew_of_the_stored_reports(
    place: IndexPlace,
) -> None:
    for number in (1, 2):
        (place.store_dir / str(number)).mkdir()
        (place.store_dir / str(number) / "0.json").write_text(
            to_json(card(number), datetime.now(UTC))
        )
    (place.store_dir / "2" / "1.json").write_bytes(b"{")
    place.file.write_bytes(b"this is no index" * 100)
    with pytest.raises(BrokenIndexError, match="controller --rebuild"):
        ids(place, JobFilter())
    with pytest.raises(BrokenIndexError):
        keep(place, card(3))
    config = replace(parse_config("", "none"), store_dir=place.store_dir)
    assert rebuild(config) == (2, 1)
    assert sorted(ids(place, JobFilter())) == [1, 2]


def test_a_writer_that_was_killed_leaves_the_index_as_it_was(place: IndexPlace) -> None:
    keep(place, card(1))
    pid = os.fork()
    if not pid:
        with writing(place, None) as index:
            index.exec_driver_sql("PRAGMA cache_size=1")  # so that it writes before it commits
            for number in range(2, 300):
                put(index, rows_of(card(number)))
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert (place.store_dir / f"{INDEX}-journal").exists()
    keep(place, card(500))
    assert sorted(ids(place, JobFilter(limit=1000))) == [1, 500]


def test_an_index_of_a_newer_release_is_not_touched(place: IndexPlace) -> None:
    keep(place, card(1))
    with closing(sqlite3.connect(place.file)) as index:
        index.execute(f"PRAGMA user_version={VERSION + 1}")
    with pytest.raises(InspectorError, match="newer release"):
        keep(place, card(2))
    with pytest.raises(InspectorError, match="another release"):
        ids(place, JobFilter())


def test_without_an_index_there_is_one_line(place: IndexPlace) -> None:
    with pytest.raises(InspectorError, match="no index"):
        ids(place, JobFilter())


def test_an_index_of_an_older_release_becomes_like_a_new_one(place: IndexPlace) -> None:
    with closing(sqlite3.connect(place.file)) as index:
        index.executescript((SCHEMAS / "3.sql").read_text())
    keep(place, card(1, named="n1"))
    assert ids(place, JobFilter()) == [1]
    other = IndexPlace(place.store_dir / "other")
    other.store_dir.mkdir()
    keep(other)
    assert shape_of(place) == shape_of(other)
