# SPDX-License-Identifier: Apache-2.0
"""Make one report, store it and add it to the index; a child of the controller service does this.

All of it can be repeated safely: files and rows are replaced, and the comment is the same.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from nccl_inspector.controller.admincomment import Refusal, write_comment
from nccl_inspector.controller.due_reports import Due
from nccl_inspector.controller.outcome import DONE, FAILED, LATER, Outcome
from nccl_inspector.controller.queue import STATE, Entry
from nccl_inspector.controller.stored_rows import group_id, rows_for
from nccl_inspector.controller.unentered import note
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card, Job
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_user, put, writing
from nccl_inspector.store.owner import is_owner
from nccl_inspector.store.place import index_of
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.job_objects import (
    REPORTS,
    fetch_attempts,
    key_of,
    object_store,
    user_word,
)
from nccl_inspector.system.write_as_user import Target, write_report_file

# Counted from the end of the job. Each new try for a comment makes the report again.
COMMENT_WAIT_S = 3600
_EXPORTS = 16  # files of locks; a user has one of them
# So long after its end the report of a job waits for a slurmctld that does not answer.
SLURM_WAIT_S = 3600
_SILENT = re.compile(
    "scontrol: .*(?:no answer in|Unable to contact|timed out|[Cc]onnection refused|connect failure)"
)
# Errors of the site and not of the job: these are tried again without a limit.
_SITES_ERRORS = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES,
        errno.EPERM, errno.ENOENT, errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Makers:
    """The functions that make a card and its forms; `html` and `comment` are optional.

    `card_within` is like `card`; its second argument is the CPU time in seconds for the job's
    output.
    """

    card: Callable[[Loaded], Card]
    json: Callable[[Card], bytes]
    html: Callable[[Card], bytes] | None = None
    comment: Callable[[Card], str] | None = None
    card_within: Callable[[Loaded, float], Card] | None = None

    def make(self, loaded: Loaded, output_s: float | None) -> Card:
        """Return the card; `output_s` None: with the usual time for the output."""
        if output_s is None or self.card_within is None:
            return self.card(loaded)
        return self.card_within(loaded, output_s)


def _slurms_task(card: Card) -> str:
    """Return the array task from Slurm's record, but never from the job's processes."""
    asked = any((one.source, one.state) == ("slurm", "present") for one in card.data_quality.inputs)
    return card.job.array_task if asked else ""


def _why_silent(card: Card) -> str:
    """Return why Slurm told nothing of a job, if it will once slurmctld answers; else empty."""
    for one in card.data_quality.inputs:
        why = one.detail.partition("; ")[0]  # what the other commands said comes after it
        if (one.source, one.state) == ("slurm", "absent") and _SILENT.match(why):
            return why
    return ""


def script_fingerprint(job: Job) -> str:
    """Return a fingerprint of user and submit line; empty where that is not known."""
    if not job.submit_line:
        return ""
    words = f"{job.uid}\0{' '.join(job.submit_line.split())}"
    return sha256(words.encode("utf-8", "replace")).hexdigest()[:16]


def _told(card: Card, entry: Entry) -> Card:
    """Return the card, completed with what the controller's epilog said."""
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


@contextmanager
def _alone(controller_dir: Path, uid: int) -> Iterator[None]:
    """Keep out other children that export the same user's rows.

    Else one that has read the index earlier could be the last to replace the user's file.
    """
    folder = controller_dir / STATE
    folder.mkdir(mode=0o750, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder / f"export.{uid % _EXPORTS}", flags, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def store_card(card: Card, loaded: Loaded, config: Config, makers: Makers) -> str:
    """Write report files and index rows; return what an administrator should know, as text.

    The JSON file is written last: after it the report counts as stored. Only an index that cannot
    be written gets its rows later (late_entries.py).

    Raises:
        InspectorError: there is no report_group.
        OSError: a file cannot be written.
    """
    gid, head = group_id(config.report_group), loaded.head
    place, name, said = index_of(config), str(head.restart), []
    objects, user = object_store(config), user_word(head.user, head.uid)
    # The uid may have been given to another user since the job began.
    reader = head.uid if is_owner(head.uid, head.user) else None

    def write(file: str, data: bytes) -> None:
        if objects:  # first: after the local file the report counts as stored
            objects.put(key_of(REPORTS, head.leader, user, file), data)
        target = Target(config.store_dir, loaded.head.leader, file, reader, gid)
        said.append(write_report_file(target, data).decode("ascii").partition(", but ")[2])

    if makers.html:
        write(f"{name}.html", makers.html(card))
    try:
        with writing(place, gid) as index:
            put(index, rows_for(card, place))
        with _alone(config.controller_dir, head.uid):
            export_user(place, head.uid, gid)
    except InspectorError as err:
        note(config.controller_dir, head.leader, head.restart)
        said.append(str(err))
    write(f"{name}.json", makers.json(card))
    return "; ".join(dict.fromkeys(filter(None, said)))


def _not_done(config: Config, loaded: Loaded) -> None:
    """Make a stored report look older than all summaries, to show that something is left to do."""
    path = config.store_dir / str(loaded.head.leader) / f"{loaded.head.restart}.json"
    os.utime(path, (0, 0))


def make_report(due: Due, config: Config, makers: Makers) -> Outcome:
    """Make, store and index the report of one attempt of a job, and write its comment."""
    entry = due.entries[0]
    try:
        if objects := object_store(config):
            fetch_attempts(objects, config.report_dir, entry.job_id)
        loaded = load_summaries(entry.job_id, config.report_dir, due.attempt)
        card = _told(makers.make(loaded, due.output_s), entry)
        why = _why_silent(card)
        if why and time.time() < entry.queued_s + SLURM_WAIT_S:
            return Outcome(LATER, f"slurmctld is waited for: {why}")
        said = store_card(card, loaded, config, makers)
    except InspectorError as err:
        return Outcome(FAILED, str(err))
    except MemoryError:
        return Outcome(FAILED, "it needs more memory than it may have")
    except OSError as err:
        word = LATER if err.errno in _SITES_ERRORS else FAILED
        return Outcome(word, f"{err.filename or config.store_dir}: {err.strerror}")
    if config.admin_comment and makers.comment:
        refusal, words = write_comment(
            config.scontrol, due.leader, makers.comment(card), entry.array_task
        )
        if refusal is Refusal.LATER and time.time() < entry.queued_s + COMMENT_WAIT_S:
            with suppress(OSError):  # then the job stays without a comment
                _not_done(config, loaded)
            return Outcome(LATER, words)
        said = "; ".join(filter(None, (said, words)))
    return Outcome(DONE, said)
