# SPDX-License-Identifier: Apache-2.0
"""Reports that are stored and are not in the index yet, because it could not be written then.

An index may be down, full or locked for days. Reports do not wait for it: a note in controller_dir
says which are to be entered, and a child of the service does so when the index is back.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.queue import STATE
from nccl_inspector.controller.stored_rows import group_id, stored_rows
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.wording import number
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_user, index_of, put, writing

GO_S = 20.0  # no report is made during this time
_FOLDER = f"{STATE}/unentered"
_NAME = re.compile(r"([1-9][0-9]{0,9})\.([0-9]{1,9})")  # job and attempt
_BATCH = 50


def note(controller_dir: Path, job_id: int, attempt: int) -> None:
    """Note that a report is to be entered. Raises OSError: it is not noted."""
    folder = controller_dir / _FOLDER
    folder.mkdir(mode=0o750, exist_ok=True)
    (folder / f"{job_id}.{attempt}").touch()


def _noted(controller_dir: Path) -> Iterator[tuple[int, int]]:
    with suppress(FileNotFoundError):
        for path in (controller_dir / _FOLDER).iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), int(match[2])


def are_noted(controller_dir: Path) -> bool:
    """Tell whether there are reports to be entered."""
    with suppress(OSError):
        return next(_noted(controller_dir), None) is not None
    return False


def enter(config: Config) -> Outcome:
    """Enter the reports that were noted, the newest first; LATER: some are left."""
    due_s, done = time.monotonic() + GO_S, 0
    try:
        noted = sorted(_noted(config.controller_dir), reverse=True)
        for first in range(0, len(noted), _BATCH):
            if time.monotonic() >= due_s:
                return Outcome(LATER, "")
            batch = noted[first : first + _BATCH]
            done += _enter_some(config, batch)
    except InspectorError as err:
        return Outcome(LATER, str(err))
    except OSError as err:
        return Outcome(LATER, f"{err.filename or config.store_dir}: {err.strerror}")
    return Outcome(DONE, f"{number(done, 'report')} entered into the index later" if done else "")


def _enter_some(config: Config, batch: list[tuple[int, int]]) -> int:
    """Enter a few reports, then remove their notes; return how many could be read."""
    place, gid = index_of(config), group_id(config.report_group)
    uids: set[int] = set()
    done = 0
    with writing(place, gid) as index:
        for job_id, attempt in batch:
            try:
                rows = stored_rows(config.store_dir / f"{job_id}" / f"{attempt}.json", place)
            except (FileNotFoundError, RefusedError):
                continue  # removed meanwhile, or nobody can read it
            put(index, rows)
            done += 1
            if rows.job.uid is not None:
                uids.add(rows.job.uid)
    for uid in sorted(uids):
        export_user(place, uid, gid)
    for job_id, attempt in batch:
        (config.controller_dir / _FOLDER / f"{job_id}.{attempt}").unlink(missing_ok=True)
    return done
