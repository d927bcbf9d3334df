# SPDX-License-Identifier: Apache-2.0
"""From raw files of this node's jobs, hostile all, to one clean file a job for node_exporter."""

import os
import re
import time
from collections.abc import Container, Iterable
from contextlib import suppress

from nccl_inspector.atomic import replace_file
from nccl_inspector.atwork import AtWork
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition import Series, render
from nccl_inspector.hostile import Stamp, directory, entry_names, open_directory
from nccl_inspector.jobfiles import JobFiles, read_manifest
from nccl_inspector.jobnames import JOB_NAME, PUBLISHED_NAME
from nccl_inspector.tally import Tally

AGENT_FILE = "nccl_inspector_agent.prom"

# A pass begins to read no further job after this; those that are left come first in the next.
PASS_S = 2.0
# All jobs of a node together; eight GPUs have half a MiB. Agent and endpoint take several times
# this, and must stay below the unit's MemoryMax. First come, first served.
NODE_BYTES_MAX = 24 << 20

_LEFTOVER = re.compile(r"\..*\.prom\.tmp")


def _exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class Publisher:
    """The published files of this node, from the first pass until `stop`."""

    def __init__(self, run_fd: int, cluster: str, tally: Tally, at_work: AtWork) -> None:
        """Open `jobs` and `prom` below the run directory; `cluster`: instead of Slurm's name.

        Raises:
            OSError: one of them is not there.
        """
        self._jobs_fd = open_directory("jobs", run_fd)
        self._prom_fd = open_directory("prom", run_fd)
        self._cluster = cluster
        self._tally = tally
        self._at_work = at_work
        self._jobs: dict[int, JobFiles] = {}
        self._bytes: dict[int, int] = {}  # of what is published
        self._published: dict[int, dict[str, Stamp]] = {}
        self._odd: dict[int, str] = {}  # jobs that are refused as a whole, and why
        self._first = 0  # where the next pass begins: the lowest job that the last did not read
        self._remove(_LEFTOVER)

    def run_pass(self, disabled: bool = False) -> set[int]:
        """Publish every job, withdraw those that are gone; return the jobs with a directory.

        While `disabled` no job's series are published, and none is read.
        """
        ids = {int(name) for name in entry_names(self._jobs_fd) if JOB_NAME.fullmatch(name)}
        for job_id in self._jobs.keys() - (set() if disabled else ids):
            self._forget(job_id)
        self._odd = {job_id: why for job_id, why in self._odd.items() if job_id in ids}
        if disabled:
            self._withdraw(())
            return ids
        self._withdraw(ids)  # before anything is written: it may be the room that is needed
        deadline = time.monotonic() + PASS_S
        order = sorted(ids, key=lambda job_id: (job_id < self._first, job_id))
        self._first = 0
        for job_id in order:
            reading = not self._first and time.monotonic() < deadline
            if not reading:
                self._first = self._first or job_id
            try:
                with self._at_work.on(f"publish {job_id}"):
                    self._refresh(job_id, reading)
                    self._publish(job_id)
                self._odd.pop(job_id, None)
            except RefusedError as err:
                self._forget(job_id)
                self._refuse(job_id, err)
            except OSError as err:
                self._forget(job_id)
                self._tally.fail_to_publish(job_id, f"not published: {err.strerror}")
        self._withdraw(self._jobs.keys())
        return ids

    def configure(self, cluster: str) -> None:
        """Publish under another name of the cluster; what is published is made anew."""
        if cluster != self._cluster:
            self._cluster = cluster
            for job_id in tuple(self._jobs):
                self._forget(job_id)

    def build_info(self) -> list[Series]:
        """Return the `build` series of all jobs: often the same in each, so they go to one file."""
        return [series for job in self._jobs.values() for series in job.build_info()]

    def write_own(self, series: Iterable[Series]) -> None:
        """Publish the agent's own series.

        Raises:
            OSError: the file cannot be written; the old one is gone then.
        """
        self._write(AGENT_FILE, render(series))

    def withdraw_own(self) -> None:
        """Remove the agent's own series."""
        self._unlink(AGENT_FILE)

    def stop(self) -> None:
        """Remove every published file: nobody would refresh it, and an old number is a lie."""
        self._remove(PUBLISHED_NAME)
        self.withdraw_own()

    def close(self) -> None:
        """Close the directories."""
        os.close(self._jobs_fd)
        os.close(self._prom_fd)

    def _forget(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)
        self._published.pop(job_id, None)
        self._bytes.pop(job_id, None)

    def _refuse(self, job_id: int, err: RefusedError) -> None:
        """Count a job that is not published, once until the reason is another."""
        if err.reason != "gone" and self._odd.get(job_id) != str(err):
            self._tally.refuse(job_id, "its directory", err)
            self._odd[job_id] = str(err)

    def _withdraw(self, kept: Container[int]) -> None:
        """Remove the files of other jobs than these."""
        for name in entry_names(self._prom_fd):
            match = PUBLISHED_NAME.fullmatch(name)
            if match and int(match[1]) not in kept:
                self._unlink(name)

    def _remove(self, pattern: re.Pattern[str]) -> None:
        for name in entry_names(self._prom_fd):
            if pattern.fullmatch(name):
                self._unlink(name)

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._prom_fd)

    def _write(self, name: str, data: bytes) -> None:
        try:
            replace_file(self._prom_fd, name, data, 0o644)
        except OSError:
            self._unlink(name)  # it cannot be renewed, and an old number is a lie
            raise

    def _refresh(self, job_id: int, reading: bool) -> None:
        """Read the job's files, with a fresh start when the prolog has made the directory anew."""
        with directory(str(job_id), os.fstat(self._jobs_fd).st_uid, self._jobs_fd) as job_fd:
            manifest, stamp = read_manifest(job_fd)
            if manifest.job_id != job_id:
                raise RefusedError("bad_manifest", "it is another job's")
            if job_id not in self._jobs or self._jobs[job_id].stamp != stamp:
                self._jobs[job_id] = JobFiles(manifest, stamp, self._cluster, self._tally)
                self._published.pop(job_id, None)
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                self._jobs[job_id].refresh(job_fd, raw_fd, reading)

    def _publish(self, job_id: int) -> None:
        """Write the job's file if it changed; remove it when no process has anything to say."""
        job, name = self._jobs[job_id], f"{job_id}.prom"
        stamps = job.stamps()
        if self._published.get(job_id) == stamps and _exists(self._prom_fd, name):
            return
        series = job.series()
        if not series:
            self._published.pop(job_id, None)
            self._bytes.pop(job_id, None)
            self._unlink(name)
            return
        data = render([job.job_info(), *series])
        self._bytes.pop(job_id, None)
        if sum(self._bytes.values()) + len(data) > NODE_BYTES_MAX:
            raise RefusedError("node_bytes", "the node's jobs have more series than it may publish")
        self._bytes[job_id] = len(data)
        try:
            self._write(name, data)
        except OSError as err:
            self._published.pop(job_id, None)
            why = f"its file cannot be written: {err.strerror}"
            self._tally.fail_to_publish(job_id, why)
            return
        self._published[job_id] = stamps
        # The epilog renames jobs/<id>, then unlinks the file: whoever comes last must unlink.
        if not _exists(self._jobs_fd, str(job_id)):
            self._unlink(name)
