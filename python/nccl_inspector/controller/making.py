# SPDX-License-Identifier: Apache-2.0
"""Make one report, store it and index it: the work of a child of the controller service.

Everything may be done twice: files are replaced, rows too, and the comment is the same again.
"""

import errno
import grp
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from nccl_inspector.controller.admincomment import Refusal, write_comment
from nccl_inspector.controller.due import Due
from nccl_inspector.controller.outcome import DONE, FAILED, LATER, Outcome
from nccl_inspector.controller.queue import Entry
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.card import Card, Job
from nccl_inspector.render.json import BYTES_MAX, card_from_json
from nccl_inspector.settings.config import Config
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import INDEX, BrokenIndexError, export_user, put, writing
from nccl_inspector.store.owner import is_owner
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.system.write_as_user import Target, write_report_file

# Since the job's end. Each try for a comment makes the report anew.
COMMENT_WAIT_S = 3600
# Of the site and not of the job: it is tried again, however often.
_SITES_ERRORS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES,
        errno.EPERM, errno.ENOENT, errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Makers:
    """What makes a card and its forms. Without `html` or `comment` that form is not made.

    `card_within`: as `card`, with so many seconds of CPU time for the job's output.
    """

    card: Callable[[Loaded], Card]
    json: Callable[[Card], bytes]
    html: Callable[[Card], bytes] | None = None
    comment: Callable[[Card], str] | None = None
    card_within: Callable[[Loaded, float], Card] | None = None

    def make(self, loaded: Loaded, output_s: float | None) -> Card:
        """Return the card; `output_s` None: with as much time for the output as usual."""
        if output_s is None or self.card_within is None:
            return self.card(loaded)
        return self.card_within(loaded, output_s)


def group_id(name: str) -> int | None:
    """Return the number of the setting report_group; None: it is empty.

    Raises:
        InspectorError: there is no such group.
    """
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as err:
        raise InspectorError(f"report_group: there is no group {name!r}") from err


def _slurms_task(card: Card) -> str:
    """Return the task of an array as Slurm's record says it; of the job's processes no word."""
    asked = any((one.source, one.state) == ("slurm", "present") for one in card.data_quality.inputs)
    return card.job.array_task if asked else ""


def script_fingerprint(job: Job) -> str:
    """Return a fingerprint of user and submit line; empty where that is not known."""
    if not job.submit_line:
        return ""
    words = f"{job.uid}\0{' '.join(job.submit_line.split())}"
    return sha256(words.encode("utf-8", "replace")).hexdigest()[:16]


def _told(card: Card, entry: Entry) -> Card:
    """Return a card with what the controller's epilog said where nobody else did."""
    job = replace(
        card.job,
        name=card.job.name or entry.name,
        cluster=card.job.cluster or entry.cluster,
        exit_code=card.job.exit_code or entry.exit_code,
        array_task=entry.array_task or _slurms_task(card),
        script=card.job.script or script_fingerprint(card.job),
        end_s=card.job.end_s if card.job.end_s is not None else entry.queued_s,
    )
    return replace(card, job=job)


def store_card(card: Card, loaded: Loaded, config: Config, makers: Makers) -> str:
    """Write report files and rows; return in words what an administrator should know.

    The JSON comes last: with it the report counts as stored, and what is not done by then never is.

    Raises:
        InspectorError: a wrong setting, or an index of a newer release.
        OSError: a file is not written.
        sqlite3.OperationalError: the index is locked or the disk is full.
    """
    gid, head = group_id(config.report_group), loaded.head
    path, name, said = config.store_dir / INDEX, str(head.restart), []
    # The number may have been given to somebody else since the job began.
    reader = head.uid if is_owner(head.uid, head.user) else None

    def write(file: str, data: bytes) -> None:
        target = Target(config.store_dir, loaded.head.leader, file, reader, gid)
        said.append(write_report_file(target, data).decode("ascii").partition(", but ")[2])

    if makers.html:
        write(f"{name}.html", makers.html(card))
    try:
        with writing(path, gid) as index:
            put(index, rows_of(card))
        export_user(path, head.uid, gid)
    except BrokenIndexError as err:
        said.append(str(err))  # a rebuilt index will have it
    write(f"{name}.json", makers.json(card))
    return "; ".join(dict.fromkeys(filter(None, said)))


def _not_done(config: Config, loaded: Loaded) -> None:
    """Make a stored report look older than all summaries: there is something left to do for it."""
    path = config.store_dir / str(loaded.head.leader) / f"{loaded.head.restart}.json"
    os.utime(path, (0, 0))


def make_report(due: Due, config: Config, makers: Makers) -> Outcome:
    """Do everything for one attempt of one job."""
    entry = due.entries[0]
    try:
        loaded = load_summaries(entry.job_id, config.report_dir, due.attempt)
        card = _told(makers.make(loaded, due.output_s), entry)
        said = store_card(card, loaded, config, makers)
    except InspectorError as err:
        return Outcome(FAILED, str(err))
    except MemoryError:
        return Outcome(FAILED, "it needs more memory than it may have")
    except sqlite3.OperationalError as err:
        return Outcome(LATER, f"{config.store_dir / INDEX}: {err}")
    except OSError as err:
        word = LATER if err.errno in _SITES_ERRORS else FAILED
        return Outcome(word, f"{err.filename or config.store_dir}: {err.strerror}")
    if config.admin_comment and makers.comment:
        refusal, words = write_comment(
            config.scontrol, due.leader, makers.comment(card), entry.array_task
        )
        if refusal is Refusal.LATER and time.time() < entry.queued_s + COMMENT_WAIT_S:
            with suppress(OSError):  # then it stays without a comment
                _not_done(config, loaded)
            return Outcome(LATER, words)
        said = "; ".join(filter(None, (said, words)))
    return Outcome(DONE, said)


def rebuild(config: Config) -> tuple[int, int]:
    """Make the index anew of all stored reports; return how many went in and how many did not.

    Raises:
        OSError, sqlite3.Error: it is not made, and what was there stays.
    """
    path, gid = config.store_dir / INDEX, group_id(config.report_group)
    beside = path.with_name(f".{INDEX}.new")
    for leftover in (beside, Path(f"{beside}-journal")):
        leftover.unlink(missing_ok=True)
    uids, done, refused = set(), 0, 0
    with writing(beside, gid) as index:
        for file in _stored(config.store_dir):
            try:
                with file.open("rb") as stored:
                    rows = rows_of(card_from_json(stored.read(BYTES_MAX + 1)))
            except (RefusedError, OSError):
                refused += 1
                continue
            put(index, rows)
            done += 1
            if rows.job.uid is not None:
                uids.add(rows.job.uid)
    # Of a writer that was killed: it would be taken for the new file's.
    Path(f"{path}-journal").unlink(missing_ok=True)
    beside.rename(path)
    for uid in sorted(uids):
        export_user(path, uid, gid)
    return done, refused


def _stored(store_dir: Path) -> list[Path]:
    """Return all stored reports, in the order in which they were made."""
    found = [
        path
        for folder in store_dir.iterdir()
        if folder.name.isdigit() and folder.is_dir()
        for path in folder.glob("*.json")
        if path.stem.isdigit()
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)
