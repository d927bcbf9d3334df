# SPDX-License-Identifier: Apache-2.0
"""Enter reports into the index that could not be written when they were stored; in a child.

An index may be down, full or locked for days. Reports do not wait for it: a note says which are to
be entered (unentered.py).
"""

import time

from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.controller.stored_rows import group_id, stored_rows
from nccl_inspector.controller.unentered import noted, settle
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.wording import number
from nccl_inspector.settings.config import Config
from nccl_inspector.store.errors import UnstorableError
from nccl_inspector.store.index import export_users, put, writing
from nccl_inspector.store.place import index_of

GO_S = 20.0  # no report is made during this time
_BATCH = 50


def enter(config: Config) -> Outcome:
    """Enter the reports that were noted, the newest first; LATER: some are left."""
    due_s, done, refused = time.monotonic() + GO_S, 0, ""
    try:
        newest_first = sorted(noted(config.controller_dir), reverse=True)
        for first in range(0, len(newest_first), _BATCH):
            if time.monotonic() >= due_s:
                return Outcome(LATER, "")
            batch = newest_first[first : first + _BATCH]
            try:
                done += _enter_some(config, batch)
            except UnstorableError:
                entered, why = _enter_each(config, batch)
                done, refused = done + entered, refused or why
    except InspectorError as err:
        return Outcome(LATER, str(err))
    except OSError as err:
        return Outcome(LATER, f"{err.filename or config.store_dir}: {err.strerror}")
    if refused:
        return Outcome(LATER, refused)
    return Outcome(DONE, f"{number(done, 'report')} entered into the index later" if done else "")


def _enter_each(config: Config, batch: list[tuple[int, int]]) -> tuple[int, str]:
    """Enter a few reports one by one; return how many, and why another was refused.

    The note of one that is refused stays, so that the doctor tells of it.
    """
    done, why = 0, ""
    for job_id, attempt in batch:
        try:
            done += _enter_some(config, [(job_id, attempt)])
        except UnstorableError as err:
            why = why or f"job {job_id}: {err}"
    return done, why


def _enter_some(config: Config, batch: list[tuple[int, int]]) -> int:
    """Enter a few reports, then remove their notes; return how many could be read."""
    place, gid = index_of(config), group_id(config.report_group)
    uids = []
    with writing(place, gid) as index:
        for job_id, attempt in batch:
            try:
                rows = stored_rows(config.store_dir / f"{job_id}" / f"{attempt}.json", place)
            except (FileNotFoundError, RefusedError):
                continue  # removed meanwhile, or nobody can read it
            uids.append(put(index, rows))
    export_users(place, uids, gid)
    for job_id, attempt in batch:
        settle(config.controller_dir, job_id, attempt)
    return len(uids)
