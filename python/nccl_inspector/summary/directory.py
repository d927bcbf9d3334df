# SPDX-License-Identifier: Apache-2.0
"""The files of one job id in the report directory: which there are, and what each is about.

The directory may be on slow storage, and a job may have a thousand summaries. Therefore files are
examined and read in threads.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.summary.budget import HELD_BYTES_MAX, NODE_BYTES, Budget, larger_share
from nccl_inspector.summary.codec import (
    HEAD_BYTES_MAX,
    SUMMARY_BYTES_MAX,
    Head,
    NodeSummary,
    decode,
    decode_head,
)
from nccl_inspector.summary.streams import SummaryVersion
from nccl_inspector.system.parallel import in_parallel
from nccl_inspector.system.safe_files import NO_LINK, Stamp, read_at, stamp_of

# Slurm gives the components of a heterogeneous job the ids that follow the leader's; it allows 128.
COMPONENTS_MAX = 128
_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,254}?)\.([0-9]{1,9})\.nodesummary")
_HEAD_BYTES_USUAL = 4096
_EARLY_BYTES_MAX = 4 << 20  # largest summary that is read ahead of its turn
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class AbsentError(InspectorError):
    """There is no summary of this job id."""


@dataclass(frozen=True, slots=True)
class SummaryFile:
    """A node summary, by its file name."""

    job_id: int
    attempt: int
    node: str
    name: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A summary that cannot be read, why, and when it was written (Unix nanoseconds)."""

    file: SummaryFile
    why: str
    written_ns: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """All summaries of one job id; `written_ns` is the time of the newest readable one, or 0."""

    job_id: int
    heads: dict[SummaryFile, Head]
    refused: tuple[Refused, ...]
    written_ns: int


@contextmanager
def _job_directory(job_id: int, report_dir: Path) -> Iterator[int]:
    path = report_dir / str(job_id)
    try:
        job_fd = os.open(path, _DIRECTORY)
    except FileNotFoundError as err:
        raise AbsentError(
            f"no report of job {job_id}: nothing of it is in {report_dir}; if it was to be "
            f"measured, nccl-inspector doctor --job {job_id} on its nodes says why it was not, "
            "while it runs"
        ) from err
    except OSError as err:
        raise InspectorError(
            f"the report of job {job_id} cannot be read: {path}: {err.strerror}"
        ) from err
    try:
        yield job_fd
    finally:
        os.close(job_fd)


def summary_files(job_id: int, names: Iterable[str]) -> list[SummaryFile]:
    """Return those file names that are of summaries, sorted by attempt and node."""
    return sorted(
        (
            SummaryFile(job_id, int(match[2]), match[1], match[0])
            for match in filter(None, map(_FILE.fullmatch, names))
        ),
        key=lambda file: (file.attempt, file.node),
    )


def _files(job_id: int, job_fd: int) -> list[SummaryFile]:
    return summary_files(job_id, os.listdir(job_fd))


@contextmanager
def _opened(file: SummaryFile, job_fd: int) -> Iterator[int]:
    try:
        fd = os.open(file.name, NO_LINK, dir_fd=job_fd)
    except OSError as err:
        raise RefusedError("unreadable", os.strerror(err.errno or 0)) from err
    try:
        yield fd
    finally:
        os.close(fd)


def _expect(file: SummaryFile, head: Head) -> None:
    if (head.job_id, head.node, head.restart) != (file.job_id, file.node, file.attempt):
        raise RefusedError("bad_summary", "it is of another job or node")


def _read_head(file: SummaryFile, job_fd: int) -> Head:
    with _opened(file, job_fd) as fd:
        data = read_at(fd, _HEAD_BYTES_USUAL, 0)
        if b"\n" not in data:
            data = read_at(fd, HEAD_BYTES_MAX, 0)
    head = decode_head(data)
    _expect(file, head)
    return head


class _Contents(NamedTuple):
    """The bytes of a file, and which version of it they are."""

    data: bytes
    stamp: Stamp


def _contents(file: SummaryFile, job_fd: int, bytes_max: int = SUMMARY_BYTES_MAX) -> _Contents:
    with _opened(file, job_fd) as fd:
        status = os.fstat(fd)
        if status.st_size > bytes_max:
            raise RefusedError("too_big")
        return _Contents(read_at(fd, status.st_size, 0), stamp_of(status))


def _early(files: Sequence[SummaryFile], job_fd: int) -> Iterator[_Contents | None]:
    """Yield the contents of each file; None if it is large or cannot be read."""

    def read(file: SummaryFile) -> _Contents | None:
        try:
            return _contents(file, job_fd, _EARLY_BYTES_MAX)
        except RefusedError:
            return None

    return in_parallel(read, files)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How the summaries of a job are read: `in_files`, what can be read later stays there."""

    job_fd: int
    directory: Path
    in_files: bool

    def read(
        self, file: SummaryFile, budget: Budget, contents: _Contents | None = None
    ) -> NodeSummary:
        data, stamp = contents or _contents(file, self.job_fd)
        version = SummaryVersion(self.directory / file.name, stamp) if self.in_files else None
        summary = decode(data, budget, version)
        _expect(file, summary.head)
        return summary


def _size(file: SummaryFile, job_fd: int) -> int:
    try:
        return os.stat(file.name, dir_fd=job_fd, follow_symlinks=False).st_size
    except OSError:  # it has just been replaced or removed
        return 0


def _written_ns(file: SummaryFile, job_fd: int) -> int:
    try:
        return os.stat(file.name, dir_fd=job_fd, follow_symlinks=False).st_mtime_ns
    except OSError:  # it has just been replaced or removed
        return 0


def _looked_at(file: SummaryFile, job_fd: int) -> tuple[Head | RefusedError, int]:
    """Return a summary's head, or why it cannot be read; and when it was written (Unix ns)."""
    try:
        head: Head | RefusedError = _read_head(file, job_fd)
    except RefusedError as err:
        head = err
    return head, _written_ns(file, job_fd)


