# SPDX-License-Identifier: Apache-2.0
"""From the untrusted raw files of this node's jobs to one clean file per job for node_exporter."""

import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import partial

from nccl_inspector.agent.admission import SHARE
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.fair_share import fair_job_shares
from nccl_inspector.agent.job_files import JobFiles, read_manifest, user_of
from nccl_inspector.agent.job_order import Turns
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.text import SeriesLine, render
from nccl_inspector.exposition.thinning import text_bytes, thin
from nccl_inspector.model.jobid import JOB_ID, PUBLISHED_NAME
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.safe_files import (
    Stamp,
    directory,
    directory_of_same_owner,
    entry_names,
    open_directory,
)

Stamps = dict[str, Stamp]

AGENT_FILE = "nccl_inspector_agent.prom"

# CPU time for reading jobs in a pass; jobs that get no turn come first in the next pass.
PASS_S = 1.0
# For all jobs of a node together. Eight GPUs take half a MiB, sixteen with long names of nodes 1.3.
# node_exporter serves this in 0.2 to 0.3 s on a busy machine with two cores (24 MiB: in 3.2 s).
# Users share it fairly, and so do the jobs of each user.
NODE_BYTES_MAX = 2 << 20
# How many times its share is kept of a job's series, so that there is something to choose from.
_KEPT_SHARES = 2

_LEFTOVER = re.compile(r"\..*\.prom\.tmp")


