# SPDX-License-Identifier: Apache-2.0
"""Ask the processes of a job on this node for a dump, through the pipes that PyTorch made.

The pipes are in a directory where the job's user may put anything. Nothing here waits: a pipe that
nobody reads is not opened, and a full one is not written to.
"""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.system.safe_files import directory, entry_names, open_directory

PIPES_MAX = 4096
_PIPE = re.compile(r"fr_(?:nccl_)?(?:batch|[0-9]{1,10})_rank_[0-9]{1,9}\.pipe")
_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def _ask(name: str, uid: int, dir_fd: int) -> bool:
    """Write a byte into a pipe; return whether a process reads from it."""
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISFIFO(status.st_mode):  # opening a device may have an effect
        return False
    fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != uid:
            return False
        with suppress(BlockingIOError):  # it is full, so it has been asked
            os.write(fd, b"1")
    finally:
        os.close(fd)
    return True


def ask_for_dumps(run_dir: Path, job_id: int) -> int:
    """Ask all processes of a job on this node; return how many pipes somebody reads from.

    Raises:
        InspectorError: the job has no directory here.
    """
    try:
        job_fd = open_directory(run_dir / "jobs" / str(job_id))
    except OSError as err:
        raise InspectorError(
            f"job {job_id} is not measured on this node: {err.filename}: {err.strerror}"
        ) from err
    asked = 0
    try:
        with directory("raw", None, job_fd) as raw_fd:
            uid = os.fstat(raw_fd).st_uid
            for name in sorted(filter(_PIPE.fullmatch, entry_names(raw_fd)))[:PIPES_MAX]:
                with suppress(OSError):  # it is gone, or nobody reads from it
                    asked += _ask(name, uid, raw_fd)
    except RefusedError as err:
        raise InspectorError(f"job {job_id}: its directory is refused: {err}") from err
    finally:
        os.close(job_fd)
    return asked
