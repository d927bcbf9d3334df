# SPDX-License-Identifier: Apache-2.0
"""One look at the boxes of the jobs that run on this node, as far as the caller may read them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.agent.beat_age import Now, now
from nccl_inspector.agent.ended_job import BOXES_MAX
from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.log_once import Inode
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.agent.raw_dir import Life, in_turns, life_of, list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX
from nccl_inspector.box.reader import read_box
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.jobid import JOB_ID, PUBLISHED_NAME
from nccl_inspector.model.process import Process
from nccl_inspector.system.safe_files import directory, entry_names, regular_file

_PROCESSES_MAX = 10_000
_ENVIRON_BYTES_MAX = 1 << 18
_JOB_VARIABLE = b"SLURM_JOB_ID="
_NOT_HERE = "it does not run on this node, or is not measured (mode off)"


@dataclass(frozen=True, slots=True)
class LiveBox:
    """A box that was read; its process is alive, or died without finalizing."""

    inode: Inode
    at: Now
    process: Process


@dataclass(frozen=True, slots=True)
class JobBoxes:
    """The processes of one job on this node, without those that ended normally."""

    manifest: Manifest
    boxes: tuple[LiveBox, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeBoxes:
    """The result of a look."""

    at: Now
    jobs: tuple[JobBoxes, ...]
    unread: tuple[str, ...]


@contextmanager
def _entered(name: str | Path, dir_fd: int | None = None) -> Iterator[int]:
    """Give a descriptor to open things below a directory that may not be listed."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _read_box(raw_fd: int, name: str, stem: str, uid: int, known: set[Inode]) -> LiveBox | None:
    """Return a complete box whose process has not ended normally, else None.

    A file that is already `known` under another name is refused, because a user can make any number
    of links to one box.
    """
    with regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as (fd, status):
        inode = status.st_dev, status.st_ino
        if inode in known:
            raise RefusedError("same_file")
        known.add(inode)
        life = life_of(fd)
        if life in (Life.STARTING, Life.ENDED):
            return None
        at, alive = now(), life is Life.ALIVE
        return LiveBox(inode, at, read_box(fd, status.st_size, stem, alive))


def _read_boxes(raw_fd: int, uid: int) -> tuple[tuple[LiveBox, ...], tuple[str, ...]]:
    """Return the boxes, each inode once, and texts about what could not be read."""
    listing = list_raw(raw_fd)
    found: list[LiveBox] = []
    known: set[Inode] = set()
    problems = []
    tried, left_out = 0, listing.overflow
    for name, stem in in_turns(listing.boxes):
        if tried == BOXES_MAX:
            left_out = True
            break
        try:
            seen = _read_box(raw_fd, name, stem, uid, known)
        except RefusedError as err:
            tried += 1
            if err.reason != "gone":
                problems.append(f"{name} is refused: {err}")
            continue
        if seen:  # None: its process has ended; such boxes may stay long and do not count
            tried += 1
            found.append(seen)
    if left_out:
        problems.append(f"more than {BOXES_MAX} processes, the rest is left out")
    return tuple(found), tuple(problems)


def _read_job(name: str, jobs_fd: int) -> JobBoxes:
    with _entered(name, jobs_fd) as job_fd:
        if os.fstat(job_fd).st_uid != os.fstat(jobs_fd).st_uid:
            raise RefusedError("wrong_owner")
        manifest, _ = read_manifest(job_fd)
        if str(manifest.job_id) != name:
            raise RefusedError("bad_manifest", "it is another job's")
        with directory("raw", manifest.uid, job_fd) as raw_fd:
            return JobBoxes(manifest, *_read_boxes(raw_fd, manifest.uid))


@contextmanager
def _listed(path: Path) -> Iterator[int | None]:
    """Give a descriptor of a directory, or None if the caller may not list it.

    Raises:
        OSError: it does not exist.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _jobs_of_own_processes() -> set[str]:
    """Return the numbers of the jobs in which the caller's processes run, as far as they are seen.

    By them a user finds a job that publishes no series: the modes report and json never do, and the
    others only after their first interval.
    """
    found, own = {os.environ.get("SLURM_JOB_ID", "")}, os.geteuid()
    with os.scandir("/proc") as entries:
        pids = [Path(one.path) for one in entries if one.name.isdecimal()]
    for pid in pids[:_PROCESSES_MAX]:
        with suppress(OSError):  # it has ended, or has become something that may not be read
            if pid.stat().st_uid == own:
                with (pid / "environ").open("rb") as file:
                    words = file.read(_ENVIRON_BYTES_MAX).split(b"\0")
                ids = (one.removeprefix(_JOB_VARIABLE) for one in words if _JOB_VARIABLE in one)
                found |= set(map(os.fsdecode, ids))
    return {name for name in found if JOB_ID.fullmatch(name)}


def _find_jobs(run_dir: Path) -> tuple[set[str], set[str]]:
    """Return the jobs of the node that the caller can find, and which of them are surely his."""
    with _listed(run_dir / "jobs") as jobs_fd:
        if jobs_fd is not None:
            return {name for name in entry_names(jobs_fd) if JOB_ID.fullmatch(name)}, set()
    own = _jobs_of_own_processes()
    found = set(own)
    with _listed(run_dir / "prom") as prom_fd:
        if prom_fd is not None:
            names = map(PUBLISHED_NAME.fullmatch, entry_names(prom_fd))
            found |= {match[1] for match in names if match}
    return {name for name in found if JOB_ID.fullmatch(name)}, own


def look(run_dir: Path, wanted: int | None) -> NodeBoxes:
    """Look once; `wanted`: only at this job.

    Raises:
        OSError: there is no run directory.
    """
    begun = now()
    names, own = ({str(wanted)}, {str(wanted)}) if wanted else _find_jobs(run_dir)
    jobs, unread = [], []
    with _entered(run_dir / "jobs") as jobs_fd:
        for name in sorted(names, key=int):
            try:
                jobs.append(_read_job(name, jobs_fd))
            except RefusedError as err:
                unread.append(f"job {name}: {err}")
            except FileNotFoundError:
                if name in own:
                    unread.append(f"job {name}: {_NOT_HERE}")
            except OSError as err:
                unread.append(f"job {name}: {err.strerror}")
    return NodeBoxes(begun, tuple(jobs), tuple(unread))
