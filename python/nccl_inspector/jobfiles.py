# SPDX-License-Identifier: Apache-2.0
"""The checked series of one job, file by file, kept from pass to pass."""

import os
import time

from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition import Series, cut_nodelist, make_series
from nccl_inspector.hostile import Stamp, read_at, regular_file, stamp_of
from nccl_inspector.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from nccl_inspector.markfile import MarkWatch
from nccl_inspector.marking import MARK_FILE
from nccl_inspector.processfile import FILE_BYTES_MAX, Known, parse_file
from nccl_inspector.rawdir import Life, box_name, life, list_raw
from nccl_inspector.tally import Tally
from nccl_inspector.vendorfiles import VendorFiles

# Sixteen GPUs with all their series; node_exporter needs some 20 ms of CPU for each thousand.
JOB_SERIES_MAX = 16 * 300
# Eight processes on each of sixteen GPUs.
JOB_FILES_MAX = 128
FILE_READS_MAX = 3
# What is not read of a job in this time is refused. Sixteen full files need some 0.2 s.
JOB_S = 1.0
# Containers of one job may have different releases of NCCL; more than these are not shown.
JOB_BUILDS_MAX = 4


def read_manifest(job_fd: int) -> tuple[Manifest, Stamp]:
    """Return the manifest in a job's directory; both have the same owner, root.

    Raises:
        RefusedError: there is none, or it is torn or odd.
    """
    owner = os.fstat(job_fd).st_uid
    with regular_file("manifest", owner, MANIFEST_BYTES_MAX, job_fd) as (fd, status):
        return parse_manifest(read_at(fd, status.st_size, 0)), stamp_of(status)


