# SPDX-License-Identifier: Apache-2.0
"""Ask the processes of a job on this node for a dump, through the pipes that PyTorch made.

The pipes are in a directory where the job's user may put anything. Nothing here waits: a pipe that
nobody reads is not opened, and a full one is not written to.
"""

import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.system.safe_files import directory, open_directory, pipe_to_write

_ENTRIES_MAX = 4096
# As the SPANK plugin names them, and PyTorch completes the name (spank/taskenv.c).
_PIPE = re.compile(r"fr_(?:nccl_)?(?:batch|[0-9]{1,10})_rank_[0-9]{1,9}\.pipe")


def _ask(name: str, uid: int, raw_fd: int) -> bool:
    """Write a byte into a pipe; return whether a process reads from it."""
    try:
        with pipe_to_write(name, uid, raw_fd) as fd, suppress(BlockingIOError):
            os.write(fd, b"1")  # a full pipe has been asked already
    except (RefusedError, OSError):
        return False
    return True


def ask_in(raw_fd: int, uid: int) -> int:
    """Ask all processes with a pipe of theirs in a job's directory; return how many read from it.

    `uid`: the job's user.
    """
    with os.scandir(raw_fd) as entries:
        names = [one.name for one in islice(entries, _ENTRIES_MAX) if _PIPE.fullmatch(one.name)]
    return sum(_ask(name, uid, raw_fd) for name in names)


def ask_for_dumps(run_dir: Path, job_id: int) -> int:
    """Ask all processes of a job on this node; return how many there are.

    Raises:
        InspectorError: the job has no directory here.
    """
    try:
        job_fd = open_directory(run_dir / "jobs" / str(job_id))
    except OSError as err:
        raise InspectorError(
            f"job {job_id} is not measured on this node: {err.filename}: {err.strerror}"
        ) from err
    try:
        with directory("raw", None, job_fd) as raw_fd:
            return ask_in(raw_fd, os.fstat(raw_fd).st_uid)
    except (RefusedError, OSError) as err:
        raise InspectorError(f"job {job_id}: its directory is refused: {err}") from err
    finally:
        os.close(job_fd)
