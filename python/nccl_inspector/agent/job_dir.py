# SPDX-License-Identifier: Apache-2.0
"""A directory of `jobs/` seen from outside: whose it is, whether anything in it lives; its end."""

import os
import stat
import time
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
    """Another attempt's directory was moved, and its place was taken before it could go back."""


@dataclass(frozen=True, slots=True)
class JobDirState:
    """What a job's directory is now."""

    inode: int
    stamp: Stamp | None  # of the manifest
    manifest: Manifest | None  # None: there is none that can be trusted
    locked: bool  # a process holds its box
    newest_s: float  # Unix time of the youngest of its files; a mapped box does not grow younger

    def same(self, other: "JobDirState | None") -> bool:
        """Tell whether it is still the same attempt's directory."""
        return other is not None and (self.inode, self.stamp) == (other.inode, other.stamp)


def _boxes(job_fd: int) -> tuple[bool, float]:
    """Return whether a box is held, and the youngest file's Unix time."""
    try:
        with directory("raw", None, job_fd) as raw_fd:
            status = os.fstat(raw_fd)
            uid, newest_s = status.st_uid, status.st_mtime
            for name, _ in list_raw(raw_fd).boxes:
                with suppress(RefusedError), regular_file(name, uid, BOX_BYTES_MAX, raw_fd) as box:
                    if is_locked(box[0]):
                        return True, time.time()
                    newest_s = max(newest_s, box[1].st_mtime)
    except RefusedError:
        return False, 0.0
    return False, newest_s


def look(name: str, jobs_fd: int) -> JobDirState | None:
    """Return what `jobs/<name>` is, None when it is gone or no directory of root's.

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


def move_to_ended(name: str, seen: JobDirState, run_fd: int) -> bool:
    """Do what the epilog does: rename the directory, then unpublish; False when it is another's.

    The prolog of the job's next attempt may come between the last look and the
    rename: what was moved is looked at again, and put back. Not over what a prolog
    has made there since: that is the one which the tasks to come are told of.

    Raises:
        OSError: it cannot be renamed, and stays.
        DisplacedError: what was moved is another's, and stays in `ended`.
    """
    old, new = f"jobs/{name}", f"ended/{name}.{time.time_ns()}"
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
