# SPDX-License-Identifier: Apache-2.0
"""Read the boxes of an ended job, a few at a time, and make its node summary."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_inspector.agent.condensed import Condensed, read_condensed
from nccl_inspector.agent.counters.job_counters import read_record
from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.agent.nccl_log_files import read_logs
from nccl_inspector.agent.nvidia.vendor_record import read_record as read_vendor
from nccl_inspector.agent.raw_dir import in_turns, list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.model.process import KILLED, Process
from nccl_inspector.model.task_end import FILE, FILE_BYTES_MAX, TaskEnd, parse_task_ends
from nccl_inspector.summary.codec import Head, encode, encode_process
from nccl_inspector.summary.nccl_logs import LogFile
from nccl_inspector.summary.vendor_means import VendorMeans
from nccl_inspector.system.safe_files import (
    directory,
    is_locked,
    read_owners,
    regular_file,
    stamp_of,
)

# How long an ended job's processes may hold their boxes; after that the boxes are read anyway.
LINGER_S = 60
# Sixteen processes on each of sixteen GPUs; a full box takes 0.1 s.
BOXES_MAX = 256

_ENDED = re.compile(rf"({JOB_ID.pattern})\.([0-9]{{1,19}})")
_PROBLEMS_MAX = 32


class NotYetError(Exception):
    """The job's processes still hold their boxes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A directory of `ended/`."""

    name: str
    job_id: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Made:
    """A summary; `data` is empty if neither our plugin nor NVIDIA's measured anything."""

    manifest: Manifest
    data: bytes


