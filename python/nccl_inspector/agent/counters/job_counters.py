# SPDX-License-Identifier: Apache-2.0
"""One job whose counters are followed: its directory, its own devices, its file."""

import os
import re
from dataclasses import replace

from nccl_inspector.agent.job_files import read_manifest
from nccl_inspector.counters.counter_record import RECORD_BYTES_MAX, CounterRecord
from nccl_inspector.counters.node_counters import XidSeen
from nccl_inspector.counters.sample import GPU, SOURCES, Sample
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.safe_files import directory_of_same_owner, read_owners

FILE = "counters"
INTERVAL_S = 60.0
# A sample that is early by at most this much is taken, instead of one a whole interval later.
_SLACK_S = 2.0


def read_record(job_fd: int) -> CounterRecord | None:
    """Return what an agent has counted for a job; None if there is no file.

    Raises:
        RefusedError: the file cannot be read, or is of another release.
    """
    data = read_owners(FILE, RECORD_BYTES_MAX, job_fd)
    return None if data is None else CounterRecord.decode(data)


def job_gpus(text: str) -> frozenset[str]:
    """Return the labels of a job's GPUs from the manifest's text `0,3`; empty if it is not told."""
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text):
        return frozenset()
    return frozenset(f"GPU{int(number)}" for number in text.split(","))


class Watched:
    """A job from when it was first seen; its directory stays open wherever it is moved."""

    def __init__(self, name: str, jobs_fd: int) -> None:
        """Open the directory, and continue with what an earlier agent has counted.

        Raises:
            RefusedError: it is not a job's directory, or has no manifest yet.
        """
        with directory_of_same_owner(name, jobs_fd) as job_fd:
            self.manifest, _ = read_manifest(job_fd)
            self.record = self._take_up(job_fd)
            self.inode = os.fstat(job_fd).st_ino
            self._fd = os.dup(job_fd)
        self.job_id = int(name)
        self.ended_s = 0.0  # boot clock; 0: the job runs
        self.last: set[str] = set()  # sources whose last sample has been taken
        self._own = job_gpus(self.manifest.gpus)
        self._next_s = dict.fromkeys(SOURCES, 0.0)  # boot clock

    def close(self) -> None:
        """Close the directory."""
        os.close(self._fd)

    def wants(self, source: str, now_s: float) -> bool:
        """Tell whether a sample of a source is due."""
        if self.ended_s:
            return source not in self.last
        return now_s >= self._next_s[source] - _SLACK_S

    def take(self, sample: Sample) -> bool:
        """Fold a sample in if it is due; return whether it was."""
        if self.ended_s and sample.boot_s >= self.ended_s:
            self.last.add(sample.source)
        elif not self.wants(sample.source, sample.boot_s) or self.ended_s:
            return False
        self._next_s[sample.source] = sample.boot_s + INTERVAL_S
        self.record.add(self._own_part(sample))
        return True

    def hear(self, xid: XidSeen, sequence: int, is_known: bool) -> bool:
        """Keep an error of a GPU unless it is of another job; return whether it was kept.

        `is_known`: the GPU has a name; a GPU that has fallen off the bus may have none.
        """
        if sequence < self.record.kernel_log_next or xid.time_s < self.manifest.start:
            return False
        if is_known and self._own and not self.record.whole_node and xid.gpu not in self._own:
            return False
        self.record.add_xids([xid])
        return True

    def write(self) -> None:
        """Write the file.

        Raises:
            OSError: the write failed; the old file stays.
        """
        replace_file(self._fd, FILE, self.record.encode(), 0o600)

    def _take_up(self, job_fd: int) -> CounterRecord:
        try:
            return read_record(job_fd) or CounterRecord()
        except RefusedError as err:
            record = CounterRecord()
            record.note(f"what was counted before cannot be read: {err}")
            return record

    def _own_part(self, sample: Sample) -> Sample:
        """Return the sample without other jobs' GPUs, as far as the job's own are known."""
        if sample.source != GPU or not sample.devices:
            return sample
        own = tuple(one for one in sample.devices if one.name.partition("/")[0] in self._own)
        self.record.whole_node = not own
        return replace(sample, devices=own) if own else sample
