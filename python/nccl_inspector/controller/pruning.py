# SPDX-License-Identifier: Apache-2.0
"""Remove node summaries and stored reports that are older than the site keeps them.

A job's age is that of its directory, counted from the newest of all or from the clock, whichever
says less: a clock that was set years ahead removes nothing.
"""

import errno
import os
import re
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.card.words import number
from nccl_inspector.config import Config
from nccl_inspector.controller.making import DONE, LATER, Outcome, group_id
from nccl_inspector.errors import InspectorError
from nccl_inspector.hostile import open_directory
from nccl_inspector.jobnames import JOB_NAME
from nccl_inspector.removal import remove_tree
from nccl_inspector.store.index import INDEX, export_user, forget, writing

JOBS_MAX = 5000  # removed in one go, the oldest first
_DAY_S = 86400.0
_NEWEST_DAYS = 1  # how long the newest job counts as one that ended now
_JOB = re.compile(JOB_NAME.pattern)


@dataclass(frozen=True, slots=True)
class _Old:
    """Jobs below a directory that have been there for too long, the oldest first."""

    dir_fd: int
    names: tuple[str, ...]


def _find_old(dir_fd: int, days: int, now_s: float, kept: Collection[int]) -> _Old:
    times: dict[str, float] = {}
    with os.scandir(dir_fd) as entries:
        for entry in entries:
            if _JOB.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                times[entry.name] = entry.stat(follow_symlinks=False).st_mtime
    today_s = min(now_s, max(times.values(), default=0.0) + _NEWEST_DAYS * _DAY_S)
    old = [
        name
        for name, at_s in times.items()
        if at_s < today_s - days * _DAY_S and int(name) not in kept
    ]
    return _Old(dir_fd, tuple(sorted(old, key=lambda name: times[name])[:JOBS_MAX]))


def _remove(old: _Old) -> int:
    """Remove the directories; return how many were there."""
    removed = 0
    for name in old.names:
        try:
            remove_tree(name, old.dir_fd)
            removed += 1
        except OSError as err:
            if err.errno != errno.ENOENT:
                raise
    return removed


def _forget(names: Collection[str], config: Config) -> None:
    """Take jobs out of the index first: what is in it has a report."""
    path, gid = config.store_dir / INDEX, group_id(config.report_group)
    if not names or not path.exists():
        return
    with writing(path, gid) as index:
        uids = forget(index, map(int, names))
    for uid in sorted(uids):
        export_user(path, uid, gid)


def _prune_one(
    directory: Path, days: int, now_s: float, kept: Collection[int], store: Config | None = None
) -> int:
    """Return how many jobs went from a directory; `store`: it is that of the reports."""
    if not days:
        return 0
    dir_fd = os.open(directory.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        top_fd = open_directory(directory.name, dir_fd)
    finally:
        os.close(dir_fd)
    try:
        old = _find_old(top_fd, days, now_s, kept)
        if store:
            _forget(old.names, store)
        return _remove(old)
    finally:
        os.close(top_fd)


def prune(config: Config, now_s: float, kept: Collection[int] = ()) -> Outcome:
    """Remove what is too old but for the jobs `kept`; says how much, in words."""
    said = []
    try:
        summaries = _prune_one(config.report_dir, config.summary_days, now_s, kept)
        if summaries:
            said.append(
                f"node summaries of {number(summaries, 'job')}, over {config.summary_days} days old"
            )
        reports = _prune_one(config.store_dir, config.report_days, now_s, kept, config)
        if reports:
            said.append(f"reports of {number(reports, 'job')}, over {config.report_days} days old")
    except OSError as err:
        return Outcome(LATER, f"not removed: {err.filename or config.store_dir}: {err.strerror}")
    except (InspectorError, sqlite3.Error) as err:
        return Outcome(LATER, f"not removed: {err}")
    return Outcome(DONE, f"removed: {'; '.join(said)}" if said else "")
