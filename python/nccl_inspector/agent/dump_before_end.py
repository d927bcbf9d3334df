# SPDX-License-Identifier: Apache-2.0
"""Ask PyTorch for dumps some time before a job's time limit ends it, once for each attempt.

A job that hangs writes nothing when Slurm ends it. The end is what slurmd told the prolog when the
job began (Slurm 23.02 and later): a limit that is extended later makes the dump early, and a job
whose limit is shortened may end without one.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.agent.log_once import Inode
from nccl_inspector.agent.manifest import Manifest
from nccl_inspector.errors import RefusedError
from nccl_inspector.flight.trigger import ask_in
from nccl_inspector.system.safe_files import (
    directory,
    directory_of_same_owner,
    open_directory,
)

log = logging.getLogger("nccl-inspector")

# Of a short job's limit only this part is left when it is asked: 30 s of two minutes.
_PART_OF_LIMIT = 0.25


def question_time_s(manifest: Manifest, before_s: float) -> float | None:
    """Return when to ask a job, Unix seconds; None if its end is not known.

    `before_s`: how long before its end.
    """
    limit_s = manifest.job_end - (manifest.job_start or manifest.start)
    if not manifest.job_end or limit_s <= 0:
        return None
    return manifest.job_end - min(before_s, limit_s * _PART_OF_LIMIT)


@dataclass(slots=True)
class _Attempt:
    """An attempt of a job: its directory, and what is to be done with it."""

    inode: Inode
    manifest: Manifest
    is_asked: bool = False


class DumpsBeforeEnd:
    """The jobs of one run directory that are to be asked before their ends."""

    def __init__(self, run_fd: int, before_s: float) -> None:
        """Open `jobs`; `before_s`: how long before its end a job is asked; 0: never.

        Raises:
            OSError: it does not exist.
        """
        self._jobs_fd = open_directory("jobs", run_fd)
        self._before_s = before_s
        self._attempts: dict[int, _Attempt] = {}

    def configure(self, before_s: float) -> None:
        """Ask so long before an end from now on."""
        self._before_s = before_s

    def run_pass(self, users: Mapping[int, int], now_s: float) -> None:
        """Ask the jobs whose time has come, and whose end has not.

        `users`: the uid of each job. `now_s`: Unix seconds.
        """
        for job_id in self._attempts.keys() - users.keys():
            del self._attempts[job_id]
        for job_id in users:
            # A job may end at any time.
            with (
                suppress(RefusedError, OSError),
                directory_of_same_owner(str(job_id), self._jobs_fd) as job_fd,
            ):
                self._look(job_id, job_fd, now_s)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._jobs_fd)

    def _look(self, job_id: int, job_fd: int, now_s: float) -> None:
        attempt = self._attempt(job_id, job_fd)
        manifest = attempt.manifest
        if attempt.is_asked or manifest.job_id != job_id:
            return
        question_s = question_time_s(manifest, self._before_s)
        if question_s is None or not question_s <= now_s < manifest.job_end:
            return
        attempt.is_asked = True
        with directory("raw", manifest.uid, job_fd) as raw_fd:
            asked = ask_in(raw_fd, manifest.uid)
        if asked:
            left_s = manifest.job_end - now_s
            log.info("job %d ends in %.0f s: asked %d processes for dumps", job_id, left_s, asked)

    def _attempt(self, job_id: int, job_fd: int) -> _Attempt:
        """Return the attempt to which the directory belongs; a requeued job gets another one."""
        status = os.fstat(job_fd)
        inode = status.st_dev, status.st_ino
        attempt = self._attempts.get(job_id)
        if attempt is None or attempt.inode != inode:
            manifest, _ = read_manifest(job_fd)
            attempt = self._attempts[job_id] = _Attempt(inode, manifest)
        return attempt
