# SPDX-License-Identifier: Apache-2.0
"""The index in a database of PostgreSQL, which several clusters may share.

Each caller logs in under their own name, and the database decides which rows they see (row-level
security): those of the jobs of the user with that name, or, for members of the role
nccl_inspector_admins, all rows. The controller service owns the tables. No password is in our
settings: libpq takes it from its password file, a service file, or the service's environment.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from nccl_inspector.errors import InspectorError
from nccl_inspector.store.errors import BrokenIndexError, IndexUnavailableError, UnstorableError
from nccl_inspector.store.tables import METADATA, OF_JOB, VERSION
from nccl_inspector.system.printable import printable

ADMINS = "nccl_inspector_admins"
_CONNECT = {
    "connect_timeout": "5", "tcp_user_timeout": "10000", "keepalives_idle": "10",
    "keepalives_interval": "5", "keepalives_count": "3", "application_name": "nccl-inspector",
    # Whatever PGCLIENTENCODING says; with SQL_ASCII the driver would return bytes.
    "client_encoding": "UTF8",
}  # fmt: skip
# In each transaction and not at login, so that a pooler such as PgBouncer hands them on.
_LIMITS = "SET LOCAL statement_timeout = '30s'; SET LOCAL lock_timeout = '10s'"
_MAKING = 0x6E63636C  # the advisory lock of those who make the tables at the same time
# A value or a constraint does not admit the rows: classes of SQLSTATE.
_REFUSED = ("22", "23")
# Our tables were changed, or are not there: classes of SQLSTATE.
_CHANGED = ("42P01", "42703", "42804", "42883")
# What servers and libpq say of a login that is refused; there is no SQLSTATE before a login.
_NO_LOGIN = re.compile(
    r"role .* does not exist|not permitted to log in|authentication failed|no pg_hba\.conf entry"
    r"|no password supplied|pg_hba\.conf rejects|permission denied for database"
    r"|certificate authentication|could not initiate GSSAPI"
)
_ENCODING = "UTF8"
_LINE_CHARS = 200

_MAKE_ROLE = f"""
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ADMINS}') THEN
    CREATE ROLE {ADMINS} NOLOGIN;
  END IF;
END $$
"""
_OWN = """("user" = current_user::text AND uid IS NOT NULL)"""
# A table of ours that another login owns. A superuser is a member of all roles.
_NOT_OURS = """
SELECT c.relname, pg_get_userbyid(c.relowner)
FROM pg_class c JOIN pg_roles me ON me.rolname = current_user
WHERE c.relname = ANY(:names) AND pg_table_is_visible(c.oid) AND c.relowner <> me.oid
  AND (me.rolsuper OR NOT pg_has_role(c.relowner, 'MEMBER'))
ORDER BY 1 LIMIT 1
"""
# As that of each database up to PostgreSQL 14: whoever may log in could put a function there that
# the service calls in place of the database's own.
_OPEN_SCHEMA = """
SELECT current_schema() FROM pg_namespace n, aclexplode(n.nspacl) acl
WHERE n.nspname = current_schema() AND acl.grantee = 0 AND acl.privilege_type = 'CREATE'
"""
# By the catalogue's rows: to_regclass would not see what others made during our transaction.
_HAS_TABLES = """
SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'schema_version' AND pg_table_is_visible(oid))
"""
_SEES_ALL = f"""
SELECT NOT row_security_active('jobs') OR EXISTS (
  SELECT FROM pg_roles WHERE rolname = '{ADMINS}' AND pg_has_role(oid, 'USAGE'))
