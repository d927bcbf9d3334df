# SPDX-License-Identifier: Apache-2.0
"""The files of jobs in an object store, for hosts without a file system that all share.

A key is `<shelf>/<job id>/<user>/<file>`, so that a policy of the store can give each user the
right to read what is theirs. Whoever needs the files of a job fetches them into a directory, in
which they lie as they would in report_dir or store_dir, and reads them there.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.codec import HEAD_BYTES_MAX, decode_head
from nccl_inspector.summary.directory import COMPONENTS_MAX, SummaryFile, peek, summary_files
from nccl_inspector.system.atomic import replacing
from nccl_inspector.system.object_store import ObjectStore, StoredObject
from nccl_inspector.system.parallel import in_parallel

SUMMARIES, REPORTS = "summaries", "reports"
FETCHED = ".fetched"  # in a job's directory: lines with file and version, the last one counts
OBJECT_BYTES_MAX = 256 << 20  # of a summary, or of a form of a report
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
    """Return the version of each file that was fetched into a job's directory."""
    try:
        lines = (folder / FETCHED).read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return {name: version for name, tab, version in (line.partition("\t") for line in lines) if tab}


def _is_there(path: Path, one: StoredObject) -> bool:
    """Tell whether a file has the size of its object: a crash may have left less."""
    try:
        return path.stat().st_size == one.size_bytes
    except OSError:
        return False


class _Wanted(NamedTuple):
    """An object to be fetched into a job's directory."""

    folder: Path
    name: str
    one: StoredObject


def _missing(folder: Path, there: Mapping[str, StoredObject]) -> list[_Wanted]:
    known = _versions(folder)
    return [
        _Wanted(folder, name, one)
        for name, one in there.items()
        if known.get(name) != one.version or not _is_there(folder / name, one)
    ]


def _fetch(objects: ObjectStore, wanted: _Wanted) -> OSError | None:
    """Fetch one object; return what went wrong. What is there is noted, whatever happens later."""
    folder, name, one = wanted
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with replacing(dir_fd, name) as file:
                objects.fetch(one.key, file, OBJECT_BYTES_MAX)
            # Its age, but not later than now by our clock, with which it will be compared.
            at_s = min(one.written_s, time.time())
            os.utime(name, (at_s, at_s), dir_fd=dir_fd)
        finally:
            os.close(dir_fd)
        with (folder / FETCHED).open("a", encoding="utf-8") as noted:
            noted.write(f"{name}\t{one.version}\n")
    except OSError as err:
        if isinstance(err, FileNotFoundError) and err.filename == f"{objects.url}/{one.key}":
            return None  # it was removed meanwhile, because it was too old
        return err if err.filename else OSError(err.errno, err.strerror, str(folder / name))
    return None


def _listed(
    objects: ObjectStore, shelf: str, user: str, job_id: int
) -> dict[str, StoredObject] | OSError:
    try:
        return files_of(objects, shelf, job_id, user)
    except OSError as err:
        return err


def fetch_jobs(
    objects: ObjectStore, shelf: str, into: Path, job_ids: Iterable[int], user: str = ""
) -> dict[int, OSError]:
    """Fetch jobs' files into `into/<job id>/`, except those that lie there already.

    Return what went wrong, by job. `user`: as in `files_of`. If it is ended before its end, the
    next call goes on. The threads are those of one call of `in_parallel` at a time: the unit limits
    their number.
    """
    ids = list(dict.fromkeys(job_ids))
    problems: dict[int, OSError] = {}
    wanted: list[tuple[int, _Wanted]] = []
    listed = in_parallel(partial(_listed, objects, shelf, user), ids)
    for job_id, there in zip(ids, listed, strict=True):
        if isinstance(there, OSError):
            problems[job_id] = there
        else:
            wanted += [(job_id, one) for one in _missing(into / str(job_id), there)]
    fetched = in_parallel(partial(_fetch, objects), [one for _, one in wanted])
    for (job_id, _), problem in zip(wanted, fetched, strict=True):
        if problem:
            problems.setdefault(job_id, problem)
    return problems


def fetch_job(objects: ObjectStore, shelf: str, into: Path, job_id: int, user: str = "") -> None:
    """Fetch one job's files, as `fetch_jobs` does.

    Raises:
        OSError: the store does not answer or refuses, or a file cannot be written.
    """
    if problem := fetch_jobs(objects, shelf, into, [job_id], user).get(job_id):
        raise problem


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


def _is_component(objects: ObjectStore, leader: int, user: str, job_id: int) -> bool:
    """Tell whether a job is a component of the heterogeneous job of this leader."""
    there = files_of(objects, SUMMARIES, job_id, user)
    for file in summary_files(job_id, there)[-1:]:
        with suppress(RefusedError):
            head = decode_head(objects.read_begin(there[file.name], HEAD_BYTES_MAX))
            return head.het_job_id == str(leader)
    return False


def fetch_attempts(objects: ObjectStore, into: Path, job_id: int, user: str = "") -> None:
    """Fetch all summaries of a job: if it is heterogeneous, those of all components.

    `user`: as in `files_of`. Raises OSError.
    """
    fetch_job(objects, SUMMARIES, into, job_id, user)
    heads = peek(job_id, into)
    leaders = {int(one.het_job_id) for one in heads if JOB_ID.fullmatch(one.het_job_id)}
    if not heads:
        leaders = {job_id}  # perhaps a leader that did not itself use NCCL
    for leader in leaders:
        others = [one for one in range(leader, leader + COMPONENTS_MAX) if one != job_id]
        are = in_parallel(partial(_is_component, objects, leader, user), others)
        components = [one for one, is_one in zip(others, are, strict=True) if is_one]
        for problem in fetch_jobs(objects, SUMMARIES, into, components, user).values():
            raise problem


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
