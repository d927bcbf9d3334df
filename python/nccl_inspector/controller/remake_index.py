# SPDX-License-Identifier: Apache-2.0
"""Make the whole index anew: from the stored reports, or from the index in another engine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection

from nccl_inspector.controller.stored_rows import all_stored, group_id
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_users, forget_all, put, put_if_taken, reading, writing
from nccl_inspector.store.place import INDEX, IndexPlace, index_of
from nccl_inspector.store.read_back import all_rows
from nccl_inspector.store.sqlite_file import writing_file
from nccl_inspector.summary.job_objects import REPORTS, fetch_job, jobs_in, object_store

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


def rebuild(config: Config) -> tuple[int, int]:
    """Make a new index of all stored reports; return how many it has, and how many were unusable.

    Reports in an object store are fetched into store_dir first.

    Raises:
        OSError, InspectorError: it could not be made, and the old index stays.
    """
    place, gid = index_of(config), group_id(config.report_group)
    if objects := object_store(config):
        for job_id, _ in jobs_in(objects, REPORTS):
            fetch_job(objects, REPORTS, config.store_dir, job_id)
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