def look(job_id: int, report_dir: Path) -> Shelf:
    """Return the summaries of a job id; only their first lines are read.

    Raises:
        AbsentError: there are none.
        InspectorError: the directory cannot be read.
    """
    heads: dict[SummaryFile, Head] = {}
    refused = []
    written_ns = 0
    with _job_directory(job_id, report_dir) as job_fd:
        files = _files(job_id, job_fd)
        looked = in_parallel(partial(_looked_at, job_fd=job_fd), files)
        for file, (head, at_ns) in zip(files, looked, strict=True):
            if isinstance(head, RefusedError):
                refused.append(Refused(file, str(head), at_ns))
            else:
                heads[file] = head
                written_ns = max(written_ns, at_ns)
    if not heads and not refused:
        raise AbsentError(f"no report of job {job_id}: {report_dir / str(job_id)} is empty")
    return Shelf(job_id, heads, tuple(refused), written_ns)


def _names(job_id: int, report_dir: Path) -> list[SummaryFile] | InspectorError:
    """Return the summaries of a job id (none without a directory), or why none can be listed."""
    try:
        with _job_directory(job_id, report_dir) as job_fd:
            return _files(job_id, job_fd)
    except AbsentError:
        return []
    except InspectorError as err:
        return err
    except OSError as err:
        return InspectorError(f"{report_dir / str(job_id)}: {err.strerror}")


def _time_of(file: SummaryFile, report_dir: Path) -> int:
    try:
        path = report_dir / str(file.job_id) / file.name
        return path.stat(follow_symlinks=False).st_mtime_ns
    except OSError:  # it has just been replaced or removed
        return 0


def written(
    job_ids: Iterable[int], report_dir: Path
) -> dict[int, dict[SummaryFile, int] | InspectorError]:
    """Return the summaries of each job id, unread, with when they were written (Unix nanoseconds).

    If the directory of a job cannot be read, its value is the error.
    """
    ids = list(dict.fromkeys(job_ids))
    names = dict(zip(ids, in_parallel(partial(_names, report_dir=report_dir), ids), strict=True))
    files = [file for one in names.values() if isinstance(one, list) for file in one]
    times = in_parallel(partial(_time_of, report_dir=report_dir), files)
    found: dict[int, dict[SummaryFile, int] | InspectorError] = {
        job_id: {} if isinstance(one, list) else one for job_id, one in names.items()
    }
    for file, at_ns in zip(files, times, strict=True):
        of_job = found[file.job_id]
        if not isinstance(of_job, InspectorError):
            of_job[file] = at_ns
    return found


def peek(job_id: int, report_dir: Path) -> list[Head]:
    """Return the heads of up to three summaries of a job id; an empty list if none can be read.

    The directory may be a neighbour's: large, another user's or gone; a look costs three small
    reads. The first, the middle and the last file are read, because the first and the last attempt
    may be of different jobs if Slurm has used the id again.
    """
    heads = []
    try:
        with _job_directory(job_id, report_dir) as job_fd:
            files = _files(job_id, job_fd)
            for file in {*files[-1:], *files[:1], *files[len(files) // 2 :][:1]}:
                with suppress(RefusedError):
                    heads.append(_read_head(file, job_fd))
    except InspectorError:
        return []
    return heads


def read_summaries(
    files: list[SummaryFile], report_dir: Path, share: int = NODE_BYTES
) -> tuple[list[NodeSummary], list[str]]:
    """Return the whole summaries of one job id's files, and texts about what cannot be read.

    `share`: bytes of memory for each of them (summary/budget.py). What some leave over goes to
    those that need more; processes that still do not fit are left out.
    """
    found: dict[SummaryFile, NodeSummary] = {}
    problems, unused = [], []
    job_id = files[0].job_id
    with _job_directory(job_id, report_dir) as job_fd:
        size = sum(in_parallel(partial(_size, job_fd=job_fd), files))
        reading = _Reading(job_fd, report_dir / str(job_id), size > HELD_BYTES_MAX)
        for file, contents in zip(files, _early(files, job_fd), strict=True):
            budget = Budget(share)
            try:
                found[file] = reading.read(file, budget, contents)
            except RefusedError as err:
                problems.append(unreadable(file, str(err)))
            else:
                unused += [] if found[file].left_out else [budget.left]
        lacking = [file for file, one in found.items() if one.left_out]
        larger = larger_share(share, unused, len(lacking))
        for file in lacking if larger > share else ():
            with suppress(RefusedError):  # just replaced or removed: keep the first reading
                found[file] = reading.read(file, Budget(larger))
    problems += [_left_out(file, found[file]) for file in lacking if found[file].left_out]
    return list(found.values()), problems


def _left_out(file: SummaryFile, summary: NodeSummary) -> str:
    count = summary.left_out
    return (
        f"{file.node}: {count:,} of {count + len(summary.processes):,} processes left out: their "
        "measurements would take more memory than the node's share of the job's"
    )


def unreadable(file: SummaryFile, why: str) -> str:
    """Return the text about a summary that cannot be read."""
    return f"{file.node}: its summary cannot be read: {why}"
