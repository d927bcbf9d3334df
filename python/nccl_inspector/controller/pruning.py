# SPDX-License-Identifier: Apache-2.0
"""Remove node summaries and stored reports that are older than the site keeps them.

Some are removed at a time, between reports, and in the site's object store, too
(object_pruning.py). The age of a job is that of its directory. It is counted from the clock, but at
most from a day after the newest directory. Nothing is removed until the clock has run for some
hours without a jump, also over restarts. Removed files cannot be restored, so a clock that was set
ahead must not remove them.
"""

import os
import random
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nccl_inspector.controller.object_pruning import Pruned, prune_objects
from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.queue import STATE
from nccl_inspector.controller.stored_rows import group_id
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.model.wording import number
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_user, forget, writing
from nccl_inspector.store.place import index_of, user_index
from nccl_inspector.summary.job_objects import REPORTS, SUMMARIES, object_store
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.remove_tree import remove_tree
from nccl_inspector.system.safe_files import entry_names

GO_S = 20.0  # no report is made during this time
STEADY_S, BREAK_S = 6 * 3600.0, 2 * 86400.0
# In controller_dir: the time from which the clock has run steadily, and the time of the last look.
CLOCK = f"{STATE}/clock"
_DAY_S = 86400.0
_STEP_S = 60.0  # backwards: corrections of a clock are usually that small
_BATCH = 100


def _is_steady(controller_dir: Path, now_s: float) -> bool:
    """Note the time of this look; tell whether the clock has run without a jump for STEADY_S."""
    try:
        since_s, last_s = map(float, (controller_dir / CLOCK).read_text("ascii").split())
    except (OSError, ValueError):
        since_s, last_s = now_s, now_s
    if not last_s - _STEP_S <= now_s <= last_s + BREAK_S:
        since_s = now_s
    clock = controller_dir / CLOCK
    with _opened(clock.parent) as dir_fd:
        replace_file(dir_fd, clock.name, f"{since_s:.0f} {now_s:.0f}\n".encode(), 0o640)
    return now_s - since_s >= STEADY_S


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Give a descriptor of an administrator's directory, which may be a link."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class _JobShelf:
    """The directories of jobs in one directory."""

    def __init__(self, directory: Path, dir_fd: int, due_s: float) -> None:
        """Change nothing yet; `due_s` (time.monotonic()) is when to stop."""
        self._directory, self._dir_fd, self._due_s = directory, dir_fd, due_s
        self.removed = 0
        self.problems: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether the time for this call of `prune` is over."""
        return time.monotonic() >= self._due_s

    def _time_of(self, name: str) -> float | None:
        try:
            status = os.stat(name, dir_fd=self._dir_fd, follow_symlinks=False)
        except OSError:
            return None  # removed meanwhile
        return status.st_mtime if stat.S_ISDIR(status.st_mode) else None

    def find_old(self, days: int, now_s: float, kept: Collection[int]) -> dict[str, float]:
        """Return the jobs that are too old, with their times, the oldest first.

        If there are too many for the time, they are a random part.
        """
        names = [name for name in entry_names(self._dir_fd) if JOB_ID.fullmatch(name)]
        random.shuffle(names)  # so that each has a chance, even if there are too many
        times: dict[str, float] = {}
        for name in names:
            at_s = self._time_of(name)
            if at_s is not None:
                times[name] = at_s
            if self.is_over:
                break
        limit_s = min(now_s, max(times.values(), default=0.0) + _DAY_S) - days * _DAY_S
        old = {
            name: at_s for name, at_s in times.items() if at_s < limit_s and int(name) not in kept
        }
        return dict(sorted(old.items(), key=lambda item: item[1]))

    def remove(self, name: str, at_s: float) -> None:
        """Remove a job's directory, unless it has changed since it was looked at."""
        if self._time_of(name) != at_s:
            return
        try:
            remove_tree(name, self._dir_fd)
            self.removed += 1
        except OSError as err:
            self.problems.append(f"{self._directory / name}: {err.strerror}")


def _forget(names: Sequence[str], config: Config) -> None:
    """Remove jobs from the index, because all jobs in it must have a report.

    Raises:
        InspectorError, OSError: nothing was changed.
    """
    place, gid = index_of(config), group_id(config.report_group)
    if not place.is_there:
        return
    with writing(place, gid) as index:
        uids = forget(index, map(int, names), place.cluster)
    for uid in sorted(uids):
        try:
            export_user(place, uid, gid)
        except (InspectorError, OSError):
            # It must not list removed reports; the user's next job makes a new one.
            with suppress(OSError):
                user_index(config.store_dir, uid).unlink()


def _prune_one(
    directory: Path, days: int, now_s: float, kept: Collection[int], store: Config | None
) -> _JobShelf:
    """Remove the directories that are too old; `store`: given if `directory` has the reports.

    Raises:
        InspectorError, OSError: nothing more can be done here now.
    """
    with _opened(directory) as dir_fd:
        shelf = _JobShelf(directory, dir_fd, time.monotonic() + GO_S / 2)
        old = list(shelf.find_old(days, now_s, kept).items())
        for first in range(0, len(old), _BATCH):
            if shelf.is_over:
                break
            batch = old[first : first + _BATCH]
            if store:
                _forget([name for name, _ in batch], store)
            for name, at_s in batch:
                shelf.remove(name, at_s)
        return shelf


def _prune_objects_of(
    shelf: str, config: Config, days: int, now_s: float, kept: Collection[int]
) -> Pruned:
    """Do the same in the object store, if there is one. Raises InspectorError and OSError."""
    objects = object_store(config)
    if objects is None:
        return Pruned(0, False)
    due_s = time.monotonic() + GO_S / 2
    return prune_objects(objects, shelf, days, now_s, kept, config.controller_dir, due_s)


def prune(config: Config, now_s: float, kept: Collection[int] = ()) -> Outcome:
    """Remove what is too old, except the jobs `kept`; LATER: there is more to do, or a problem."""
    said: list[str] = []
    problems: list[str] = []
    over = False
    try:
        if not _is_steady(config.controller_dir, now_s):
            return Outcome(DONE)
    except OSError as err:
        return Outcome(LATER, f"nothing old is removed: {config.controller_dir}: {err.strerror}")
    for what, objects_of, directory, days, store in (
        ("node summaries of", SUMMARIES, config.report_dir, config.summary_days, None),
        ("reports of", REPORTS, config.store_dir, config.report_days, config),
    ):
        if not days:
            continue
        try:
            shelf = _prune_one(directory, days, now_s, kept, store)
            over |= shelf.is_over
            problems += shelf.problems
            removed = shelf.removed
            pruned = _prune_objects_of(objects_of, config, days, now_s, kept)
            over |= pruned.is_over
            removed = max(removed, pruned.jobs)
        except OSError as err:
            problems.append(f"{err.filename or directory}: {err.strerror}")
        except InspectorError as err:
            problems.append(str(err))
        else:
            if removed:
                said.append(f"removed: {what} {number(removed, 'job')}, over {days} days old")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        said.append(f"cannot be removed: {problems[0]}{more}")
    return Outcome(LATER if over or problems else DONE, "; ".join(said))
