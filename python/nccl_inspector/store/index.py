# SPDX-License-Identifier: Apache-2.0
"""The index of all reports, in the engine that the site has chosen: open it, and change its rows.

By default it is a file in store_dir (sqlite_file.py); with store_url it is in a database
(postgresql.py). Both have the same tables (tables.py) and are asked the same questions
(queries.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError

from nccl_inspector.store.card_rows import CardRows
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.postgresql import reading_database, writing_database
from nccl_inspector.store.sqlite_file import export_file, reading_file, writing_file
from nccl_inspector.store.tables import ENTITIES, JOB_NODES, JOBS, KINDS, NODES, OF_JOB


@contextmanager
def writing(place: IndexPlace, gid: int | None) -> Iterator[Connection]:
    """Give the index for writing, make or upgrade it if needed, and commit at the end.

    `gid`: the group that may read all of it, if it is a file.

    Raises:
        IndexUnavailableError, BrokenIndexError, UnstorableError: as their names say; nothing was
            written.
        InspectorError: another release wrote it, or the setting is wrong.
        OSError: its rights cannot be set.
    """
    place.check()
    opened = writing_database(place.url) if place.url else writing_file(place.file, gid)
    with opened as connection:
        yield connection


@contextmanager
def reading(place: IndexPlace) -> Iterator[tuple[Connection, bool]]:
    """Give the index, with the jobs that the caller may see, and whether these are all.

    Raises:
        InspectorError: there is none that we may read, or it cannot be read.
    """
    place.check_readable()
    opened = reading_database(place.url) if place.url else reading_file(place.store_dir)
    with opened as found:
        yield found


def export_user(place: IndexPlace, uid: int, gid: int | None) -> None:
    """Give a user their rows, in a file of their own; a database shows them by itself.

    Raises:
        InspectorError, OSError: it was not made, and the old one stays.
    """
    if not place.url:
        export_file(place.file, uid, gid)


def export_users(place: IndexPlace, uids: Iterable[int | None], gid: int | None) -> None:
    """Export the rows of several users; a uid of None is skipped.

    Raises:
        InspectorError, OSError: as of export_user(); those after it are not made either.
    """
    for uid in sorted({uid for uid in uids if uid is not None}):
        export_user(place, uid, gid)


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that can be stored. (Texts from JSON may have half characters, or NULs.)"""
    return {
        name: one.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
        if isinstance(one, str)
        else one
        for name, one in row.items()
    }


def _insert(index: Connection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        index.execute(statement, rows)


def _delete(index: Connection, keys: list[int]) -> None:
    for table in OF_JOB:
        index.execute(delete(table).where(table.c.job.in_(keys)))
    index.execute(delete(JOBS).where(JOBS.c.key.in_(keys)))


def put(index: Connection, rows: CardRows) -> None:
    """Write the rows of one attempt, and remove its earlier rows."""
    job = _storable(asdict(rows.job))
    names = ("cluster", "job_id", "restart")
    same = [JOBS.c[name] == job[name] for name in names]
    if old := index.scalars(select(JOBS.c.key).where(*same)).all():
        _delete(index, list(old))
    made = index.execute(insert(JOBS).values(job)).inserted_primary_key
    key = made[0] if made else None
    nodes = [_storable({"name": one.node}) for one in rows.nodes]
    dialect = postgresql if index.dialect.name == "postgresql" else sqlite
    # In one order, so that two who write new names at the same time do not wait for each other.
    ordered = sorted(nodes, key=lambda one: str(one["name"]))
    _insert(index, dialect.insert(NODES).on_conflict_do_nothing(), ordered)
    node = select(NODES.c.id).where(NODES.c.name == bindparam("name_")).scalar_subquery()
    _insert(
        index,
        insert(JOB_NODES).values(job=key, node=node),
        [
            {"name_": name["name"], "local": one.local, "named": int(one.named)}
            for name, one in zip(nodes, rows.nodes, strict=True)
        ],
    )
    entities = [_storable(asdict(one)) for one in rows.entities]
    _insert(index, insert(ENTITIES), [{"job": key, **one} for one in entities])
    kinds = [_storable(asdict(one)) for one in rows.kinds]
    _insert(
        index, insert(KINDS), [{"job": key, **_storable(one.pop("key")), **one} for one in kinds]
    )


def put_if_taken(index: Connection, rows: CardRows) -> bool:
    """Do the same; False: the engine refuses the rows, and nothing has changed."""
    try:
        with index.begin_nested():
            put(index, rows)
    except (DataError, IntegrityError, OverflowError):
        return False
    return True


def forget_all(index: Connection, cluster: str = "") -> None:
    """Remove all rows of a cluster; without a name, of all.

    From here on the transaction has no time limit.
    """
    if index.dialect.name == "postgresql":
        index.exec_driver_sql("SET LOCAL statement_timeout = 0")
    ours = [JOBS.c.cluster == cluster] if cluster else []
    for table in OF_JOB:
        index.execute(delete(table).where(table.c.job.in_(select(JOBS.c.key).where(*ours))))
    index.execute(delete(JOBS).where(*ours))


def forget(index: Connection, job_ids: Iterable[int], cluster: str = "") -> set[int]:
    """Remove all rows of these jobs (`cluster`: of this one only); return their users' uids."""
    wanted = select(JOBS.c.key, JOBS.c.uid).where(JOBS.c.job_id.in_(list(job_ids)))
    if cluster:
        wanted = wanted.where(JOBS.c.cluster == cluster)
    found = index.execute(wanted).all()
    if found:
        _delete(index, [key for key, _ in found])
    return {uid for _, uid in found if uid is not None}
