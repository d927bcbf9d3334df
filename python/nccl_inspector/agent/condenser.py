# SPDX-License-Identifier: Apache-2.0
"""Condense the boxes of processes that ended while their job goes on, before they fill the tmpfs.

A job of many short steps leaves a box of 2.9 MiB for each process of each step. As long as there is
room, boxes stay, because until the job ends they show who died. Condensed processes are in the
job's summary as well.
"""

import errno
import os
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.agent.condensed import (
    CONDENSED_BYTES_MAX,
    CONDENSED_MAX,
    CondensedLine,
    append,
    read_condensed,
    size_of,
)
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.ended_job import read_block
from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.job_order import Turns
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.agent.raw_dir import Life, Listing, life_of, list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX
from nccl_inspector.box.layout import HEADER
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import KILLED, NS_PER_S
from nccl_inspector.summary.codec import WHOLE_BLOCK_BYTES_MAX
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.safe_files import (
    Stamp,
    directory,
    directory_of_same_owner,
    is_locked,
    open_directory,
    read_at,
    regular_file,
    stamp_of,
)

# How many boxes of ended processes a job may keep, the youngest ones; none if the tmpfs is fuller
# than FULL_SHARE.
KEPT_MAX = 32
FULL_SHARE = 0.5
# A box without lock and without a final state counts as killed only after this time: an application
# that closes descriptors has only given up the lock.
SILENT_S = 60.0
# CPU time of a pass. The process of a short step takes 7 ms, one with a full box 100 ms.
PASS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Dead:
    """The box of a process that has ended."""

    killed: bool
    stamp: Stamp
    name: str
    stem: str


@dataclass(frozen=True, slots=True)
class _OpenJob:
    """A job's directory, and the listing of its `raw`."""

    manifest: Manifest
    fd: int
    raw_fd: int
    listing: Listing

    def remove(self, box: _Dead) -> None:
        """Remove a box and the series of its process, which are not published any more."""
        series = [name for name, stem in self.listing.metrics if stem == box.stem]
        for name in (box.name, *series):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.raw_fd)


class Condenser:
    """Condenses the boxes of all jobs of a node."""

    def __init__(
        self, run_fd: int, tally: Tally, at_work: AtWork, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Open `jobs` below the run directory.

        Raises:
            OSError: there is no such directory.
        """
        self._jobs_fd = open_directory("jobs", run_fd)
        self._tally = tally
        self._at_work = at_work
        self._clock = clock
        self._turns = Turns(clock)
        self._refused: dict[int, set[Stamp]] = {}  # refused boxes; they stay until their job ends
        self._sizes: dict[int, int] = {}  # bytes of each job's record

    def run_pass(self, users: Mapping[int, int]) -> None:
        """Condense the boxes that should be; `users` has the uid of each job."""
        self._refused = {job: self._refused.get(job, set()) for job in users}
        self._sizes = {job: self._sizes.get(job, 0) for job in users}
        for job_id, end_s in self._turns.share(users, PASS_S):
            others = sum(
                self._sizes[other]
                for other, uid in users.items()
                if uid == users[job_id] and other != job_id
            )
            try:
                self._job(job_id, end_s, CONDENSED_BYTES_MAX - others)
            except RefusedError:  # publishing reports it, and a job may end at any time
                continue
            except OSError as err:  # only of this job: a user can mount something over a file
                self._tally.say(
                    job_id, f"boxes of ended processes cannot be condensed: {err.strerror}"
                )

    def close(self) -> None:
        """Close the directory."""
        os.close(self._jobs_fd)

    def _job(self, job_id: int, end_s: float, bytes_max: int) -> None:
        with directory_of_same_owner(str(job_id), self._jobs_fd) as job_fd:
            manifest, _ = read_manifest(job_fd)
            self._sizes[job_id] = size_of(job_fd)
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                listing = list_raw(raw_fd)
                most = 0 if _is_full(raw_fd) else KEPT_MAX
                if manifest.job_id != job_id or len(listing.boxes) <= most:
                    return
                dead = self._dead(raw_fd, manifest.uid, listing, self._refused[job_id])
                if len(dead) > most:
                    with self._at_work.on(f"condense {job_id}"):
                        job = _OpenJob(manifest, job_fd, raw_fd, listing)
                        self._condense(job, dead[: len(dead) - most], end_s, bytes_max)
                        self._sizes[job_id] = size_of(job_fd)

    def _dead(
        self, raw_fd: int, uid: int, listing: Listing, refused: Container[Stamp]
    ) -> list[_Dead]:
        """Return the boxes of ended processes: the oldest first, and killed processes last."""
        found, now_s = [], self._clock.unix_s()
        for name, stem in listing.boxes:
            with (
                suppress(RefusedError),
                regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as (fd, status),
            ):
                life, stamp = life_of(fd), stamp_of(status)
                killed = life is Life.KILLED
                over = _is_silent(fd, now_s) if killed else life is Life.ENDED and not is_locked(fd)
                if over and stamp not in refused:
                    found.append(_Dead(killed, stamp, name, stem))
        return sorted(found, key=lambda box: (box.killed, box.stamp))

    def _condense(self, job: _OpenJob, boxes: list[_Dead], end_s: float, bytes_max: int) -> None:
        kept = read_condensed(job.fd)
        count, end = len(kept.lines), kept.end
        known = {line.stamp for line in kept.lines}
        for box in boxes:
            if self._clock.cpu_s() > end_s:
                return
            if count == CONDENSED_MAX or end > bytes_max - WHOLE_BLOCK_BYTES_MAX:
                self._tally.say(
                    job.manifest.job_id,
                    "has too many ended processes: the boxes of some are not condensed",
                )
                return
            try:
                if box.stamp not in known:
                    end = self._keep(job, box, count, end)
                    count += 1
            except RefusedError as err:
                self._tally.refuse(job.manifest.job_id, box.name, err)
                self._refused[job.manifest.job_id].add(box.stamp)
            else:
                job.remove(box)

    def _keep(self, job: _OpenJob, box: _Dead, count: int, end: int) -> int:
        """Add a process to the record, which has `count` and ends at `end`; return the new end."""
        ranks = (count + len(job.listing.boxes)) * job.manifest.num_nodes
        with regular_file(box.name, job.manifest.uid, BOX_BYTES_MAX, job.raw_fd) as (fd, status):
            if stamp_of(status) != box.stamp or is_locked(fd):
                raise RefusedError("gone")
            process, block = read_block(fd, status, box.stem, False, ranks)
            inode = status.st_dev, status.st_ino
        if process.facts.state == KILLED:
            self._tally.lose(job.manifest.job_id, box.stem, inode)
        line = CondensedLine(box.name, *box.stamp, process.facts.array_task, len(block))
        try:
            return append(job.fd, end, line, block)
        except OSError as err:
            if err.errno != errno.ENOSPC:
                raise
        job.remove(box)  # this makes room
        return append(job.fd, end, line, block)


def _is_full(fd: int) -> bool:
    size = os.fstatvfs(fd)
    return size.f_bfree < size.f_blocks * (1 - FULL_SHARE)


def _is_silent(fd: int, now_s: float) -> bool:
    """Tell whether the process of a box no longer beats; `now_s`: Unix time."""
    header = read_at(fd, HEADER.size, 0)
    return (
        len(header) == HEADER.size
        and now_s - HEADER.number(header, "beat_real_ns") / NS_PER_S > SILENT_S
    )
