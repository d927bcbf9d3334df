# SPDX-License-Identifier: Apache-2.0
"""Look at the files of many jobs at once, and find what can be done for each job.

Summaries and reports are on storage that may be slow or may hang, so a child does this work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from nccl_inspector.controller.due_reports import ToDo, find_due
from nccl_inspector.controller.queue import Entry
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.directory import SummaryFile, written
from nccl_inspector.summary.job_objects import SUMMARIES, fetch_jobs, object_store
from nccl_inspector.system.parallel import in_parallel


def stored_ns(leader: int, store_dir: Path) -> dict[int, int] | InspectorError:
    """Return when each stored report of a job was written, in Unix nanoseconds by attempt.

    A report with something left to do has the time 0. If the job's directory cannot be read, the
    error is returned instead.
    """
    folder = store_dir / str(leader)
    try:
        return {
            int(path.stem): path.stat().st_mtime_ns
            for path in folder.glob("*.json")
            if path.stem.isascii() and path.stem.isdigit()
        }
    except OSError as err:
        return InspectorError(f"{err.filename or folder}: {err.strerror}")


def _with_size(
    todo: ToDo, files: Mapping[int, Mapping[SummaryFile, int]], report_dir: Path
) -> ToDo:
    """Return what can be done, with how many bytes of summaries a report that is due has."""
    if todo.due is None:
        return todo
    attempt = todo.due.attempt
    own = [one for of_job in files.values() for one in of_job if one.attempt == attempt]
    sizes = in_parallel(partial(_size, report_dir=report_dir), own)
    return replace(todo, due=replace(todo.due, size=sum(sizes)))


def _size(file: SummaryFile, report_dir: Path) -> int:
    try:
        return (report_dir / str(file.job_id) / file.name).stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def look_at(
    groups: Mapping[int, Sequence[Entry]], config: Config, now_s: float
) -> dict[int, ToDo | str]:
    """Return by leader what can be done for each job, or why that cannot be found out, as text.

    `groups`: parts of the queue, as due.group returns them. `now_s`: Unix time. Summaries in an
    object store are fetched into report_dir first.
    """
    leaders = list(groups)
    job_ids = [one.job_id for its in groups.values() for one in its]
    try:
        objects = object_store(config)
    except InspectorError as err:
        return dict.fromkeys(leaders, str(err))
    problems = fetch_jobs(objects, SUMMARIES, config.report_dir, job_ids) if objects else {}
    files = written(job_ids, config.report_dir)
    stored = in_parallel(partial(stored_ns, store_dir=config.store_dir), leaders)
    found: dict[int, ToDo | str] = {}
    for leader, done in zip(leaders, stored, strict=True):
        its = groups[leader]
        problem = next((problems[one.job_id] for one in its if one.job_id in problems), None)
        if problem:
            found[leader] = f"{problem.filename}: {problem.strerror}"
            continue
        seen = {one.job_id: files[one.job_id] for one in its}
        wrong = [one for one in (done, *seen.values()) if isinstance(one, InspectorError)]
        if wrong or isinstance(done, InspectorError):
            found[leader] = str(wrong[0])
            continue
        known = {job_id: one for job_id, one in seen.items() if not isinstance(one, InspectorError)}
        at_ns = {attempt: ns for attempt, ns in done.items() if ns}
        todo = find_due(its, known, at_ns, now_s, config.controller_wait_s)
        found[leader] = _with_size(todo, known, config.report_dir)
    return found