def _exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class Publisher:
    """The published files of this node, from the first pass until `stop`."""

    def __init__(
        self,
        run_fd: int,
        cluster: str,
        tally: Tally,
        at_work: AtWork,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Open `jobs` and `prom` below the run directory; `cluster`: overrides Slurm's name.

        Raises:
            OSError: one of them does not exist.
        """
        self._jobs_fd = open_directory("jobs", run_fd)
        self._prom_fd = open_directory("prom", run_fd)
        self._cluster = cluster
        self._tally = tally
        self._at_work = at_work
        self._clock = clock
        self._jobs: dict[int, JobFiles] = {}
        self.users: dict[int, int] = {}  # uid by job id, for all jobs of the latest pass
        self._wanted: dict[int, tuple[Stamps, int]] = {}  # stamps, and bytes of all series of a job
        self._shares: dict[int, int] = {}  # bytes of each job's share, from the last pass
        self._published: dict[
            int, tuple[Stamps, int | None]
        ] = {}  # stamps, and the share if it was too small
        self._thinned: Counter[int] = Counter()  # series left out because of the share
        # Jobs that are refused as a whole: the step that was refused and the job, and why.
        self._odd: dict[tuple[str, int], str] = {}
        self._turns = Turns(clock)
        self._remove(_LEFTOVER)

    def run_pass(self, disabled: bool = False) -> set[int]:
        """Publish every job and withdraw those that are gone; return the ids that have a directory.

        While `disabled`, no job's series are published, and no job is read.
        """
        ids = {int(name) for name in entry_names(self._jobs_fd) if JOB_ID.fullmatch(name)}
        for job_id in self._jobs.keys() - (set() if disabled else ids):
            self._forget(job_id)
        self._odd = {step: why for step, why in self._odd.items() if step[1] in ids}
        self.users = {} if disabled else {job_id: self._user(job_id) for job_id in ids}
        if disabled:
            self._withdraw(())
            return ids
        self._withdraw(ids)  # before anything is written, because it may free the needed room
        for job_id, end_s in self._turns.share(self.users, PASS_S):
            self._do("publish", job_id, partial(self._refresh, job_id, end_s))
        for job_id in self._turns.left_out:
            self._do("publish", job_id, partial(self._refresh, job_id, None))
        self._share()
        for job_id in [job_id for job_id in self._jobs if not self._is_published(job_id)]:
            self._do("write", job_id, partial(self._publish, job_id))
        self._withdraw(self._jobs.keys())
        return ids

    def left_out(self) -> list[SeriesLine]:
        """Return for each publishing job how many of its series were left out, by reason."""
        return [
            one
            for job_id, job in sorted(self._jobs.items())
            if job.stamps()
            for one in job.left_out({SHARE: self._thinned[job_id]})
        ]

    def configure(self, cluster: str) -> None:
        """Use another name of the cluster; everything published is made again."""
        if cluster != self._cluster:
            self._cluster = cluster
            for job_id in tuple(self._jobs):
                self._forget(job_id)

    def build_info(self) -> list[SeriesLine]:
        """Return the `build` series of all jobs: they are often equal, so they go into one file."""
        return [one for job in self._jobs.values() for one in job.build_info()]

    def write_own(self, series: Iterable[SeriesLine]) -> None:
        """Publish the agent's own series.

        Raises:
            OSError: the file cannot be written; the old one has been removed.
        """
        self._write(AGENT_FILE, render(series))

    def withdraw_own(self) -> None:
        """Remove the agent's own series."""
        self._unlink(AGENT_FILE)

    def stop(self) -> None:
        """Remove every published file, because nobody would refresh it and old values are wrong."""
        self._remove(PUBLISHED_NAME)
        self.withdraw_own()

    def close(self) -> None:
        """Close the directories."""
        os.close(self._jobs_fd)
        os.close(self._prom_fd)

    def _do(self, what: str, job_id: int, act: Callable[[], None]) -> None:
        """Do one step of publishing a job; a job that is refused or fails is withdrawn."""
        try:
            with self._at_work.on(f"{what} {job_id}"):
                act()
            self._odd.pop((what, job_id), None)
        except RefusedError as err:
            self._forget(job_id)
            self._refuse(what, job_id, err)
        except OSError as err:
            self._forget(job_id)
            self._tally.fail_to_publish(job_id, f"not published: {err.strerror}")

    def _user(self, job_id: int) -> int:
        job = self._jobs.get(job_id)
        return job.manifest.uid if job else user_of(job_id, self._jobs_fd)

    def _forget(self, job_id: int) -> None:
        for table in (self._jobs, self._published, self._wanted, self._thinned, self._shares):
            table.pop(job_id, None)

    def _share(self) -> None:
        """Divide the node's page among the jobs."""
        for job_id, job in self._jobs.items():
            stamps = job.stamps()
            if job_id not in self._wanted or self._wanted[job_id][0] != stamps:
                series = [one for _, one in job.series()]
                self._wanted[job_id] = stamps, text_bytes([job.job_info(), *series])
        users = {job_id: job.manifest.uid for job_id, job in self._jobs.items()}
        wanted = {job_id: self._wanted[job_id][1] for job_id in self._jobs}
        self._shares = fair_job_shares(wanted, users, NODE_BYTES_MAX)

    def _room(self, job_id: int) -> int:
        """Return how many bytes of a job's series may be kept; of a new job, the whole page."""
        if job_id not in self._shares:
            return NODE_BYTES_MAX
        return max(_KEPT_SHARES * self._shares[job_id], NODE_BYTES_MAX // len(self._shares))

    def _refuse(self, what: str, job_id: int, err: RefusedError) -> None:
        """Count a job that is not published, once until the reason changes."""
        if err.reason != "gone" and self._odd.get((what, job_id)) != str(err):
            self._tally.refuse(job_id, "its directory", err)
            self._odd[what, job_id] = str(err)

    def _withdraw(self, kept: Container[int]) -> None:
        """Remove the files of all jobs that are not in `kept`."""
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
            self._unlink(name)  # it cannot be renewed, and old values are wrong
            raise

    def _refresh(self, job_id: int, end_s: float | None) -> None:
        """Read the job's files; start again if the prolog has made the directory anew.

        `end_s`: the end of its turn, by the clock's CPU time; None: it has no turn in this pass.
        """
        with directory_of_same_owner(str(job_id), self._jobs_fd) as job_fd:
            manifest, stamp = read_manifest(job_fd)
            if manifest.job_id != job_id:
                raise RefusedError("bad_manifest", "it is another job's")
            if job_id not in self._jobs or self._jobs[job_id].stamp != stamp:
                self._forget(job_id)
                self._jobs[job_id] = JobFiles(
                    manifest, stamp, self._cluster, self._tally, self._clock
                )
                self._jobs[job_id].take_up(job_fd)
            job = self._jobs[job_id]
            with directory("raw", manifest.uid, job_fd) as raw_fd:
                if end_s is None:
                    job.skip(raw_fd)
                else:
                    job.refresh(job_fd, raw_fd, end_s, self._room(job_id))

    def _share_if_small(self, job_id: int) -> int | None:
        """Return the job's share if the job wants more, else None."""
        share = self._shares[job_id]
        return share if share < self._wanted[job_id][1] else None

    def _is_published(self, job_id: int) -> bool:
        """Tell whether the job's file has the present values."""
        now = self._wanted[job_id][0], self._share_if_small(job_id)
        return self._published.get(job_id) == now and _exists(self._prom_fd, f"{job_id}.prom")

    def _publish(self, job_id: int) -> None:
        """Write the job's file; remove it if no process has any series."""
        job, name = self._jobs[job_id], f"{job_id}.prom"
        stamps, share = self._wanted[job_id][0], self._share_if_small(job_id)
        found = job.series()
        series = [one for _, one in found]
        if share is not None:
            series = thin(found, share - text_bytes([job.job_info()]))
            self._thinned[job_id] += len(found) - len(series)
        if not series:
            self._published.pop(job_id, None)
            self._unlink(name)
            return
        try:
            self._write(name, render([job.job_info(), *series]))
        except OSError as err:
            self._published.pop(job_id, None)
            why = f"its file cannot be written: {err.strerror}"
            self._tally.fail_to_publish(job_id, why)
            return
        self._published[job_id] = stamps, share
        # The epilog renames jobs/<id>, then unlinks the file; whoever comes last must unlink it.
        if not _exists(self._jobs_fd, str(job_id)):
            self._unlink(name)