class JobFiles:
    """What the processes of a job say now. An idle `refresh` reads nothing, but asks every lock."""

    def __init__(self, manifest: Manifest, stamp: Stamp, cluster: str, tally: Tally) -> None:
        """Begin with no file; `stamp` is the manifest's."""
        self.manifest = manifest
        self.stamp = stamp
        self._tally = tally
        self._files: dict[str, tuple[Stamp, Known]] = {}
        # Files with a series that another has with another value: of which metric.
        self._doubled: dict[str, str] = {}
        self._doubled_of: dict[str, Stamp] = {}
        # Refused files, with reason and stamp: those of the last pass, and those of this one.
        self._known: dict[str, tuple[str, Stamp | None]] = {}
        self._refused: dict[str, tuple[str, Stamp | None]] = {}
        self._identity = {
            "cluster": cluster or manifest.cluster,
            "slurm_job_id": str(manifest.job_id),
            "slurm_nodelist": cut_nodelist(manifest.nodelist),
            "node": manifest.node,
        }
        self._vendor = VendorFiles(self._identity, self._refuse)
        self._mark = MarkWatch(self._identity)

    def stamps(self) -> dict[str, Stamp]:
        """Return what tells the present content from another."""
        found = {name: file[0] for name, file in self._files.items()} | self._vendor.stamps()
        mark = self._mark.stamp()
        return found | {MARK_FILE: mark} if mark else found

    def series(self) -> list[Series]:
        """Return the checked series with their true identity, but for the group `build`."""
        return [one for one in self._all() if one.metric.group != "build"]

    def build_info(self) -> list[Series]:
        """Return the series that say the same for every job on the node; a user's are bounded."""
        found = {one.text: one for one in self._all() if one.metric.group == "build"}
        return list(found.values())[:JOB_BUILDS_MAX]

    def job_info(self) -> Series:
        """Return the series that says what Slurm said of the job."""
        manifest = self.manifest
        words = {
            "user": manifest.user,
            "account": manifest.account,
            "partition": manifest.partition,
        }
        return make_series("nccl_inspector_job_info", self._identity | words, "1")

    def refresh(self, job_fd: int, raw_fd: int, reading: bool) -> None:
        """Bring the series up to date: files of living processes that keep to the rules.

        Without `reading` the series of processes that live no longer go, nothing else.
        """
        self._known, self._refused = self._refused, {}
        listing = list_raw(raw_fd)
        if listing.overflow:
            self._refuse("raw", None, RefusedError("too_many_files"))
        alive = self._living(raw_fd, {stem for _, stem in listing.boxes + listing.metrics})
        wanted = {name: stem for name, stem in listing.metrics if stem in alive}
        self._files = {name: file for name, file in self._files.items() if name in wanted}
        if reading:
            self._read_all(raw_fd, wanted)
            self._read_vendor(job_fd, raw_fd, listing.vendor)
            self._read_mark(raw_fd)
        else:
            self._refused = self._known | self._refused
        self._refuse_duplicates()

    def _all(self) -> list[Series]:
        own = [one for name in sorted(self._files) for one in self._files[name][1].values()]
        return own + self._vendor.series() + self._mark.series()

    def _living(self, raw_fd: int, stems: set[str]) -> set[str]:
        alive = set()
        for stem in sorted(stems):
            try:
                state, inode = life(raw_fd, stem, self.manifest.uid)
            except RefusedError as err:
                self._refuse(box_name(stem), None, RefusedError("no_box", str(err)))
                continue
            if state is Life.KILLED:
                self._tally.lose(self.manifest.job_id, stem, inode)
            elif state is Life.ALIVE:
                alive.add(stem)
        return alive

    def _refuse(self, name: str, stamp: Stamp | None, err: RefusedError) -> None:
        """Count a refusal once, until the file or the reason is another."""
        self._refused[name] = err.reason, stamp
        if self._known.get(name) != (err.reason, stamp):
            self._tally.refuse(self.manifest.job_id, name, err)

    def _read_all(self, raw_fd: int, wanted: dict[str, str]) -> None:
        """Read what has changed; the first JOB_FILES_MAX files, JOB_S long, each inode once."""
        deadline = time.monotonic() + JOB_S
        inodes: set[int] = set()
        if len(wanted) > JOB_FILES_MAX:
            self._refuse("metrics", None, RefusedError("too_many_files"))
        for number, (name, stem) in enumerate(wanted.items()):
            if number >= JOB_FILES_MAX:
                self._files.pop(name, None)
            elif time.monotonic() > deadline:
                self._files.pop(name, None)
                self._refuse(name, None, RefusedError("too_slow"))
            else:
                self._read(raw_fd, name, stem, inodes)

    def _read_vendor(self, job_fd: int, raw_fd: int, names: tuple[str, ...]) -> None:
        deadline = time.monotonic() + JOB_S
        self._vendor.refresh(job_fd, raw_fd, names, self.manifest.uid, deadline)
        try:
            self._vendor.keep(job_fd)
        except OSError as err:
            why = f"what NVIDIA's plugin wrote cannot be kept for its report: {err.strerror}"
            self._tally.say(self.manifest.job_id, why)

    def _read_mark(self, raw_fd: int) -> None:
        try:
            self._mark.refresh(raw_fd, self.manifest.uid)
        except RefusedError as err:
            if err.reason != "gone":
                self._refuse(MARK_FILE, None, err)

    def _refuse_duplicates(self) -> None:
        """Count files with a series that another has with another value: the first is published."""
        if self._doubled_of != self.stamps():
            self._doubled, self._doubled_of = self._find_doubled(), self.stamps()
        for name, metric in self._doubled.items():
            self._refuse(f"a series of {name}", None, RefusedError("duplicate_series", metric))

    def _find_doubled(self) -> dict[str, str]:
        values: dict[str, str] = {}
        doubled: dict[str, str] = {}
        for name in sorted(self._files):
            for metric, text, value in self._files[name][1].values():
                if values.setdefault(text, value) != value:
                    doubled.setdefault(name, metric.name)
        return doubled

    def _read(self, raw_fd: int, name: str, stem: str, inodes: set[int]) -> None:
        stamp: Stamp | None = None
        try:
            for _ in range(FILE_READS_MAX):
                with regular_file(name, self.manifest.uid, FILE_BYTES_MAX, raw_fd) as (fd, status):
                    if status.st_ino in inodes:
                        raise RefusedError("same_file")
                    stamp = stamp_of(status)
                    if name in self._files and self._files[name][0] == stamp:
                        inodes.add(status.st_ino)
                        return
                    if name in self._known and self._known[name][1] == stamp:
                        inodes.add(status.st_ino)
                        self._refused[name] = self._known[name]
                        self._files.pop(name, None)
                        return
                    data = read_at(fd, status.st_size, 0)
                    # Its process may have put another in its place, and be writing into this one.
                    if stamp_of(os.fstat(fd)) == stamp:
                        inodes.add(status.st_ino)
                        self._take(name, stem, stamp, data)
                        return
            raise RefusedError("torn", "it is written to while it is read")
        except RefusedError as err:
            self._files.pop(name, None)
            if err.reason != "gone":
                self._refuse(name, stamp, err)

    def _take(self, name: str, stem: str, stamp: Stamp, data: bytes) -> None:
        others = sum(len(file[1]) for other, file in self._files.items() if other != name)
        if others >= JOB_SERIES_MAX:
            raise RefusedError("job_series")
        known = self._files[name][1] if name in self._files else {}
        parsed = parse_file(data, self._identity | {"process": stem}, known)
        if others + len(parsed) > JOB_SERIES_MAX:
            raise RefusedError("job_series")
        self._files[name] = stamp, parsed
