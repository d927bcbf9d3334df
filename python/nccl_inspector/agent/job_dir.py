# SPDX-License-Identifier: Apache-2.0
"""A directory of `jobs/`, seen from outside: whose it is, whether anything lives in it, its end."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.agent.raw_dir import list_raw
from nccl_inspector.box.copy import BOX_BYTES_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.safe_files import (
    Stamp,
    directory,
    directory_of_same_owner,
    is_locked,
    regular_file,
)


class DisplacedError(Exception):
    """Another attempt's directory was moved, and could not be moved back: its place was taken."""


@dataclass(frozen=True, slots=True)
class JobDirState:
    """The present state of a job's directory."""

    inode: int
    stamp: Stamp | None  # the manifest's stamp
    manifest: Manifest | None  # None: there is no trustworthy one
    locked: bool  # a process holds its box
    newest_s: float  # Unix time of its youngest file; writing to a mapped box does not change this

    def same(self, other: "JobDirState | None") -> bool:
        """Tell whether it is still the directory of the same attempt."""
        return other is not None and (self.inode, self.stamp) == (other.inode, other.stamp)


def _boxes(job_fd: int) -> tuple[bool, float]:
    """Return whether a box is locked; if none is, the Unix time of the youngest file, too."""
    try:
        with directory("raw", None, job_fd) as raw_fd:
            status = os.fstat(raw_fd)
            uid, newest_s = status.st_uid, status.st_mtime
            for name, _ in list_raw(raw_fd).boxes:
                with suppress(RefusedError), regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as box:
                    if is_locked(box[0]):
                        return True, 0.0
                    newest_s = max(newest_s, box[1].st_mtime)
    except RefusedError:
        return False, 0.0
    return False, newest_s


def look(name: str, jobs_fd: int) -> JobDirState | None:
    """Return the state of `jobs/<name>`; None if it is gone, or not a directory of root's.

    Raises:
        OSError: the system does not let us look.
    """
    manifest: Manifest | None = None
    stamp: Stamp | None = None
    try:
        with directory_of_same_owner(name, jobs_fd) as job_fd:
            status = os.fstat(job_fd)
            with suppress(RefusedError):
                manifest, stamp = read_manifest(job_fd)
            if manifest and manifest.job_id != int(name):
                manifest = None
            locked, newest_s = _boxes(job_fd)
    except RefusedError:
        return None
    newest_s = max(newest_s, status.st_mtime)
    return JobDirState(status.st_ino, stamp, manifest, locked, newest_s)


def move_to_ended(name: str, seen: JobDirState, run_fd: int, now_ns: int) -> bool:
    """Rename the directory and unpublish, as the epilog does; return False if it is another's.

    `now_ns`: Unix time.

    The prolog of the job's next attempt may run between the last look and the rename. Therefore the
    moved directory is checked again, and moved back if it is another. It does not replace what a
    prolog has made there since, because the new tasks use that.

    Raises:
        OSError: it cannot be renamed, and stays.
        DisplacedError: the moved directory is another's, and stays in `ended`.
    """
    old, new = f"jobs/{name}", f"ended/{name}.{now_ns}"
    os.rename(old, new, src_dir_fd=run_fd, dst_dir_fd=run_fd)
    status = os.stat(new, dir_fd=run_fd, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_ino != seen.inode:
        try:
            os.rename(new, old, src_dir_fd=run_fd, dst_dir_fd=run_fd)
        except OSError as err:
            raise DisplacedError(f"{new}: {err.strerror}") from err
        return False
    with suppress(FileNotFoundError):
        os.unlink(f"prom/{name}.prom", dir_fd=run_fd)
    return True
