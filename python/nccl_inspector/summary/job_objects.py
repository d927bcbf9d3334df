# SPDX-License-Identifier: Apache-2.0
"""The files of jobs in an object store, for hosts without a file system that all share.

A key is `<shelf>/<job id>/<user>/<file>`, so that a policy of the store can give each user the
right to read what is theirs. Whoever needs the files of a job fetches them into a directory, in
which they lie as they would in report_dir or store_dir, and reads them there.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.directory import COMPONENTS_MAX, SummaryFile, peek, summary_files
from nccl_inspector.system.atomic import replace_file, replacing
from nccl_inspector.system.object_store import ObjectStore, StoredObject
from nccl_inspector.system.parallel import in_parallel

SUMMARIES, REPORTS = "summaries", "reports"
FETCHED = ".fetched"  # in a job's directory: the version of each file, as JSON
_PLAIN = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")


def object_store(config: Config) -> ObjectStore | None:
    """Return the site's object store, or None if it has none.

    Raises:
        InspectorError: a setting is wrong, or the library is missing.
    """
    return ObjectStore(config.object_url, config.object_keys) if config.object_url else None


def user_word(user: str, uid: int | None) -> str:
    """Return what stands for a user in a key: the name, or the uid if the name is not plain."""
    return user if _PLAIN.fullmatch(user) else f"uid-{uid}"


def key_of(shelf: str, job_id: int, user: str, file: str) -> str:
    """Return the key of a file; `user`: from `user_word`."""
    return f"{shelf}/{job_id}/{user}/{file}"


def job_of(key: str) -> int | None:
    """Return the job id in a key, or None if the object is not ours."""
    parts = key.split("/")
    if len(parts) != 4 or parts[0] not in (SUMMARIES, REPORTS) or not JOB_ID.fullmatch(parts[1]):
        return None
    return int(parts[1]) if all(map(_PLAIN.fullmatch, parts[2:])) else None


def files_of(
    objects: ObjectStore, shelf: str, job_id: int, user: str = ""
) -> dict[str, StoredObject]:
    """Return a job's objects by file name; `user`: only this one's, as a policy may demand.

    If Slurm has used the job id again, two users may have a file of one name: the newer one counts.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    folder = f"{shelf}/{job_id}" + (f"/{user}" if user else "")
    found: dict[str, StoredObject] = {}
    for one in objects.list(folder):
        name = one.key.rpartition("/")[2]
        if job_of(one.key) == job_id:
            known = found.get(name)
            found[name] = one if known is None or one.written_s >= known.written_s else known
    return found


def _versions(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / FETCHED).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fetch_job(objects: ObjectStore, shelf: str, into: Path, job_id: int, user: str = "") -> None:
    """Fetch a job's files into `into/<job id>/`, except those that lie there already.

    Raises:
        OSError: the store does not answer or refuses, or a file cannot be written.
    """
    there = files_of(objects, shelf, job_id, user)
    if not there:
        return
    folder = into / str(job_id)
    known = _versions(folder)
    wanted = {
        name: one
        for name, one in there.items()
        if known.get(name) != one.version or not (folder / name).exists()
    }
    if not wanted:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:

        def fetch(name: str) -> None:
            # One that was removed meanwhile was too old.
            with suppress(FileNotFoundError), replacing(dir_fd, name) as file:
                objects.fetch(wanted[name].key, file)

        for _ in in_parallel(fetch, list(wanted)):
            pass
        versions = known | {name: one.version for name, one in wanted.items()}
        replace_file(dir_fd, FETCHED, json.dumps(versions).encode(), 0o600)
    finally:
        os.close(dir_fd)


def fetch_jobs(
    objects: ObjectStore, shelf: str, into: Path, job_ids: Iterable[int], user: str = ""
) -> None:
    """Fetch the files of several jobs, as `fetch_job` does. Raises OSError."""
    ids = list(dict.fromkeys(job_ids))
    for _ in in_parallel(partial(fetch_job, objects, shelf, into, user=user), ids):
        pass


def written_objects(
    objects: ObjectStore, job_ids: Iterable[int]
) -> dict[int, dict[SummaryFile, int] | InspectorError]:
    """Return the summaries of each job id and when they were written (Unix nanoseconds).

    It is for an object store what directory.written is for a directory. Raises OSError.
    """
    ids = list(dict.fromkeys(job_ids))
    listed = in_parallel(partial(files_of, objects, SUMMARIES), ids)
    return {
        job_id: {
            file: int(found[file.name].written_s * 1e9) for file in summary_files(job_id, found)
        }
        for job_id, found in zip(ids, listed, strict=True)
    }


def fetch_attempts(objects: ObjectStore, into: Path, job_id: int, user: str = "") -> None:
    """Fetch all summaries that may belong to a job: for a heterogeneous one, of all components.

    `user`: as in `files_of`. Raises OSError.
    """
    fetch_job(objects, SUMMARIES, into, job_id, user)
    heads = peek(job_id, into)
    leaders = {int(one.het_job_id) for one in heads if JOB_ID.fullmatch(one.het_job_id)}
    if not leaders and not (into / str(job_id)).exists():
        leaders = {job_id}  # a leader that did not itself use NCCL
    for leader in leaders:
        fetch_jobs(objects, SUMMARIES, into, range(leader, leader + COMPONENTS_MAX), user)


def jobs_in(
    objects: ObjectStore, shelf: str, after: str | None = None
) -> Iterator[tuple[int, list[StoredObject]]]:
    """Yield each job of a shelf with its objects; `after`: only what comes after this key.

    Raises:
        OSError: the store does not answer, or refuses.
    """
    found: dict[int, list[StoredObject]] = defaultdict(list)
    for one in objects.list(shelf, after):
        job_id = job_of(one.key)
        if job_id is None:
            continue
        if found and job_id not in found:
            yield from found.items()
            found.clear()
        found[job_id].append(one)
    yield from found.items()