def parse_ended(name: str) -> Ended | None:
    """Return the parts of a directory name in `ended/`; None if it is not an ended job's."""
    match = _ENDED.fullmatch(name)
    return Ended(name, int(match[1]), int(match[2]) // 10**9) if match else None


def read_block(
    fd: int, status: os.stat_result, stem: str, locked: bool, ranks: int
) -> tuple[Process, bytes]:
    """Return the process of an open box, and its block; `ranks`: the job's processes, about.

    Raises:
        RefusedError: the box cannot be read, or contradicts itself.
    """
    process = read_box(fd, status.st_size, stem, locked)
    process = add_samples(fd, status.st_size, process, ranks)
    return process, encode_process(process)


def _head(
    manifest: Manifest,
    ended: Ended,
    problems: list[str],
    array_task: str,
    task_ends: tuple[TaskEnd, ...],
) -> Head:
    names = Head.__dataclass_fields__.keys() & Manifest.__dataclass_fields__.keys()
    values = {name: getattr(manifest, name) for name in names}
    end_s = max(ended.end_s, manifest.start)
    if end_s != ended.end_s:
        problems = ["the clock was set back while the job ran: its end is not known", *problems]
    kept = tuple(problems[:_PROBLEMS_MAX])
    return Head(
        **values, end=end_s, problems=kept, array_task=array_task, task_ends=task_ends
    )  # fmt: skip


class EndedReading:
    """The work on one ended job; each item of `steps` is one box done, and the last sets `made`."""

    def __init__(
        self, ended: Ended, ended_fd: int, tally: Tally, lingers: bool, *, counters: bool
    ) -> None:
        """Prepare only; `steps` opens what it needs below `ended_fd`.

        `lingers`: the job's processes may still hold their boxes; then they are waited for.
        `counters`: counters of links and GPUs are wanted, so their absence is reported.
        """
        self.ended = ended
        self._lingers = lingers
        self.made: Made | None = None
        self._tally = tally
        self._problems: list[str] = []
        self._array_task = ""
        self._wants_counters = counters
        self.steps = self._steps(ended_fd)

    def _steps(self, ended_fd: int) -> Iterator[None]:
        """Read the boxes one by one, then set `made`.

        Raises:
            RefusedError: there is no manifest that can be trusted.
            NotYetError: processes of the job are still running.
        """
        blocks: list[bytes] = []
        with directory(self.ended.name, os.fstat(ended_fd).st_uid, ended_fd) as job_fd:
            manifest, _ = read_manifest(job_fd)
            if manifest.job_id != self.ended.job_id:
                raise RefusedError("bad_manifest", "it is another job's")
            counters = self._counters(job_fd) if self._wants_counters else None
            vendor = self._vendor(job_fd)
            condensed = self._condensed(job_fd)
            task_ends = self._task_ends(job_fd)
            blocks += condensed.blocks
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                boxes = self._boxes(raw_fd, manifest.uid, condensed)
                ranks = (len(boxes) + len(condensed.lines)) * manifest.num_nodes
                for name, stem in boxes:
                    block = self._block(raw_fd, name, stem, manifest.uid, ranks)
                    blocks += [block] if block else []
                    yield
                logs: list[LogFile] = []
                for log in read_logs(raw_fd, list(list_raw(raw_fd).logs), manifest.uid):
                    if isinstance(log, RefusedError):
                        self._refuse("a log of NCCL", log)
                    else:
                        logs.append(log)
                    yield
        found = blocks or vendor or self._problems or any(one.text for one in logs)
        head = _head(manifest, self.ended, self._problems, self._array_task, task_ends)
        self.made = Made(manifest, encode(head, blocks, counters, vendor, logs) if found else b"")

    def _counters(self, job_fd: int) -> NodeCounters:
        try:
            record = read_record(job_fd)
        except RefusedError as err:
            self._tally.say(self.ended.job_id, f"its counters are refused: {err}")
            return NodeCounters(absent=f"they are refused: {err}")
        return record.counters() if record else NodeCounters(absent="no agent sampled them")

    def _vendor(self, job_fd: int) -> VendorMeans | None:
        """Return what NVIDIA's plugin wrote; None if it was not the profiler."""
        try:
            record = read_vendor(job_fd)
        except RefusedError as err:
            self._refuse("what is kept of NVIDIA's plugin", err)
            return None
        return record.means() if record else None

    def _condensed(self, job_fd: int) -> Condensed:
        """Return the processes that ended early and were condensed (agent/condenser.py)."""
        try:
            condensed = read_condensed(job_fd)
        except RefusedError as err:
            self._refuse("what is kept of ended processes", err)
            return Condensed()
        tasks = (line.array_task for line in condensed.lines)
        self._array_task = next(filter(None, tasks), "")
        return condensed

    def _task_ends(self, job_fd: int) -> tuple[TaskEnd, ...]:
        try:
            return parse_task_ends(read_owners(FILE, FILE_BYTES_MAX, job_fd) or b"")
        except RefusedError as err:
            self._refuse("how tasks ended", err)
            return ()

    def _refuse(self, name: str, err: RefusedError) -> None:
        self._tally.refuse(self.ended.job_id, name, err)
        self._problems.append(f"{name} is refused: {err}")

    def _boxes(self, raw_fd: int, uid: int, condensed: Condensed) -> list[tuple[str, str]]:
        """Return the boxes to read, each inode once; all must be unlocked if `lingers`.

        Boxes in `condensed` may still exist, if the agent was killed before it could remove them.
        """
        listing = list_raw(raw_fd)
        known = {line.stamp for line in condensed.lines}
        found: list[tuple[str, str]] = []
        inodes: set[int] = set()
        for name, stem in listing.boxes:
            try:
                with regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
                    if self._lingers and is_locked(fd):
                        raise NotYetError
            except RefusedError as err:
                self._refuse(name, err)
                continue
            if stamp_of(status) in known:
                continue
            if status.st_ino in inodes:
                self._refuse(name, RefusedError("same_file"))
                continue
            inodes.add(status.st_ino)
            found.append((name, stem))
        if len(found) > BOXES_MAX or listing.overflow:
            self._problems.insert(0, f"more than {BOXES_MAX} processes, the rest is left out")
        return sorted(in_turns(found, BOXES_MAX))

    def _block(self, raw_fd: int, name: str, stem: str, uid: int, ranks: int) -> bytes | None:
        try:
            with regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
                process, block = read_block(fd, status, stem, is_locked(fd), ranks)
        except RefusedError as err:
            self._refuse(name, err)
            return None
        self._array_task = self._array_task or process.facts.array_task
        if process.facts.state == KILLED:
            inode = status.st_dev, status.st_ino
            self._tally.lose(self.ended.job_id, stem, inode)
        return block
