# SPDX-License-Identifier: Apache-2.0
"""The files of NVIDIA's Inspector in one job's `raw/`, kept from pass to pass.

Their present values are published; all their values are folded into a record for the job's report.
"""

import os
from collections.abc import Callable, Iterable, Mapping

from nccl_inspector.agent.nvidia.file import (
    FileWatch,
    VendorDump,
    dropped_series,
    gpu_info,
    parse_vendor,
    vendor_gpu,
)
from nccl_inspector.agent.nvidia.vendor_record import FILE, VendorRecord, read_record
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.process_file import FILE_BYTES_MAX
from nccl_inspector.exposition.text import SeriesLine
from nccl_inspector.exposition.vocabulary import Vocabulary
from nccl_inspector.summary.vendor_means import GPUS_MAX
from nccl_inspector.system.clock import Clock
from nccl_inspector.system.safe_files import Stamp, read_at, regular_file, stamp_of

VENDOR_FILES_MAX = GPUS_MAX
# As many series as for our own plugin; a bucket has two.
VENDOR_BUCKETS_MAX = 16 * 300 // 2

Refuse = Callable[[str, Stamp | None, RefusedError], None]


class VendorFiles:
    """The present values of NVIDIA's plugin for a job's GPUs."""

    def __init__(
        self,
        identity: Mapping[str, str],
        refuse: Refuse,
        vocabulary: Vocabulary,
        clock: Clock,
    ) -> None:
        """Start without files; `refuse` is called in each pass for what is refused, and why."""
        self._identity = dict(identity)
        self._vocabulary = vocabulary
        self._refuse = refuse
        self._clock = clock
        self._watches: dict[str, FileWatch] = {}
        self._bad: dict[str, RefusedError] = {}  # of unchanged texts that are invalid
        self._record: VendorRecord | None = None  # None until there is a file

    def __len__(self) -> int:
        """Return the number of buckets that are kept."""
        return sum(len(watch.taken.buckets) for watch in self._watches.values())

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of the published files, which change if the content does."""
        now_s = self._clock.monotonic_s()
        return {
            name: watch.taken_stamp
            for name, watch in self._watches.items()
            if watch.taken_stamp and watch.taken and watch.is_fresh(now_s)
        }

    def series(self) -> list[tuple[str, SeriesLine]]:
        """Return the series of the files that are unchanged and not too old, each with its file."""
        found: list[tuple[str, SeriesLine]] = []
        for name in self.stamps():
            gpu, dump = vendor_gpu(name) or "", self._watches[name].taken
            found.append((name, gpu_info(gpu, self._identity)))
            if dump.totals:
                dropped = dropped_series(gpu, dump.totals.dropped, self._identity)
                found.append((name, dropped))
            for bucket in dump.buckets:
                found += [(name, one) for one in bucket.series]
        return found

    def keep(self, job_fd: int) -> None:
        """Write the record into the job's directory, if it has changed.

        Raises:
            OSError: it could not be written; the next call tries again.
        """
        if self._record and self._record.is_changed:
            self._record.write(job_fd)

    def refresh(
        self, job_fd: int, raw_fd: int, names: Iterable[str], uid: int, end_s: float
    ) -> None:
        """Read files that have changed or were read once, until `end_s` of the clock's CPU time."""
        wanted = sorted(names)
        if wanted and self._record is None:
            self._record = self._take_up(job_fd)
        if len(wanted) > VENDOR_FILES_MAX:
            self._refuse("metrics", None, RefusedError("too_many_files"))
            wanted = wanted[:VENDOR_FILES_MAX]
        self._watches = {name: self._watches.get(name, FileWatch()) for name in wanted}
        self._bad = {name: err for name, err in self._bad.items() if name in self._watches}
        for name in wanted:
            if self._clock.cpu_s() > end_s:
                self._refuse(name, None, RefusedError("too_slow"))
                continue
            try:
                self._look(raw_fd, name, uid)
            except RefusedError as err:
                self._watches[name] = FileWatch()
                if err.reason != "gone":
                    self._refuse(name, None, err)

    def _look(self, raw_fd: int, name: str, uid: int) -> None:
        watch, now_s = self._watches[name], self._clock.monotonic_s()
        with regular_file(name, uid, FILE_BYTES_MAX, raw_fd) as (fd, status):
            stamp = stamp_of(status)
            if watch.needs(stamp):
                data = read_at(fd, status.st_size, 0)
                if stamp_of(os.fstat(fd)) == stamp:
                    age_s = max(0.0, self._clock.unix_s() - status.st_mtime)
                    if watch.saw(data, stamp, age_s, now_s):
                        self._take(name, watch, data)
        if name in self._bad:
            self._refuse(name, watch.taken_stamp, self._bad[name])
        elif watch.taken and not watch.is_fresh(now_s):
            self._refuse(
                name, watch.taken_stamp, RefusedError("stale", "it is not written any more")
            )

    def _take_up(self, job_fd: int) -> VendorRecord:
        """Return the record that an earlier agent began, else a new one."""
        try:
            return read_record(job_fd) or VendorRecord()
        except RefusedError as err:
            self._refuse(FILE, None, err)
            record = VendorRecord()
            record.note(f"what NVIDIA's plugin wrote before cannot be read: {err}")
            return record

    def _take(self, name: str, watch: FileWatch, data: bytes) -> None:
        self._bad.pop(name, None)
        gpu = vendor_gpu(name) or ""
        try:
            dump = parse_vendor(data, gpu, self._identity, self._vocabulary)
            if len(self) - len(watch.taken.buckets) + len(dump.buckets) > VENDOR_BUCKETS_MAX:
                raise RefusedError("job_series")
        except RefusedError as err:
            self._bad[name] = err.with_traceback(None)  # a traceback would keep the whole text
            dump = VendorDump()
        watch.take(dump)
        if self._record and watch.taken_stamp:
            if name in self._bad:
                self._record.refuse(gpu, watch.taken_stamp, self._bad[name].reason)
            else:
                time_s = max(0, int(self._clock.unix_s()))
                self._record.add(gpu, watch.taken_stamp, time_s, dump)
