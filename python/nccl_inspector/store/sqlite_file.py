# SPDX-License-Identifier: Apache-2.0
"""The index as an SQLite file, which only the controller service writes.

It may be on network storage. Therefore it has a rollback journal and no write-ahead log, which
needs memory shared by all readers and the writer. Its readers are the admins' group and close it
within seconds. Users have a copy of their own jobs' rows in a file of their own. That file is
replaced and never changed, because a user who may lock a file could stop its writer.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from nccl_inspector.errors import InspectorError
from nccl_inspector.store.errors import (
    BrokenIndexError,
    IndexUnavailableError,
    UnstorableError,
)
from nccl_inspector.store.owner import current_name, is_owner
from nccl_inspector.store.place import INDEX, user_index
from nccl_inspector.store.sqlite_schema import migrate, version_of
from nccl_inspector.store.tables import OF_JOB, VERSION
from nccl_inspector.system.acl import allow

OWN_JOBS_MAX = 10_000  # the latest jobs in a user's own index
_WRITER_WAITS_S, _READER_WAITS_S = 20, 5
_UNFINISHED_S = 3600.0  # no process needs so long to make a user's index


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and SQLAlchemy into ours.

    Raises:
        IndexUnavailableError: it is locked, cannot be opened, or the disk is full.
        BrokenIndexError: it is not a valid index.
        UnstorableError: it refuses a value.
    """
    try:
        yield
    except (OverflowError, sqlite3.IntegrityError, IntegrityError) as err:
        raise UnstorableError(f"{path}: refuses a report's rows: {_words(err)}") from err
    except (sqlite3.OperationalError, OperationalError) as err:
        raise IndexUnavailableError(f"{path}: cannot be used now: {_words(err)}") from err
    except (sqlite3.DatabaseError, DatabaseError) as err:
        raise BrokenIndexError(
            f"{path}: broken ({_words(err)}): stop the service and run "
            "nccl-inspector controller --rebuild"
        ) from err


def _words(err: Exception) -> str:
    return str(getattr(err, "orig", err))


def _uri(path: Path, words: str) -> str:
    return f"file:{quote(str(path))}?{words}"


@contextmanager
def _connected(file: sqlite3.Connection) -> Iterator[Connection]:
    """Give an open file to SQLAlchemy."""
    engine = create_engine("sqlite://", creator=lambda: file, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def share(path: Path, uid: int | None, gid: int | None) -> None:
    """Let only one user and a group read a file of ours.

    Raises:
        OSError: its rights cannot be set.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        allow(fd, 0o6, uid, 0o4, gid)
    finally:
        os.close(fd)


@contextmanager
def writing_file(path: Path, gid: int | None) -> Iterator[Connection]:
    """Give the index for writing, make or upgrade it if needed, and commit at the end.

    Raises:
        IndexUnavailableError, BrokenIndexError, UnstorableError: as their names say; nothing was
            written.
        InspectorError: a newer release wrote it.
        OSError: its rights cannot be set.
    """
    before = path.exists()
    with _errors_of(path), closing(sqlite3.connect(path, timeout=_WRITER_WAITS_S)) as file:
        file.execute("PRAGMA journal_mode=DELETE")
        migrate(file, str(path))
        if not before:
            share(path, None, gid)
        # By itself Python begins a transaction for what it takes for an INSERT, in the letters of
        # the locale; the Turkish ones have no `i` for `I`.
        file.isolation_level = None
        with _connected(file) as connection, connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection


def export_file(path: Path, uid: int, gid: int | None) -> None:
    """Make a user's own index again from the index at `path`, readable by that user and the group.

    Raises:
        InspectorError, OSError: it was not made, and the old one stays.
    """
    own = user_index(path.parent, uid)
    with suppress(FileExistsError):
        own.parent.mkdir()
        own.parent.chmod(0o711)
    _remove_left(own)
    # Of this process alone: on another host one may be at work that was cut off meanwhile.
    beside = own.with_name(f".{own.name}.{secrets.token_hex(8)}.tmp")
    try:
        uri = _uri(beside, "mode=rwc")
        with (
            _errors_of(path),
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as copy,
        ):
            # Nobody sees it before it is complete, and after a power cut it is written again.
            copy.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
            migrate(copy, str(beside))
            copy.execute("ATTACH ? AS all_jobs", (_uri(path, "mode=ro"),))
            _copy_user(copy, uid)
        share(beside, uid, gid)
        beside.rename(own)
    except (InspectorError, OSError):
        beside.unlink(missing_ok=True)
        raise


def _remove_left(own: Path) -> None:
    """Remove what processes left that were killed while they made this user's index again."""
    old_s = time.time() - _UNFINISHED_S
    for path in own.parent.glob(f".{own.name}.*tmp"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < old_s:
                path.unlink()


def _owner(index: sqlite3.Connection, schema: str, uid: int) -> str:
    """Return the present name of a uid; if that is not known, the name in its latest job."""
    if (name := current_name(uid)) is not None:
        return name
    last = f"SELECT user FROM {schema}.jobs WHERE uid=? ORDER BY key DESC LIMIT 1"
    found = index.execute(last, (uid,)).fetchone()
    return str(found[0]) if found else ""


def _copy_user(copy: sqlite3.Connection, uid: int) -> None:
    copy.execute(
        "INSERT INTO main.jobs SELECT * FROM all_jobs.jobs WHERE uid=? AND user IN (?, ?)"
        " ORDER BY end_s DESC LIMIT ?",
        (uid, _owner(copy, "all_jobs", uid), str(uid), OWN_JOBS_MAX),
    )
    for table in OF_JOB:
        copy.execute(
            f"INSERT INTO main.{table.name} SELECT * FROM all_jobs.{table.name}"
            " WHERE job IN (SELECT key FROM main.jobs)"
        )
    copy.execute(
        "INSERT INTO main.nodes SELECT * FROM all_jobs.nodes"
        " WHERE id IN (SELECT node FROM main.job_nodes)"
    )


def _refuse_former(file: sqlite3.Connection, store_dir: Path) -> None:
    """Raise an InspectorError if the caller's own index is of a former user of the same uid."""
    names = [name for (name,) in file.execute("SELECT DISTINCT user FROM jobs")]
    if not all(is_owner(os.getuid(), name) for name in names):
        raise InspectorError(f"none of your jobs is in the index yet: {store_dir}")


@contextmanager
def reading_file(store_dir: Path) -> Iterator[tuple[Connection, bool]]:
    """Give the index of all jobs (if we may not read it, our own), and whether it has all jobs.

    Raises:
        InspectorError: it cannot be read. (IndexPlace.check_readable: there is one that we may.)
    """
    path = store_dir / INDEX
    all_jobs = os.access(path, os.R_OK)
    if not all_jobs:
        path = user_index(store_dir, os.getuid())
    # Our own index is replaced and never changed, so it needs no lock. For the index of all jobs a
    # lock must show that nobody writes it.
    uri = _uri(path, "mode=ro" if all_jobs else "mode=ro&immutable=1")
    with (
        _errors_of(path),
        closing(sqlite3.connect(uri, uri=True, timeout=_READER_WAITS_S)) as file,
    ):
        if (version := version_of(file)) != VERSION:
            raise InspectorError(f"{path}: written by another release (schema {version})")
        if not all_jobs:
            _refuse_former(file, store_dir)
        with _connected(file) as connection:
            yield connection, all_jobs
