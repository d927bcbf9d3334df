# SPDX-License-Identifier: Apache-2.0
"""The index of all reports: an SQLite file that only the controller service writes.

It may be on network storage. Therefore it has a rollback journal and no write-ahead log, which
needs memory shared by all readers and the writer. Its readers are the admins' group and close it
within seconds. Users have a copy of their own jobs' rows in a file of their own. That file is
replaced and never changed, because a user who may lock a file could stop its writer.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, fields
from pathlib import Path
from urllib.parse import quote

from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.errors import InspectorError
from nccl_inspector.store.card_rows import CardRows, JobRow
from nccl_inspector.store.owner import current_name, is_owner
from nccl_inspector.store.schema import VERSION, migrate, version_of
from nccl_inspector.system.acl import allow

INDEX = "index.db"
USERS = "users"
OWN_JOBS_MAX = 10_000  # the latest jobs in a user's own index
_WRITER_WAITS_S, _READER_WAITS_S = 20, 5

JOB_COLUMNS = tuple(field.name for field in fields(JobRow))
_KIND_COLUMNS = (
    *(field.name for field in fields(KindKey)), "time_ns", "bus_gbs", "waiting_share", "busy_ns",
)  # fmt: skip
_TABLES = ("job_nodes", "entities", "kinds")


class BrokenIndexError(InspectorError):
    """The file is not a valid index; it can be made again from the stored reports."""


def _broken(path: Path, err: sqlite3.Error) -> BrokenIndexError:
    return BrokenIndexError(
        f"{path}: broken ({err}): stop the service and run nccl-inspector controller --rebuild"
    )


def _uri(path: Path, words: str) -> str:
    return f"file:{quote(str(path))}?{words}"


def _insert(table: str, columns: tuple[str, ...]) -> str:
    marks = ",".join("?" * len(columns))
    return f"INSERT INTO {table} ({','.join(columns)}) VALUES ({marks})"


_INSERT_JOB = _insert("jobs", JOB_COLUMNS)
_INSERT_KIND = _insert("kinds", ("job", *_KIND_COLUMNS))
_INSERT_ENTITY = _insert("entities", ("job", "rule", "severity", "kind", "name"))
_INSERT_NODE = (
    "INSERT INTO job_nodes (job, node, local, named) "
    "VALUES (?, (SELECT id FROM nodes WHERE name=?), ?, ?)"
)


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
def writing(path: Path, gid: int | None) -> Iterator[sqlite3.Connection]:
    """Give the index for writing, create or upgrade it if needed, and commit at the end.

    Raises:
        BrokenIndexError: it is not a valid index.
        InspectorError: a newer release wrote it.
        sqlite3.OperationalError: it is locked, or the disk is full.
        OSError: its rights cannot be set.
    """
    before = path.exists()
    try:
        with closing(sqlite3.connect(path, timeout=_WRITER_WAITS_S)) as index:
            index.execute("PRAGMA journal_mode=DELETE")
            migrate(index, str(path))
            if not before:
                share(path, None, gid)
            with index:
                yield index
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as err:
        raise _broken(path, err) from err


def _values(*values: object) -> tuple[object, ...]:
    """Return values that SQLite can store. (Texts from JSON may have unpaired surrogates.)"""
    return tuple(
        one.encode("utf-8", "replace").decode("utf-8") if isinstance(one, str) else one
        for one in values
    )


def _delete(index: sqlite3.Connection, key: int) -> None:
    for table in _TABLES:
        index.execute(f"DELETE FROM {table} WHERE job=?", (key,))
    index.execute("DELETE FROM jobs WHERE key=?", (key,))


def put(index: sqlite3.Connection, rows: CardRows) -> None:
    """Write the rows of one attempt, and remove its earlier rows."""
    job = rows.job
    old = index.execute(
        "SELECT key FROM jobs WHERE cluster=? AND job_id=? AND restart=?",
        _values(job.cluster, job.job_id, job.restart),
    ).fetchone()
    if old:
        _delete(index, old[0])
    key = index.execute(_INSERT_JOB, _values(*astuple(job))).lastrowid
    names = [_values(one.node) for one in rows.nodes]
    index.executemany("INSERT OR IGNORE INTO nodes (name) VALUES (?)", names)
    index.executemany(
        _INSERT_NODE,
        [(key, *name, one.local, one.named) for name, one in zip(names, rows.nodes, strict=True)],
    )
    index.executemany(_INSERT_ENTITY, [(key, *_values(*astuple(one))) for one in rows.entities])
    index.executemany(
        _INSERT_KIND,
        [
            (
                key,
                *_values(*astuple(one.key)),
                one.time_ns,
                one.bus_gbs,
                one.waiting_share,
                one.busy_ns,
            )
            for one in rows.kinds
        ],
    )


def forget(index: sqlite3.Connection, job_ids: Iterable[int]) -> set[int]:
    """Remove all rows of these jobs; return the uids of their users."""
    uids: set[int] = set()
    for job_id in job_ids:
        rows = index.execute("SELECT key, uid FROM jobs WHERE job_id=?", (job_id,)).fetchall()
        uids |= {uid for _, uid in rows if uid is not None}
        for key, _ in rows:
            _delete(index, key)
    return uids


def user_index(store_dir: Path, uid: int) -> Path:
    """Return the path of a user's own index."""
    return store_dir / USERS / f"{uid}.db"


