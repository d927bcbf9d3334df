# SPDX-License-Identifier: Apache-2.0
"""The queue of ended jobs: one small file for each end, written by the controller's epilog.

The file name is `<job id>.<time>.u<uid>`. After n failed tries to make the report, `.try<n>` is
added. The file stays until the report is stored, so that no end is forgotten if the service or its
host goes down. If the file system was full the file is empty, and its name is all that is known.

After too many failures the file goes to `failed/`, with the reason in a second file. If it is moved
back, it is tried again.

Each user has a share of the queue. The epilog counts by user in `dropped/` what it could not queue.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.jobid import JOB_ID, task_name
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.printable import printable
from nccl_inspector.system.safe_files import NO_LINK, open_directory, read_at

QUEUE, FAILED, DROPPED, STATE = "queue", "failed", "dropped", "state"
# The epilog has the same numbers. A user with fewer than USER_QUEUED_MIN entries has room even in a
# full queue.
QUEUED_MAX, USER_QUEUED_MAX, USER_QUEUED_MIN = 20_000, 5000, 200
FAILED_MAX = 1000  # jobs; the oldest are removed
UNKNOWN = "unknown"  # slurmctld did not tell the user
TORN_S = 60  # a file without its last line is still being written, but not for longer than this
_ENTRY_BYTES_MAX = 1 << 20  # because a node list may be long
_NAME = re.compile(
    rf"({JOB_ID.pattern})\.([0-9]{{1,19}})(?:\.u([0-9]{{1,10}}|unknown))?(?:\.try([0-9]{{1,3}}))?"
)
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Entry:
    """The end of an attempt as slurmctld told it; texts that it did not tell are empty.

    `restart` does not identify the attempt: slurmctld may have increased it before it runs the
    epilog. `is_bare`: only job, time and user are known, from the file's name.
    """

    file: str
    tries: int
    job_id: int
    restart: int
    queued_s: float
    cluster: str = ""
    name: str = ""
    nodelist: str = ""
    exit_code: str = ""
    het_job_id: int | None = None
    array_task: str = ""
    uid: int | None = None  # None: slurmctld did not tell it, or the epilog is of an older release
    is_bare: bool = False

    @property
    def leader(self) -> int:
        """The job id that all components of a heterogeneous job share; of other jobs their own."""
        return self.het_job_id or self.job_id


def _count(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def parse_entry(file: str, text: str) -> Entry:
    """Return the entry in a file.

    Raises:
        RefusedError: the file is torn, or not about the job in its name.
    """
    match = _NAME.fullmatch(file)
    lines = text.split("\n")
    if match is None or lines[-2:] != ["end", ""]:
        raise RefusedError("torn", "its last line is missing")
    words = dict(line.partition("=")[::2] for line in lines[:-2])
    if words.get("format") != "1" or words.get("job_id") != match[1]:
        raise RefusedError("bad_entry", "its format is unknown, or its job is not that of its name")
    said = {key: "" if value == "(null)" else printable(value) for key, value in words.items()}
    array, task = (_count(said.get(key, "")) for key in ("array_job_id", "array_task_id"))
    return Entry(
        file=file, tries=int(match[4] or 0), job_id=int(match[1]),
        restart=_count(said.get("restart", "")) or 0, queued_s=float(int(match[2]) // 10**9),
        cluster=said.get("cluster", ""), name=said.get("name", ""),
        nodelist=said.get("nodelist", ""), exit_code=said.get("exit_code", ""),
        het_job_id=_count(said.get("het_job_id", "")),
        array_task=task_name(array, task),
        uid=_count(match[3] or said.get("uid", "")),
    )  # fmt: skip


def bare_entry(file: str) -> Entry:
    """Return the entry of an empty file.

    Raises:
        RefusedError: its name is not that of an entry.
    """
    match = _NAME.fullmatch(file)
    if match is None:
        raise RefusedError("bad_name")
    return Entry(
        file=file, tries=int(match[4] or 0), job_id=int(match[1]), restart=0,
        queued_s=float(int(match[2]) // 10**9), uid=_count(match[3] or ""), is_bare=True,
    )  # fmt: skip


def entry_text(entry: Entry) -> str:
    """Return the file contents for an entry."""
    array, _, task = entry.array_task.partition("_")
    lines = {
        "format": 1, "job_id": entry.job_id, "restart": entry.restart, "cluster": entry.cluster,
        "name": entry.name, "nodelist": entry.nodelist, "exit_code": entry.exit_code,
        "het_job_id": entry.het_job_id or "", "array_job_id": array, "array_task_id": task,
        "queued": int(entry.queued_s),
    }  # fmt: skip
    return "".join(f"{key}={printable(str(value))}\n" for key, value in lines.items()) + "end\n"


def _names(dir_fd: int) -> list[str]:
    return os.listdir(dir_fd)


class Queue:
    """The directories `queue` and `failed`, held open."""

    def __init__(self, controller_dir: Path) -> None:
        """Open the directories; `failed` is created if it is missing.

        Raises:
            InspectorError: there is no queue, or this account may not change it.
        """
        self._folder, path = controller_dir, controller_dir / QUEUE
        self._known: dict[str, Entry] = {}  # by file; a file that is complete does not change
        self._scanned: list[Entry] | None = None  # these in order; None: they have changed
        try:
            self._queue_fd = open_directory(path)
            if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(0, "this account may not change it", str(path))
            with suppress(FileExistsError):
                (controller_dir / FAILED).mkdir(0o750)
            with suppress(OSError):  # an installation of an older release
                (controller_dir / STATE).mkdir(0o750)
            self._failed_fd = open_directory(controller_dir / FAILED)
        except OSError as err:
            raise InspectorError(f"no queue: {err.filename}: {err.strerror}") from err

    @property
    def lock_fd(self) -> int:
        """The descriptor of the directory, which the one running service holds a lock on."""
        return self._queue_fd

    @property
    def lock_path(self) -> Path:
        """The file that it holds a lock on, too; it is made when it is first locked."""
        return self._folder / STATE / "lock"

    def close(self) -> None:
        """Close the directories; this also releases the lock of `queue`."""
        os.close(self._queue_fd)
        os.close(self._failed_fd)

    def scan(self) -> tuple[list[Entry], list[str]]:
        """Return the entries of the queue, the oldest first, and what cannot be read, as text.

        Each file is read once, and the list is the same object if nothing has changed. A file that
        cannot be read is set aside when it is too old to be still in writing.
        """
        problems = []
        names = _names(self._queue_fd)
        there = set(names)
        if self._scanned is not None and self._known.keys() == there:
            return self._scanned, []
        # In the order of the last time, which makes sorting cheap.
        known = {name: entry for name, entry in self._known.items() if name in there}
        for name in names:
            if name in known:
                continue
            try:
                known[name] = self._read(name)
            except FileNotFoundError:
                continue
            except RefusedError as err:
                if self._age_s(name) >= TORN_S:
                    problems.append(f"{name!a}: set aside: {err}")
                    self._move(name, str(err))
        entries = sorted(known.values(), key=lambda one: (one.queued_s, one.job_id, one.file))
        self._known, self._scanned = {one.file: one for one in entries}, entries
        return entries, problems

    def _read(self, name: str) -> Entry:
        if not _NAME.fullmatch(name):
            raise RefusedError("bad_name")
        try:
            fd = os.open(name, NO_LINK, dir_fd=self._queue_fd)
        except FileNotFoundError:
            raise
        except OSError as err:
            raise RefusedError("unreadable", os.strerror(err.errno or 0)) from err
        try:
            data = read_at(fd, _ENTRY_BYTES_MAX, 0)
        except OSError as err:
            raise RefusedError("unreadable", os.strerror(err.errno or 0)) from err
        finally:
            os.close(fd)
        if not data and self._age_s(name) >= TORN_S:  # it will not be written any more
            return bare_entry(name)
        return parse_entry(name, data.decode("utf-8", "replace"))

    def _age_s(self, name: str) -> float:
        try:
            status = os.stat(name, dir_fd=self._queue_fd, follow_symlinks=False)
        except FileNotFoundError:
            return 0.0
        return time.time() - status.st_mtime

    def add(self, entries: Iterable[Entry]) -> list[Entry]:
        """Queue ends that did not come from the epilog; return those that were queued.

        The file name has the time of the job's end, so adding the same end again makes no second
        entry.
        """
        added = []
        for entry in entries:
            name = f"{entry.job_id}.{int(entry.queued_s) * 10**9 + entry.restart}"
            name += "" if entry.uid is None else f".u{entry.uid}"
            try:
                replace_file(
                    self._queue_fd, name, entry_text(entry).encode("utf-8", "replace"), 0o640
                )
            except OSError:  # for example a full disk: the rest is added another time
                break
            added.append(entry)
        return added

    def take_dropped(self) -> Counter[str]:
        """Return how many ends were not queued since the last call, by uid."""
        found: Counter[str] = Counter()
        with suppress(OSError):
            for path in (self._folder / DROPPED).iterdir():
                if path.name == UNKNOWN or (path.name.isascii() and path.name.isdigit()):
                    counted = path.with_name(f".{path.name}.counted")
                    path.rename(counted)
                    found[path.name] = counted.stat(follow_symlinks=False).st_size
                    counted.unlink()
        return found

    def count_try(self, entry: Entry, tries: int) -> Entry:
        """Note the number of tries before the next try, because that may take the service down."""
        base = entry.file.partition(".try")[0]
        name = f"{base}.try{tries}" if tries else base
        with suppress(FileNotFoundError):
            os.rename(entry.file, name, src_dir_fd=self._queue_fd, dst_dir_fd=self._queue_fd)
        renamed = replace(entry, file=name, tries=tries)
        if (known := self._known.pop(entry.file, None)) is not None:
            self._known[name] = replace(known, file=name, tries=tries)
            self._scanned = None
        return renamed

    def remove(self, entry: Entry) -> None:
        """Remove an entry, because its report is stored."""
        with suppress(FileNotFoundError):
            os.unlink(entry.file, dir_fd=self._queue_fd)

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Move an entry to `failed`, for an administrator."""
        self._move(entry.file, reason)

    def _move(self, name: str, reason: str) -> None:
        with suppress(FileNotFoundError):
            os.rename(name, name, src_dir_fd=self._queue_fd, dst_dir_fd=self._failed_fd)
            with suppress(OSError):  # a full disk must not stop the queue
                plain = printable(reason)
                replace_file(self._failed_fd, f"{name}.why", f"{plain}\n".encode(), 0o640)
        kept = sorted(_names(self._failed_fd), key=self._failed_s)
        for old in kept[: max(0, len(kept) - 2 * FAILED_MAX)]:
            with suppress(OSError):
                os.unlink(old, dir_fd=self._failed_fd)

    def failed_jobs(self) -> set[int]:
        """Return the jobs that are set aside: an administrator may move them back."""
        found = map(_NAME.fullmatch, _names(self._failed_fd))
        return {int(match[1]) for match in found if match}

    def _failed_s(self, name: str) -> float:
        try:
            return os.stat(name, dir_fd=self._failed_fd, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return 0.0
