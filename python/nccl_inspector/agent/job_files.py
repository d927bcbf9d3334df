# SPDX-License-Identifier: Apache-2.0
"""The checked series of one job, file by file, kept from pass to pass."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nccl_inspector.agent.admission import FILE as ADMISSION_FILE
from nccl_inspector.agent.admission import Admission
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from nccl_inspector.agent.mark_file import MarkWatch
from nccl_inspector.agent.nvidia.files import VendorFiles
from nccl_inspector.agent.raw_dir import Life, box_name, in_turns, life, list_raw
from nccl_inspector.agent.series_budget import series_limit
from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.process_file import FILE_BYTES_MAX, Known, parse_file
from nccl_inspector.exposition.text import SeriesLine, cut_nodelist, make_series
from nccl_inspector.exposition.vocabulary import Vocabulary
from nccl_inspector.marking import MARK_FILE
from nccl_inspector.system.clock import Clock
from nccl_inspector.system.safe_files import (
    Stamp,
    directory_of_same_owner,
    read_at,
    regular_file,
    stamp_of,
)

# Sixteen GPUs with all their series; node_exporter needs about 20 ms of CPU for each thousand.
JOB_SERIES_MAX = 16 * 300
# Eight processes on each of sixteen GPUs.
JOB_FILES_MAX = 128
FILE_READS_MAX = 3
# Files of a job that are not read in this time are refused. Sixteen full files need about 0.2 s.
JOB_S = 1.0
# Containers of one job may have different releases of NCCL; more than this are not shown.
JOB_BUILDS_MAX = 4
# Boxes that are checked for living processes; those of processes with series come first.
JOB_BOXES_MAX = 256

_GPUS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")


def read_manifest(job_fd: int) -> tuple[Manifest, Stamp]:
    """Return the manifest in a job's directory, which must have the same owner, and its stamp.

    Raises:
        RefusedError: it is missing, torn or invalid.
    """
    owner = os.fstat(job_fd).st_uid
    with regular_file("manifest", owner, MANIFEST_BYTES_MAX, job_fd) as (fd, status):
        return parse_manifest(read_at(fd, status.st_size, 0)), stamp_of(status)


def user_of(job_id: int, jobs_fd: int) -> int:
    """Return the uid of a job's user from its manifest; -job_id if that is invalid.

    This reads none of the user's files, because a file system mounted over `raw/` may never answer.
    """
    name = str(job_id)
    with suppress(RefusedError, OSError), directory_of_same_owner(name, jobs_fd) as job_fd:
        return read_manifest(job_fd)[0].uid
    return -job_id


def gpu_count(manifest: Manifest) -> int:
    """Return how many GPUs Slurm gave the job on this node; 0 if it does not say."""
    return len(set(manifest.gpus.split(","))) if _GPUS.fullmatch(manifest.gpus) else 0


class JobFiles:
    """The present series of a job's processes; without changes `refresh` only checks locks."""

    def __init__(
        self, manifest: Manifest, stamp: Stamp, cluster: str, tally: Tally, clock: Clock
    ) -> None:
        """Start without files; `stamp` is the manifest's."""
        self.manifest = manifest
        self.stamp = stamp
        self._tally, self._clock = tally, clock
        # By file name: the file's stamp, its series, and the stem of its process.
        self._files: dict[str, tuple[Stamp, Known, str]] = {}
        # Files with a series that another file has with another value, and the metric of that
        # series.
        self._doubled: dict[str, str] = {}
        self._doubled_of: dict[str, Stamp] = {}
        # Refused files with reason and stamp: of the last pass, and of this one.
        self._known: dict[str, tuple[str, Stamp | None]] = {}
        self._refused: dict[str, tuple[str, Stamp | None]] = {}
        self._identity = {
            "cluster": cluster or manifest.cluster,
            "slurm_job_id": str(manifest.job_id),
            "slurm_nodelist": cut_nodelist(manifest.nodelist),
            "node": manifest.node,
        }
        self._vocabulary = Vocabulary()
        self._admission = Admission(series_limit(gpu_count(manifest)), clock)
        self._vendor = VendorFiles(self._identity, self._refuse, self._vocabulary, clock)
        self._vendor_series: list[tuple[str, SeriesLine]] = []  # the ones that are kept
        self._vendor_stamps: dict[str, Stamp] = {}  # stamps of the files that these are from
        self._mark = MarkWatch(self._identity, clock)

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all files, which change if the content does."""
        found = {name: file[0] for name, file in self._files.items()} | self._vendor.stamps()
        mark = self._mark.stamp()
        return found | {MARK_FILE: mark} if mark else found

    def series(self) -> list[tuple[str, SeriesLine]]:
        """Return the checked series, each with its file; the group `build` is left out."""
        return [one for one in self._all() if one[1].metric.group != "build"]

    def build_info(self) -> list[SeriesLine]:
        """Return the series that are the same for all jobs on the node, at most JOB_BUILDS_MAX."""
        found = {one.text: one for _, one in self._all() if one.metric.group == "build"}
        return list(found.values())[:JOB_BUILDS_MAX]

    def left_out(self, reason_more: Mapping[str, int]) -> list[SeriesLine]:
        """Return how many series of the job were left out, as series by reason.

        `reason_more`: how many were left out elsewhere in addition.
        """
        name = "nccl_inspector_job_series_left_out_total"
        return [
            make_series(
                name, self._identity | {"reason": why}, str(count + reason_more.get(why, 0))
            )
            for why, count in self._admission.left_out.items()
        ]

    def job_info(self) -> SeriesLine:
        """Return the series with Slurm's facts about the job."""
        manifest = self.manifest
        words = {
            "user": manifest.user,
            "account": manifest.account,
            "partition": manifest.partition,
        }
        return make_series("nccl_inspector_job_info", self._identity | words, "1")

    def take_up(self, job_fd: int) -> None:
        """Continue with what an earlier agent has published of the job."""
        try:
            self._admission.take_up(job_fd)
        except RefusedError as err:
            self._tally.refuse(self.manifest.job_id, ADMISSION_FILE, err)

    def refresh(self, job_fd: int, raw_fd: int, end_s: float, room_bytes: int) -> None:
        """Bring the series up to date, from valid files of living processes.

        `end_s`: the end of the job's turn, by the clock's CPU time. `room_bytes`: how much of its
        series may be kept; series that are kept already stay.
        """
        end_s = min(end_s, self._clock.cpu_s() + JOB_S)
        self._known, self._refused = self._refused, {}
        listing = list_raw(raw_fd)
        if listing.overflow:
            self._refuse("raw", None, RefusedError("too_many_files"))
        boxes = in_turns(listing.boxes, JOB_BOXES_MAX)
        stems = dict.fromkeys(stem for _, stem in (*in_turns(listing.metrics), *boxes))
        alive = self._living(raw_fd, stems, end_s)
        wanted = in_turns(one for one in listing.metrics if one[1] in alive)
        self._keep_files({name for name, _ in wanted})
        self._read_all(raw_fd, wanted, end_s, room_bytes)
        self._read_vendor(job_fd, raw_fd, listing.vendor, end_s, room_bytes)
        self._read_mark(raw_fd)
        self._refuse_duplicates()
        if self._admission.wants_look:
            self._admission.look(one for _, one in self._all())
        self._save(job_fd)

    def skip(self, raw_fd: int) -> None:
        """Only remove the series of processes that have ended: it is not the job's turn."""
        self._known = dict(self._refused)
        alive = self._living(raw_fd, {stem for _, _, stem in self._files.values()}, math.inf)
        self._keep_files({name for name, (_, _, stem) in self._files.items() if stem in alive})

    def _save(self, job_fd: int) -> None:
        try:
            self._admission.keep(job_fd)
        except OSError as err:
            why = f"what it has published cannot be kept for the next agent: {err.strerror}"
            self._tally.say(self.manifest.job_id, why)

    def _keep_files(self, names: set[str]) -> None:
        self._files = {name: file for name, file in self._files.items() if name in names}
        self._admission.drop(names | self._vendor_stamps.keys())

    def _all(self) -> list[tuple[str, SeriesLine]]:
        own = [(name, one) for name in sorted(self._files) for one in self._files[name][1].values()]
        return own + self._vendor_series + [(MARK_FILE, one) for one in self._mark.series()]

    def _living(self, raw_fd: int, stems: Iterable[str], end_s: float) -> set[str]:
        alive = set()
        for stem in stems:
            if self._clock.cpu_s() > end_s:
                self._refuse("boxes", None, RefusedError("too_slow"))
                break
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
        """Count a refusal once, until the file or the reason changes."""
        self._refused[name] = err.reason, stamp
        if self._known.get(name) != (err.reason, stamp):
            self._tally.refuse(self.manifest.job_id, name, err)

    def _read_all(
        self, raw_fd: int, wanted: list[tuple[str, str]], end_s: float, room_bytes: int
    ) -> None:
        """Read changed files until `end_s`: the first JOB_FILES_MAX files, each inode once."""
        inodes: set[int] = set()
        if len(wanted) > JOB_FILES_MAX:
            self._refuse("metrics", None, RefusedError("too_many_files"))
        for number, (name, stem) in enumerate(wanted):
            if number >= JOB_FILES_MAX:
                self._files.pop(name, None)
            elif self._clock.cpu_s() > end_s:
                self._files.pop(name, None)
                self._refuse(name, None, RefusedError("too_slow"))
            else:
                self._read(raw_fd, name, stem, inodes, room_bytes)

    def _read_vendor(
        self, job_fd: int, raw_fd: int, names: tuple[str, ...], end_s: float, room_bytes: int
    ) -> None:
        self._vendor.refresh(job_fd, raw_fd, names, self.manifest.uid, end_s)
        try:
            self._vendor.keep(job_fd)
        except OSError as err:
            why = f"what NVIDIA's plugin wrote cannot be kept for its report: {err.strerror}"
            self._tally.say(self.manifest.job_id, why)
        stamps = self._vendor.stamps()
        if stamps != self._vendor_stamps:
            self._vendor_stamps = stamps
            self._vendor_series = self._admit_vendor(room_bytes)

    def _admit_vendor(self, room_bytes: int) -> list[tuple[str, SeriesLine]]:
        found: dict[str, dict[str, SeriesLine]] = {}
        for name, one in self._vendor.series():
            found.setdefault(name, {})[one.text] = one
        return [
            (name, one)
            for name, series in found.items()
            for one in self._admission.choose(name, series, {}, room_bytes).values()
        ]

    def _read_mark(self, raw_fd: int) -> None:
        try:
            self._mark.refresh(raw_fd, self.manifest.uid)
        except RefusedError as err:
            if err.reason != "gone":
                self._refuse(MARK_FILE, None, err)

    def _refuse_duplicates(self) -> None:
        """Count files with a series that another has with another value; the first is published."""
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

    def _read(self, raw_fd: int, name: str, stem: str, inodes: set[int], room_bytes: int) -> None:
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
                    # Its process may have replaced it, and may now be writing into this one.
                    if stamp_of(os.fstat(fd)) == stamp:
                        inodes.add(status.st_ino)
                        self._take(name, stem, stamp, data, room_bytes)
                        return
            raise RefusedError("torn", "it is written to while it is read")
        except RefusedError as err:
            self._files.pop(name, None)
            if err.reason != "gone":
                self._refuse(name, stamp, err)

    def _take(self, name: str, stem: str, stamp: Stamp, data: bytes, room_bytes: int) -> None:
        others = sum(len(file[1]) for other, file in self._files.items() if other != name)
        if others >= JOB_SERIES_MAX:
            raise RefusedError("job_series")
        known = self._files[name][1] if name in self._files else {}
        parsed = parse_file(data, self._identity | {"process": stem}, known, self._vocabulary)
        if others + len(parsed) > JOB_SERIES_MAX:
            raise RefusedError("job_series")
        kept = self._admission.choose(name, parsed, known, room_bytes)
        self._files[name] = stamp, kept, stem
