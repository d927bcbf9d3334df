# SPDX-License-Identifier: Apache-2.0
"""Make the whole index anew: from the stored reports, or from the index in another engine."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from sqlalchemy import Connection

from nccl_inspector.controller.stored_rows import all_stored, group_id
from nccl_inspector.errors import RefusedError
from nccl_inspector.render.json import card_from_json
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_users, forget_all, put, put_if_taken, reading, writing
from nccl_inspector.store.owner import is_owner
from nccl_inspector.store.place import INDEX, IndexPlace, index_of
from nccl_inspector.store.read_back import all_rows
from nccl_inspector.store.sqlite_file import writing_file
from nccl_inspector.summary.job_objects import OBJECT_BYTES_MAX, REPORTS, jobs_in, object_store
from nccl_inspector.system.object_store import ObjectStore, StoredObject
from nccl_inspector.system.write_as_user import Target, write_report_file

FILE = "file"  # the target that is the file in store_dir


@contextmanager
def _anew(place: IndexPlace, gid: int | None) -> Iterator[Connection]:
    """Give an index without our jobs; it takes the place of the old one at the end."""
    if place.url:
        with writing(place, gid) as index:
            forget_all(index, place.cluster)
            yield index
        return
    beside = place.file.with_name(f".{INDEX}.new")
    for leftover in (beside, Path(f"{beside}-journal")):
        leftover.unlink(missing_ok=True)
    with writing_file(beside, gid) as index:
        yield index
    # A journal of a writer that was killed: SQLite would apply it to the new file.
    Path(f"{place.file}-journal").unlink(missing_ok=True)
    beside.rename(place.file)


def _fetch_missing(
    objects: ObjectStore, job_id: int, its: Sequence[StoredObject], config: Config, gid: int | None
) -> None:
    """Fetch the reports of a job that are not in store_dir, with their times and readers.

    Raises:
        OSError: the store does not answer, or a file cannot be written.
    """
    folder, reader = config.store_dir / str(job_id), None
    # The JSON first: it says whose the report is.
    for one in sorted(its, key=lambda one: not one.key.endswith(".json")):
        name = one.key.rpartition("/")[2]
        if (folder / name).exists():
            continue
        file = BytesIO()
        objects.fetch(one.key, file, OBJECT_BYTES_MAX)
        if name.endswith(".json"):
            with suppress(RefusedError):
                job = card_from_json(file.getvalue()).job
                reader = job.uid if job.uid is not None and is_owner(job.uid, job.user) else None
        write_report_file(Target(config.store_dir, job_id, name, reader, gid), file.getvalue())
        for path in (folder / name, folder):
            os.utime(path, (one.written_s, one.written_s))


def rebuild(config: Config) -> tuple[int, int]:
    """Make a new index of all stored reports; return how many it has, and how many were unusable.

    Reports in an object store are fetched into store_dir first.

    Raises:
        OSError, InspectorError: it could not be made, and the old index stays.
    """
    place, gid = index_of(config), group_id(config.report_group)
    if objects := object_store(config):
        for job_id, its in jobs_in(objects, REPORTS):
            _fetch_missing(objects, job_id, its, config, gid)
    uids: set[int | None] = set()
    done = refused = 0
    with _anew(place, gid) as index:
        for rows in all_stored(place):
            if rows is None or not put_if_taken(index, rows):
                refused += 1
                continue
            uids.add(rows.job.uid)
            done += 1
    export_users(place, uids, gid)
    return done, refused


def move(config: Config, target: str, say: Callable[[int], None] = lambda _done: None) -> int:
    """Copy our jobs from the site's index to another engine; return how many.

    `target`: an URL as in store_url, or FILE. What the target had of our jobs is replaced. `say`
    is called from time to time with the number of jobs so far. The old index stays as it is.

    Raises:
        OSError, InspectorError: the target was not changed.
    """
    source, gid = index_of(config), group_id(config.report_group)
    place = index_of(replace(config, store_url="" if target == FILE else target))
    uids: set[int | None] = set()
    done = 0
    with reading(source) as (old, _), _anew(place, gid) as index:
        for rows in all_rows(old, source.cluster):
            named = replace(rows.job, cluster=place.cluster or rows.job.cluster)
            put(index, replace(rows, job=named))
            uids.add(named.uid)
            done += 1
            if done % 1000 == 0:
                say(done)
    export_users(place, uids, gid)
    return done
