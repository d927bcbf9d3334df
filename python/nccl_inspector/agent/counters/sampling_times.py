# SPDX-License-Identifier: Apache-2.0
"""When counters are sampled: when a job starts, each minute while it runs, and when it has ended.

The agent's pass asks at its beginning and looks for answers at its end; it never waits. An ended
job waits in `ended` for its last samples, but not long.
"""

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from nccl_inspector.agent.counters.job_counters import Watched
from nccl_inspector.agent.counters.sources import Readers, Sources
from nccl_inspector.agent.counters.xid import KernelLog, Xid
from nccl_inspector.agent.ended_job import parse_ended
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.counters.node_counters import XidSeen
from nccl_inspector.counters.sample import GPU, SOURCES, Sample
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.safe_files import entry_names, open_directory

# The longest time that an ended job's collection waits for the last samples.
HOLD_S = 15.0
# The most jobs that are followed at a time; a node has fewer.
JOBS_MAX = 256
RECENT_XIDS = 256


@dataclass(frozen=True, slots=True)
class Recent:
    """An error of a GPU, with the sequence number of its record in the kernel log."""

    xid: XidSeen
    sequence: int
    is_known: bool


class CounterWatch:
    """The jobs of this node, and what their links and GPUs count."""

    def __init__(
        self,
        run_fd: int,
        tally: Tally,
        readers: Readers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Open `jobs` and `ended` below the run directory.

        Raises:
            OSError: one of them does not exist.
        """
        readers = readers or Readers()
        self._jobs_fd = open_directory("jobs", run_fd)
        self._ended_fd = open_directory("ended", run_fd)
        self._tally = tally
        self._clock = clock
        self.sources = Sources(readers, clock)
        self._log = KernelLog(readers.kernel_log, clock)
        self._log_next = 0
        self._jobs: dict[int, Watched] = {}  # by the directory's inode
        self._gpus: dict[str, str] = {}  # PCI address to label; also of GPUs that are gone
        self.recent: deque[Recent] = deque(maxlen=RECENT_XIDS)

    @property
    def is_idle(self) -> bool:
        """Whether no job is followed; then nothing is sampled, so that GPUs can sleep."""
        return not self._jobs

    def boot_s(self) -> float:
        """Return the time of the clock that samples are stamped with."""
        return self._clock.boot_s()

    def begin_pass(self, disabled: bool = False) -> None:
        """Find the jobs and ask for the samples that are due; nothing is asked while `disabled`."""
        lost = self._hear()
        if disabled:
            self._drop_all()
            return
        self._find_jobs()
        for job in self._jobs.values():
            self._tell_xids(job, lost)
        now = self._clock.boot_s()
        self.sources.ask(
            [name for name in SOURCES if any(job.wants(name, now) for job in self._jobs.values())]
        )

    def end_pass(self) -> None:
        """Take the answers that have arrived, and release ended jobs that have all of theirs."""
        for sample in self.sources.poll():
            self._learn(sample)
            for job in self._jobs.values():
                if job.take(sample) and not job.ended_s:
                    self._write(job)
        for inode, job in list(self._jobs.items()):
            if job.ended_s and self._is_over(job):
                self._write(job)
                job.close()
                del self._jobs[inode]

    def held(self) -> set[str]:
        """Return the names in `ended` that still wait for their last samples."""
        ended = {inode for inode, job in self._jobs.items() if job.ended_s}
        if not ended:
            return set()
        return {name for name, inode in self._ended().items() if inode in ended}

    def close(self) -> None:
        """Close everything; the files stay for the next agent."""
        self._drop_all()
        self.sources.close()
        self._log.close()
        os.close(self._jobs_fd)
        os.close(self._ended_fd)

    def _drop_all(self) -> None:
        for job in self._jobs.values():
            self._write(job)
            job.close()
        self._jobs.clear()

    def _inodes(self, dir_fd: int, names: list[str]) -> dict[str, int]:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino
        return found

    def _ended(self) -> dict[str, int]:
        names = [name for name in entry_names(self._ended_fd) if parse_ended(name)]
        return self._inodes(self._ended_fd, names)

    def _find_jobs(self) -> None:
        names = [name for name in entry_names(self._jobs_fd) if JOB_ID.fullmatch(name)]
        here = self._inodes(self._jobs_fd, sorted(names, key=int))
        now = self._clock.boot_s()
        for name, inode in here.items():
            if inode not in self._jobs and len(self._jobs) < JOBS_MAX:
                with suppress(RefusedError):  # the prolog is not done; the next pass tries again
                    self._jobs[inode] = Watched(name, self._jobs_fd)
        running = set(here.values())
        for inode, job in self._jobs.items():
            if inode not in running and not job.ended_s:
                job.ended_s = now

    def _hear(self) -> int:
        """Read the kernel log; return how many records were overwritten before they were read."""
        heard = self._log.read()
        offset_s = self._clock.unix_s() - self._clock.monotonic_s()
        for xid in heard.xids:
            self.recent.append(self._name(xid, offset_s))
            self._log_next = xid.sequence + 1
        return heard.lost

    def _name(self, xid: Xid, offset_s: float) -> Recent:
        gpu = self._gpus.get(xid.pci)
        seen = XidSeen(max(0, round(offset_s + xid.boot_us / 1e6)), gpu or xid.pci, xid.number)
        return Recent(seen, xid.sequence, gpu is not None)

    def _tell_xids(self, job: Watched, lost: int) -> None:
        news = [job.hear(one.xid, one.sequence, one.is_known) for one in self.recent]
        job.record.kernel_log_next = max(job.record.kernel_log_next, self._log_next)
        if self._log.trouble:
            job.record.note(f"no XIDs: {self._log.trouble}")
        if lost:
            job.record.note(f"{lost} records of the kernel log were overwritten before being read")
        if any(news):
            self._write(job)

    def _learn(self, sample: Sample) -> None:
        if sample.source == GPU:
            for device in sample.devices:
                if pci := device.facts.get("pci"):
                    self._gpus[pci] = device.name

    def _is_over(self, job: Watched) -> bool:
        """Tell whether an ended job has all its last samples, or will not get more."""
        waited_s = self._clock.boot_s() - job.ended_s
        for source in SOURCES:
            if source in job.last:
                continue
            trouble = self.sources.trouble(source)
            if not trouble and waited_s < HOLD_S:
                return False
            job.last.add(source)
            why = f": what was to read it {trouble}" if trouble else ""
            job.record.note(f"{source}: no sample at the job's end{why}")
        return True

    def _write(self, job: Watched) -> None:
        try:
            job.write()
        except FileNotFoundError:  # it has been removed
            return
        except OSError as err:
            self._tally.say(job.job_id, f"its counters cannot be written: {err.strerror}")
