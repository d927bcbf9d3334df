# SPDX-License-Identifier: Apache-2.0
"""Remove node summaries and reports that are too old from the site's object store.

The age of a job is that of its newest object, by the clock of the store and by ours: both must say
that it is too old. A store with many jobs is looked at in parts, and each call goes on where the
last one stopped.
"""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.controller.queue import STATE
from nccl_inspector.summary.job_objects import jobs_in
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.object_store import ObjectStore
from nccl_inspector.system.safe_files import open_directory

_CLOCK = "clock/now"
_DAY_S = 86400.0
_REMOVED_MAX = 1000  # objects that one request removes


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many jobs' objects were removed, and whether the time was over before the end."""

    jobs: int
    is_over: bool


def _store_time_s(objects: ObjectStore) -> float:
    """Return the time of the store's own clock, Unix seconds. Raises OSError."""
    objects.put(_CLOCK, b"now")
    # A listing that lacks it yet: nothing is old.
    return max((one.written_s for one in objects.list(_CLOCK.partition("/")[0])), default=0.0)


def _place(controller_dir: Path, shelf: str) -> Path:
    return controller_dir / STATE / f"pruned-{shelf}"


def _come_to(controller_dir: Path, shelf: str) -> str | None:
    """Return the key behind which to go on, or None to begin."""
    try:
        return _place(controller_dir, shelf).read_text("utf-8") or None
    except (OSError, ValueError):
        return None


def _note(controller_dir: Path, shelf: str, key: str) -> None:
    """Note the key behind which the next call goes on; empty: at the beginning. Raises OSError."""
    place = _place(controller_dir, shelf)
    dir_fd = open_directory(place.parent)
    try:
        replace_file(dir_fd, place.name, key.encode(), 0o640)
    finally:
        os.close(dir_fd)


def prune_objects(
    objects: ObjectStore, shelf: str, days: int, now_s: float, kept: Collection[int],
    controller_dir: Path, due_s: float,
) -> Pruned:  # fmt: skip
    """Remove the jobs of a shelf that are over `days` days old, except `kept`.

    It stops at `due_s` (time.monotonic()), but looks at some jobs at least.

    Raises:
        OSError: the store does not answer or refuses, or our place in it cannot be noted.
    """
    limit_s = min(now_s, _store_time_s(objects)) - days * _DAY_S
    jobs, last = 0, ""
    old: list[str] = []
    is_over = False
    for job_id, its in jobs_in(objects, shelf, _come_to(controller_dir, shelf)):
        if max(one.written_s for one in its) < limit_s and job_id not in kept:
            old += [one.key for one in its]
            jobs += 1
        last = its[-1].key
        if len(old) >= _REMOVED_MAX or time.monotonic() >= due_s:
            objects.remove(old)
            old = []
        is_over = time.monotonic() >= due_s
        if is_over:
            break
    if old:
        objects.remove(old)
    _note(controller_dir, shelf, last if is_over else "")
    return Pruned(jobs, is_over)
