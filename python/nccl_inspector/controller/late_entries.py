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
from nccl_inspector.store.index import export_users, put_if_taken, writing
from nccl_inspector.store.place import index_of

GO_S = 20.0  # no report is made during this time
_BATCH = 50
_JOBS_SHOWN = 5


def enter(config: Config) -> Outcome:
    """Enter the reports that were noted, the newest first; LATER: some are left."""
    due_s, done, refused = time.monotonic() + GO_S, 0, list[int]()
    try:
        newest_first = sorted(noted(config.controller_dir), reverse=True)
        for first in range(0, len(newest_first), _BATCH):
            if time.monotonic() >= due_s:
                return Outcome(LATER, "")
            done += _enter_some(config, newest_first[first : first + _BATCH], refused)
    except InspectorError as err:
        return Outcome(LATER, str(err))
    except OSError as err:
        return Outcome(LATER, f"{err.filename or config.store_dir}: {err.strerror}")
    if refused:
        jobs = ", ".join(map(str, refused[:_JOBS_SHOWN]))
        return Outcome(
            LATER, f"the index refuses the rows of {number(len(refused), 'job')}: {jobs}"
        )
    return Outcome(DONE, f"{number(done, 'report')} entered into the index later" if done else "")


def _enter_some(config: Config, batch: list[tuple[int, int]], refused: list[int]) -> int:
    """Enter a few reports, then remove their notes; return how many could be read.

    A report that the engine refuses is added to `refused`. Its note stays, for the doctor.
    """
    place, gid = index_of(config), group_id(config.report_group)
    uids, settled = [], []
    with writing(place, gid) as index:
        for job_id, attempt in batch:
            try:
                rows = stored_rows(config.store_dir / f"{job_id}" / f"{attempt}.json", place)
            except (FileNotFoundError, RefusedError):
                settled.append((job_id, attempt))  # removed meanwhile, or nobody can read it
                continue
            if put_if_taken(index, rows):
                uids.append(rows.job.uid)
                settled.append((job_id, attempt))
            else:
                refused.append(job_id)
    export_users(place, uids, gid)
    for job_id, attempt in settled:
        settle(config.controller_dir, job_id, attempt)
    return len(uids)