def export_user(path: Path, uid: int, gid: int | None) -> None:
    """Make a user's own index again from the index at `path`, readable by that user and the group.

    Raises:
        sqlite3.Error, OSError: it was not made, and the old one stays.
    """
    own = user_index(path.parent, uid)
    with suppress(FileExistsError):
        own.parent.mkdir()
        own.parent.chmod(0o711)
    beside = own.with_name(f".{own.name}.tmp")
    beside.unlink(missing_ok=True)
    try:
        uri = _uri(beside, "mode=rwc")
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as copy:
            # Nobody sees it before it is complete, and after a power cut it is written again.
            copy.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
            migrate(copy, str(beside))
            copy.execute("ATTACH ? AS all_jobs", (_uri(path, "mode=ro"),))
            _copy_user(copy, uid)
        share(beside, uid, gid)
        beside.rename(own)
    except (sqlite3.Error, OSError):
        beside.unlink(missing_ok=True)
        raise


def _owner(index: sqlite3.Connection, schema: str, uid: int) -> str:
    """Return the present name of a uid; if that is not known, the name in its latest job."""
    if (name := current_name(uid)) is not None:
        return name
    last = f"SELECT user FROM {schema}.jobs WHERE uid=? ORDER BY key DESC LIMIT 1"
    found = index.execute(last, (uid,)).fetchone()
    return str(found[0]) if found else ""


def _refuse_former(index: sqlite3.Connection, store_dir: Path) -> None:
    """Raise an InspectorError if the caller's own index is of a former user of the same uid."""
    names = [name for (name,) in index.execute("SELECT DISTINCT user FROM jobs")]
    if not all(is_owner(os.getuid(), name) for name in names):
        raise InspectorError(f"none of your jobs is in the index yet: {store_dir}")


def _copy_user(copy: sqlite3.Connection, uid: int) -> None:
    copy.execute(
        "INSERT INTO main.jobs SELECT * FROM all_jobs.jobs WHERE uid=? AND user IN (?, ?)"
        " ORDER BY end_s DESC LIMIT ?",
        (uid, _owner(copy, "all_jobs", uid), str(uid), OWN_JOBS_MAX),
    )
    for table in _TABLES:
        copy.execute(
            f"INSERT INTO main.{table} SELECT * FROM all_jobs.{table}"
            " WHERE job IN (SELECT key FROM main.jobs)"
        )
    copy.execute(
        "INSERT INTO main.nodes SELECT * FROM all_jobs.nodes"
        " WHERE id IN (SELECT node FROM main.job_nodes)"
    )


@contextmanager
def reading(store_dir: Path) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """Give the index of all jobs (if we may not read it, our own), and whether it has all jobs.

    Raises:
        InspectorError: there is none that we may read, or it cannot be read.
    """
    path = store_dir / INDEX
    all_jobs = os.access(path, os.R_OK)
    if not all_jobs:
        own = user_index(store_dir, os.getuid())
        if not os.access(own, os.R_OK):
            word = "none of your jobs is in the index yet" if path.exists() else "no index"
            raise InspectorError(f"{word}: {store_dir}")
        path = own
    # Our own index is replaced and never changed, so it needs no lock. For the index of all jobs a
    # lock must show that nobody writes it.
    uri = _uri(path, "mode=ro" if all_jobs else "mode=ro&immutable=1")
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_READER_WAITS_S)) as index:
            if (version := version_of(index)) != VERSION:
                raise InspectorError(f"{path}: written by another release (schema {version})")
            if not all_jobs:
                _refuse_former(index, store_dir)
            yield index, all_jobs
    except sqlite3.OperationalError as err:
        raise InspectorError(f"{path}: cannot be read now: {err}") from err
    except sqlite3.DatabaseError as err:
        raise _broken(path, err) from err
