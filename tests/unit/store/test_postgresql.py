# SPDX-License-Identifier: Apache-2.0
"""The index in PostgreSQL: what a login reads by any SQL, several clusters, bad databases."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from nccl_inspector.errors import InspectorError
from nccl_inspector.store import postgresql
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.errors import (
    BrokenIndexError,
    IndexUnavailableError,
    UnstorableError,
)
from nccl_inspector.store.index import forget, put, reading, writing
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import JobFilter, find_jobs, last_jobs
from nccl_inspector.store.tables import METADATA, VERSION
from tests.support.mounts import fill, mounted
from tests.support.postgres import Postgres
from tests.support.stored_cards import card, ids, keep, store_in


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def place(postgres: Postgres, database: str, open_path: Path) -> IndexPlace:
    return store_in(open_path, postgres.url(database))


def login(postgres: Postgres, database: str, name: str, member_of: str = "") -> str:
    """Make a login of the database; return its URL."""
    postgres.run_sql(
        database, f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN",
        *([f"GRANT {member_of} TO {name}"] if member_of else []),
    )  # fmt: skip
    return postgres.url(database, name)


def rows_seen(connection: Connection) -> dict[str, int | None]:
    """How many rows of each table a login sees, by SQL of its own."""
    return {
        name: connection.scalar(select(func.count()).select_from(table))
        for name, table in METADATA.tables.items()
        if name != "nodes"
    }


def test_a_login_sees_the_rows_of_its_own_jobs_in_every_table_and_changes_none(
    postgres: Postgres, database: str, place: IndexPlace
) -> None:
    keep(place, card(1, named="n1"), card(2, user="bob", uid=4712), card(3, user="bob", uid=None))
    bob = login(postgres, database, "bob")
    for name in ("amy", "eve"):
        login(postgres, database, name)
    with postgres.connect(database, "amy") as amy:
        assert rows_seen(amy) == {"jobs": 1, "job_nodes": 2, "entities": 1, "kinds": 1}
    with postgres.connect(database, "bob") as connection:
        assert rows_seen(connection)["jobs"] == 1, "a former bob's is not shown"
    with postgres.connect(database, "eve") as eve:
        assert not any(rows_seen(eve).values())
    with reading(replace(place, url=bob)) as (index, all_jobs):
        assert not all_jobs
        assert [job.job_id for job in find_jobs(index, JobFilter())] == [2]
    for words in ("UPDATE jobs SET uid=1", "DELETE FROM kinds", "CREATE TABLE t (a int)",
                  "ALTER TABLE jobs DISABLE ROW LEVEL SECURITY"):  # fmt: skip
        with (
            postgres.connect(database, "amy") as amy,
            pytest.raises(DBAPIError, match=r"denied|must be"),
        ):
            amy.execute(text(words))


def test_a_function_of_a_user_does_not_see_rows_that_are_filtered_out(
    postgres: Postgres, database: str, place: IndexPlace
) -> None:
    keep(place, card(1), card(2, user="bob", uid=4712))
    postgres.run_sql(database, "CREATE SCHEMA hers", "GRANT ALL ON SCHEMA hers TO PUBLIC")
    login(postgres, database, "mallory")
    peek = (
        "CREATE FUNCTION hers.peek(t text) RETURNS bool COST 0.0001 LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'seen: %', t; END $$"
    )
    with postgres.connect(database, "mallory") as connection:
        connection.execute(text(peek))
        assert not connection.execute(text("SELECT 1 FROM jobs WHERE hers.peek(summary)")).all()


def test_tables_that_another_login_has_put_there_get_no_rows(
    postgres: Postgres, database: str, open_path: Path
) -> None:
    """As before the service's first start, where everybody may make tables."""
    place = store_in(open_path, postgres.url(database))
    login(postgres, database, "mallory")
    postgres.run_sql(database, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    with postgres.connect(database, "mallory") as mallory, mallory.begin():
        METADATA.create_all(mallory)
        mallory.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
        mallory.execute(text("INSERT INTO schema_version VALUES (:version)"), {"version": VERSION})
        for name in (*METADATA.tables, "schema_version"):
            mallory.execute(text(f"GRANT ALL ON {name} TO PUBLIC"))
    with pytest.raises(InspectorError, match="entities belongs to mallory"):
        keep(place, card(1))
    postgres.run_sql(database, "DROP OWNED BY mallory")
    with pytest.raises(InspectorError, match="REVOKE CREATE ON SCHEMA public FROM PUBLIC"):
        keep(place, card(1))
    postgres.run_sql(database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    keep(place, card(1))
    with reading(place) as (index, _):
        assert [job.job_id for job in find_jobs(index, JobFilter())] == [1]


ATTACKS = (
    "COPY jobs TO PROGRAM 'cat'", "COPY jobs TO '/tmp/jobs'", "SELECT pg_read_file('/etc/passwd')",
    "SET ROLE nccl_inspector", "SET SESSION AUTHORIZATION nccl_inspector",
    "SET row_security = off; SELECT count(*) FROM jobs", "SELECT * FROM leases",
    "UPDATE leases SET holder = 'me'", "TRUNCATE jobs", "DROP TABLE kinds", "LOCK TABLE jobs",
    "INSERT INTO nodes SELECT * FROM nodes", "UPDATE schema_version SET version = 0",
    "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'",
    "CREATE POLICY mine ON jobs USING (true)", "CREATE TRIGGER t BEFORE INSERT ON jobs "
    "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON INSERT TO jobs DO ALSO NOTHING", "ALTER ROLE mallory SUPERUSER",
    "GRANT nccl_inspector_admins TO mallory", "COMMENT ON TABLE jobs IS 'x'",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'nccl_inspector'",
    "ALTER DATABASE {database} SET search_path = 'hers'",
)  # fmt: skip


@pytest.mark.parametrize("words", ATTACKS)
def test_no_sql_of_a_login_reads_writes_or_stops_what_is_not_its_own(
    postgres: Postgres, attacked: tuple[str, IndexPlace], words: str
) -> None:
    database, place = attacked
    with (
        place_session(postgres, database),
        postgres.connect(database, "mallory") as mallory,
        pytest.raises(DBAPIError, match="InsufficientPrivilege"),
    ):
        mallory.exec_driver_sql(words.format(database=database))
    with reading(place) as (index, _):
        assert len(last_jobs(index, 10).jobs) == 1, "the service goes on"


def place_session(postgres: Postgres, database: str) -> Connection:
    """A session of the service's, which somebody may want to end."""
    return postgres.connect(database, "nccl_inspector")


@pytest.fixture(scope="module")
def attacked(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, IndexPlace]:
    """A database with a job of amy's, and the login mallory."""
    database = postgres.new_database()
    folder = tmp_path_factory.mktemp("attacked")
    place = store_in(folder, postgres.url(database))
    keep(place, card(1))
    login(postgres, database, "mallory")
    return database, place


def test_members_of_the_admins_role_see_all_jobs(
    postgres: Postgres, database: str, place: IndexPlace
) -> None:
    keep(place, card(1), card(2, user="bob", uid=4712))
    admin = login(postgres, database, "ops", postgresql.ADMINS)
    with reading(replace(place, url=admin)) as (index, all_jobs):
        assert all_jobs
        assert len(last_jobs(index, 10).jobs) == 2


def test_two_clusters_share_an_index_and_each_removes_its_own_jobs(place: IndexPlace) -> None:
    keep(place, *(card(at, cluster=name) for at in (1, 2) for name in ("old", "new")))
    with reading(place) as (index, _):
        assert len(find_jobs(index, JobFilter(cluster="old"))) == 2
        assert len(last_jobs(index, 10, "old").jobs) == 2
    with writing(place, None) as index:
        forget(index, [1], "old")
    with reading(place) as (index, _):
        left = [(job.cluster, job.job_id) for job in find_jobs(index, JobFilter())]
    assert sorted(left) == [("new", 1), ("new", 2), ("old", 2)]


def test_services_that_begin_at_the_same_moment_make_the_tables_once(place: IndexPlace) -> None:
    begin, problems = threading.Barrier(4), []

    def start(number: int) -> None:
        begin.wait()
        try:
            with writing(place, None) as index:
                put(index, rows_of(card(number)))
        except InspectorError as err:
            problems.append(err)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(1, 5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not problems
    assert sorted(ids(place, JobFilter())) == [1, 2, 3, 4]


# What may be wrong with a database, with what an administrator reads of it. A statement is run in
# the database, or in that of PostgreSQL's own where it is about the whole; a function returns how
# to undo what it did.

Undo = Callable[[], object]


def _is_down(postgres: Postgres, _database: str) -> Undo:
    postgres.stop()
    return postgres.start


def _is_locked(postgres: Postgres, database: str) -> Undo:
    connection = postgres.connect(database, "root")
    connection.execute(text("LOCK TABLE jobs"))
    return connection.close


FAULTS: list[tuple[Callable[[Postgres, str], Undo] | str, type[InspectorError], str]] = [
    (_is_down, IndexUnavailableError, "cannot be used now: connection to server"),
    (_is_locked, IndexUnavailableError, "lock timeout"),
    (
        "ALTER DATABASE {0} SET default_transaction_read_only = on",
        IndexUnavailableError,
        "read-only transaction",
    ),
    ("DROP DATABASE {0}", IndexUnavailableError, "does not exist"),
    ("UPDATE schema_version SET version = version + 1", InspectorError, "another release"),
    ("ALTER TABLE jobs DROP COLUMN summary", BrokenIndexError, "not as this release made them"),
    (
        "ALTER TABLE jobs ALTER COLUMN ranks TYPE timestamp USING now()",
        BrokenIndexError,
        "not as this release made them",
    ),
    ("DROP TABLE kinds", BrokenIndexError, "not as this release made them"),
    ("ALTER TABLE jobs ADD CHECK (job_id <> 2)", UnstorableError, "refuses a report's rows"),
    (
        "ALTER TABLE jobs ALTER COLUMN summary TYPE varchar(1) USING ''",
        UnstorableError,
        "refuses a report's rows: value too long",
    ),
]


@pytest.mark.parametrize(("hurt", "kind", "words"), FAULTS)
def test_a_database_that_cannot_be_used_is_one_line(
    postgres: Postgres, database: str, place: IndexPlace, monkeypatch: pytest.MonkeyPatch,
    hurt: Callable[[Postgres, str], Undo] | str, kind: type[InspectorError], words: str,
) -> None:  # fmt: skip
    keep(place, card(1))
    monkeypatch.setattr(postgresql, "_LIMITS", "SET LOCAL lock_timeout = '200ms'")
    undo = None
    if isinstance(hurt, str):
        whole = "{0}" in hurt
        postgres.run_sql("postgres" if whole else database, hurt.format(database))
    else:
        undo = hurt(postgres, database)
    try:
        with pytest.raises(kind, match=words) as caught:
            keep(place, card(2))
    finally:
        if undo:
            undo()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (["SELECT 1"], 'role "noll" does not exist'),
        (["CREATE ROLE noll NOLOGIN"], "not permitted to log in"),
        (
            ["CREATE ROLE noll LOGIN", "REVOKE CONNECT ON DATABASE {0} FROM PUBLIC"],
            "permission denied for database",
        ),
    ],
)
def test_who_has_no_login_reads_that_they_need_a_role(
    postgres: Postgres, database: str, place: IndexPlace, made: list[str], words: str
) -> None:
    keep(place, card(1))
    postgres.run_sql(
        "postgres", "DROP ROLE IF EXISTS noll", *(one.format(database) for one in made)
    )
    with (
        pytest.raises(IndexUnavailableError, match="this login is refused") as caught,
        reading(replace(place, url=postgres.url(database, "noll"))),
    ):
        pass
    assert words in str(caught.value)
    assert "each user needs a role" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "is_login"),
    [
        ('FATAL:  password authentication failed for user "amy"', True),
        ('FATAL:  Peer authentication failed for user "amy"', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "amy", no encryption', True),
        ("fe_sendauth: no password supplied", True),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
        ('FATAL:  database "nccl" does not exist', False),
        ("Connection refused", False),
    ],
)
def test_a_login_that_is_refused_is_told_from_a_server_that_is_not_ready(
    words: str, is_login: bool
) -> None:
    told = OperationalError("", {}, Exception(f"connection failed: {words}"))
    with pytest.raises(IndexUnavailableError) as caught, postgresql._errors_of("here"):
        raise told
    assert ("this login is refused" in str(caught.value)) == is_login


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_refused_in_one_line(
    postgres: Postgres, open_path: Path, encoding: str
) -> None:
    place = store_in(open_path, postgres.url(postgres.new_database(encoding=encoding)))
    words = f": its encoding is {encoding}, but it must be UTF8: make another one with CREATE DATA"
    with pytest.raises(InspectorError, match=words) as caught:
        keep(place, card(1))
    assert "\n" not in str(caught.value)
    with pytest.raises(InspectorError, match=words), reading(place):
        pass


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_encoding_that_a_client_usually_has_does_not_matter(
    place: IndexPlace, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    keep(place, card(1, user="zoë", partition="żółw 🐢"))
    with reading(place) as (index, _):
        (job,) = find_jobs(index, JobFilter())
    assert (job.user, job.partition) == ("zoë", "żółw 🐢")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_database_on_a_full_disk_is_one_line_and_goes_on_when_there_is_room(
    postgres: Postgres, open_path: Path
) -> None:
    disk = open_path / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", "size=24m,mode=0755", "tmpfs"):
        folder = disk / "space"
        folder.mkdir()
        shutil.chown(folder, "postgres")
        postgres.run_sql("postgres", f"CREATE TABLESPACE small LOCATION '{folder}'")
        database = postgres.new_database(tablespace="small")
        try:
            place = store_in(open_path, postgres.url(database))
            keep(place, card(1))
            fill(disk)
            with pytest.raises(IndexUnavailableError, match="No space left on device") as caught:
                keep(place, *map(card, range(2, 500)))
            (disk / "fill").unlink()
            keep(place, card(1000))
            assert ids(place, JobFilter()) == [1000, 1]
        finally:
            (disk / "fill").unlink(missing_ok=True)
            postgres.run_sql("postgres", f"DROP DATABASE {database}", "DROP TABLESPACE small")
    assert "\n" not in str(caught.value)


def test_without_the_right_to_make_the_role_it_is_said_who_must(
    postgres: Postgres, place: IndexPlace
) -> None:
    postgres.run_sql("postgres", f"DROP ROLE IF EXISTS {postgresql.ADMINS}_x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql, "_MAKE_ROLE", f"CREATE ROLE {postgresql.ADMINS}_x")
        postgres.run_sql("postgres", "ALTER ROLE nccl_inspector NOCREATEROLE")
        try:
            with pytest.raises(IndexUnavailableError, match="must run CREATE ROLE"):
                keep(place, card(1))
        finally:
            postgres.run_sql("postgres", "ALTER ROLE nccl_inspector CREATEROLE")
    with pytest.raises(InspectorError, match="no index yet"):
        ids(place, JobFilter())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://amy:secret@db/nccl", "a password does not belong there"),
        ("postgresql://db/nccl?password=secret", "a password does not belong there"),
        ("mysql://db/nccl", "not an URL like postgresql"),
        ("postgresql+asyncpg://db/nccl", "not an URL like postgresql"),
        ("db", "not an URL like postgresql"),
        ("postgresql://127.0.0.1:1/nccl", "cannot be used now: connection to server"),
    ],
)
def test_a_setting_that_leads_nowhere_is_one_line_without_a_secret(url: str, words: str) -> None:
    with pytest.raises(InspectorError, match=words) as caught:
        ids(IndexPlace(Path("/none"), url, "c1"), JobFilter())
    assert "secret" not in str(caught.value)


def test_a_database_without_the_name_of_the_cluster_is_one_line(place: IndexPlace) -> None:
    with pytest.raises(InspectorError, match="store_url needs the setting cluster"):
        keep(replace(place, cluster=""), card(1))


def test_a_text_that_no_database_takes_does_not_stop_a_report(place: IndexPlace) -> None:
    keep(place, card(1, name="a\0b\ud800"))
    with reading(place) as (index, _):
        (job,) = find_jobs(index, JobFilter())
    assert job.name == "a?b?"