"""


def check_url(words: str) -> URL:
    """Return the setting store_url as an URL for SQLAlchemy.

    Raises:
        InspectorError: it is no URL of PostgreSQL, or has a password.
    """
    try:
        url = make_url(words)
    except ArgumentError:
        raise InspectorError("store_url: not an URL like postgresql://host/database") from None
    if url.drivername != "postgresql":
        raise InspectorError("store_url: not an URL like postgresql://host/database")
    if url.password is not None or "password" in url.query:
        raise InspectorError(
            "store_url: a password does not belong there, because everybody may read the file: "
            "use a password file (PGPASSFILE) or a service file (?service=NAME)"
        )
    return url.set(drivername="postgresql+psycopg")


def _rights() -> Iterator[str]:
    tables = [table.name for table in METADATA.sorted_tables]
    yield f"GRANT SELECT ON {', '.join(tables)}, schema_version TO PUBLIC"
    for name in ("jobs", *(table.name for table in OF_JOB)):
        yield f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"
        yield f"CREATE POLICY admins ON {name} FOR SELECT TO {ADMINS} USING (true)"
    yield f"CREATE POLICY own ON jobs FOR SELECT USING {_OWN}"
    for table in OF_JOB:
        # What a user sees of jobs, the policies of jobs decide. OFFSET makes the planner look up
        # each job; else it collects all jobs of the user first.
        seen = f"EXISTS (SELECT FROM jobs WHERE jobs.key = {table.name}.job OFFSET 0)"
        yield f"CREATE POLICY of_job ON {table.name} FOR SELECT USING ({seen})"


def _check_encoding(connection: Connection, where: str) -> None:
    """Refuse a database that cannot store every text; the server tells its encoding at login.

    Raises:
        InspectorError: it has another encoding than UTF8.
    """
    login: Any = connection.connection.driver_connection
    found = login.info.parameter_status("server_encoding")
    if found != _ENCODING:
        raise InspectorError(
            f"{where}: its encoding is {found}, but it must be {_ENCODING}: make another one with "
            f"CREATE DATABASE ... ENCODING '{_ENCODING}' TEMPLATE template0"
        )


def _version(connection: Connection) -> int:
    """Return the version of the schema; 0: there is none."""
    if not connection.scalar(text(_HAS_TABLES)):
        return 0
    return int(connection.scalar(text("SELECT version FROM schema_version")) or 0)


def _refuse_others(connection: Connection, where: str) -> None:
    """Refuse tables that somebody else has put where ours are to be.

    Raises:
        InspectorError: there is one.
    """
    names = [*METADATA.tables, "schema_version", "leases"]
    found = connection.execute(text(_NOT_OURS), {"names": names}).first()
    if found is not None:
        raise InspectorError(
            f"{where}: the table {found[0]} belongs to {printable(found[1])} and not to the "
            "service: whoever owns it sees all jobs in it"
        )


def _make_tables(connection: Connection, where: str) -> None:
    """Make the tables, if they are not there.

    Raises:
        InspectorError: another release made them, or the database's administrator must help.
    """
    version = _version(connection)
    if not version:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_MAKING})"))
        version = _version(connection)  # another service may have been faster
    if version not in (0, VERSION):
        raise InspectorError(f"{where}: written by another release (schema {version})")
    _refuse_others(connection, where)
    if version:
        return
    if schema := connection.scalar(text(_OPEN_SCHEMA)):
        raise InspectorError(
            f"{where}: everybody may make tables and functions there: its administrator must run "
            f"REVOKE CREATE ON SCHEMA {printable(schema)} FROM PUBLIC"
        )
    try:
        with connection.begin_nested():
            connection.execute(text(_MAKE_ROLE))
    except DBAPIError as err:
        if getattr(err.orig, "sqlstate", "") != "42501":
            raise
        raise IndexUnavailableError(
            f"{where}: its administrator must run CREATE ROLE {ADMINS} NOLOGIN, which we may not"
        ) from err
    METADATA.create_all(connection)
    connection.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
    connection.execute(text(f"INSERT INTO schema_version VALUES ({VERSION})"))
    connection.execute(
        text("CREATE TABLE leases (cluster TEXT PRIMARY KEY, holder TEXT, until_at TIMESTAMPTZ)")
    )
    for statement in _rights():
        connection.execute(text(statement))


def _words(err: DBAPIError) -> str:
    lines = [line.strip() for line in str(err.orig).splitlines() if line.strip()]
    first = lines[0] if lines else "no answer"
    # What psycopg puts before libpq's own words.
    for words in ("connection failed: ", "connection is bad: "):
        first = first.removeprefix(words)
    return printable(first)[:_LINE_CHARS]


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Turn errors of the database into ours."""
    try:
        yield
    except DBAPIError as err:
        state = getattr(err.orig, "sqlstate", None) or ""
        if state.startswith(_REFUSED):
            raise UnstorableError(f"{where}: refuses a report's rows: {_words(err)}") from err
        if state.startswith(_CHANGED):
            raise BrokenIndexError(
                f"{where}: its tables are not as this release made them ({_words(err)}): repair "
                "them, or drop them and run nccl-inspector controller --rebuild"
            ) from err
        words = _words(err)
        if _NO_LOGIN.search(words):
            raise IndexUnavailableError(
                f"{where}: this login is refused: {words}: each user needs a role of their own "
                "name, which the database's administrator makes"
            ) from err
        raise IndexUnavailableError(f"{where}: cannot be used now: {words}") from err


@cache
def _engine(url: URL) -> Engine:
    """Return what knows the database's dialect and our statements; it keeps no session."""
    try:
        usual = {name: value for name, value in _CONNECT.items() if name not in url.query}
        return create_engine(
            url,
            poolclass=NullPool,
            use_native_hstore=False,  # or it asks for that type at each login
            # Not prepared: a pooler may give the next transaction another session.
            connect_args={**usual, "prepare_threshold": None},
        )
    except ModuleNotFoundError:
        raise
    except ImportError as err:
        raise InspectorError(
            "store_url: libpq is missing on this host: install the package libpq5 (Debian) or libpq"
        ) from err


@contextmanager
def writing_database(words: str) -> Iterator[Connection]:
    """Give the index for writing, make its tables if needed, and commit at the end.

    Raises:
        IndexUnavailableError, BrokenIndexError, UnstorableError: as their names say; nothing was
            written.
        InspectorError: the setting is wrong, the database's encoding is not UTF8, or another
            release wrote the index.
    """
    url = check_url(words)
    where = url.set(drivername="postgresql").render_as_string()
    with _errors_of(where), _engine(url).begin() as connection:
        _check_encoding(connection, where)
        connection.exec_driver_sql(_LIMITS)
        _make_tables(connection, where)
        yield connection


@contextmanager
def reading_database(words: str) -> Iterator[tuple[Connection, bool]]:
    """Give the index at one moment, and whether the caller sees all jobs.

    Raises:
        InspectorError: it is not there, or cannot be read.
    """
    url = check_url(words)
    where = url.set(drivername="postgresql").render_as_string()
    with _errors_of(where), _engine(url).connect() as connection:
        _check_encoding(connection, where)
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        connection.exec_driver_sql(_LIMITS)
        version = _version(connection)
        if not version:
            raise InspectorError(f"{where}: no index yet: the controller service makes it")
        if version != VERSION:
            raise InspectorError(f"{where}: written by another release (schema {version})")
        yield connection, bool(connection.scalar(text(_SEES_ALL)))
