# SPDX-License-Identifier: Apache-2.0
"""Take away access to reports from a new user of a uid that another user had before.

A child does this work. If a uid belongs to another user name today, its former jobs' directories
can no longer be read by that uid, and the uid is removed from the rows of the jobs. Root and
report_group still see all.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, select, update

from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.stored_rows import group_id
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.wording import number
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_user, writing
from nccl_inspector.store.owner import has_name, is_owner
from nccl_inspector.store.place import index_of, user_index
from nccl_inspector.store.tables import JOBS
from nccl_inspector.summary.directory import COMPONENTS_MAX, peek
from nccl_inspector.system.acl import allow
from nccl_inspector.system.safe_files import open_directory

GO_S = 20.0


@dataclass(frozen=True, slots=True)
class JobDirs:
    """A directory with a subdirectory for each job, and the group that may read these."""

    directory: Path
    gid: int | None


def _former(
    index: Connection, ours: Sequence[ColumnElement[bool]], by_name: bool
) -> Iterator[tuple[int, str]]:
    """Yield the uid and name of users who no longer have that uid.

    `by_name`: also those whose name is another uid's now. Files are shown to a uid, rows of a
    database to a name.
    """
    known = select(JOBS.c.uid, JOBS.c.user).where(JOBS.c.uid.is_not(None), *ours).distinct()
    for uid, user in index.execute(known).all():
        if not is_owner(uid, user) or (by_name and not has_name(uid, user)):
            yield uid, user


def _close(job_id: int, place: JobDirs) -> None:
    """Allow only the owner and the group into a job's directory. Raises OSError."""
    with suppress(FileNotFoundError):
        fd = open_directory(place.directory / str(job_id))
        try:
            allow(fd, 0o7, None, 0o5, place.gid)
        finally:
            os.close(fd)


def _components(leader: int, report_dir: Path) -> list[int]:
    """Return the job and, if it is heterogeneous, its other components that have summaries."""
    heads = [*peek(leader, report_dir), *peek(leader + 1, report_dir)]
    if not any(head.het_job_id == str(leader) for head in heads):
        return [leader]
    others = range(leader + 1, leader + COMPONENTS_MAX)
    return [
        leader,
        *(
            job_id
            for job_id in others
            if any(head.het_job_id == str(leader) for head in peek(job_id, report_dir))
        ),
    ]


@dataclass(slots=True)
class Revoked:
    """What was done: the uids, the number of jobs, and what went wrong, as text."""

    uids: set[int]
    jobs: int = 0
    problem: str = ""


def revoke_former(
    index: Connection, store: JobDirs, summaries: JobDirs, due_s: float, cluster: str = ""
) -> Revoked:
    """Take the reports of former users away from their uids, until `due_s` (time.monotonic()).

    `cluster`: the jobs of this one only, if the index is in a database. If a directory of a job
    could not be closed, the job keeps its uid and is tried again next time.
    """
    done = Revoked(set())
    ours = [JOBS.c.cluster == cluster] if cluster else []
    for uid, user in _former(index, ours, bool(cluster)):
        its = select(JOBS.c.key, JOBS.c.job_id).where(JOBS.c.uid == uid, JOBS.c.user == user, *ours)
        for key, job_id in index.execute(its).all():
            if time.monotonic() >= due_s:
                return done
            try:
                _close(job_id, store)
                for component in _components(job_id, summaries.directory):
                    _close(component, summaries)
            except OSError as err:
                done.problem = f"{err.filename or job_id}: {err.strerror}"
                continue
            index.execute(update(JOBS).where(JOBS.c.key == key).values(uid=None))
            done.uids.add(uid)
            done.jobs += 1
    return done


def revoke(config: Config) -> Outcome:
    """Close the reports and summaries of former users of uids; LATER: something is left to do."""
    place = index_of(config)
    try:
        if not place.is_there:
            return Outcome(DONE)
        gid = group_id(config.report_group)
        store, summaries = JobDirs(config.store_dir, gid), JobDirs(config.report_dir, None)
        with writing(place, gid) as index:
            due_s = time.monotonic() + GO_S
            done = revoke_former(index, store, summaries, due_s, place.cluster)
        for uid in sorted(done.uids):
            with suppress(FileNotFoundError):  # the new user's next job makes another
                user_index(config.store_dir, uid).unlink()
            export_user(place, uid, gid)
    except OSError as err:
        return Outcome(LATER, f"{err.filename or config.store_dir}: {err.strerror}")
    except InspectorError as err:
        return Outcome(LATER, str(err))
    if done.problem:
        return Outcome(LATER, f"reports of a former user stay readable: {done.problem}")
    said = f"{number(done.jobs, 'job')} of former owners of a uid closed" if done.jobs else ""
    return Outcome(DONE, said)
