# SPDX-License-Identifier: Apache-2.0
"""The files of one job id in the report directory: which there are, and what each is about."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.hostile import read_at
from nccl_inspector.summary import (
    HEAD_BYTES_MAX,
    SUMMARY_BYTES_MAX,
    Head,
    NodeSummary,
    decode,
    decode_head,
)

_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,254}?)\.([0-9]{1,9})\.nodesummary")
_HEAD_BYTES_USUAL = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AbsentError(InspectorError):
    """There is no summary of this job id."""


@dataclass(frozen=True, slots=True)
class SummaryFile:
    """A node summary by its name."""

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
    """All summaries of one job id; `written_ns` is of the newest that can be read, or 0."""

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
        raise AbsentError(f"no report of job {job_id}: nothing of it is in {report_dir}") from err
    except OSError as err:
        raise InspectorError(
            f"the report of job {job_id} cannot be read: {path}: {err.strerror}"
        ) from err
    try:
        yield job_fd
    finally:
        os.close(job_fd)


def _files(job_id: int, job_fd: int) -> list[SummaryFile]:
    """Return the summaries there are, sorted by attempt and node."""
    return sorted(
        (
            SummaryFile(job_id, int(match[2]), match[1], match[0])
            for match in filter(None, map(_FILE.fullmatch, os.listdir(job_fd)))
        ),
        key=lambda file: (file.attempt, file.node),
    )


@contextmanager
def _opened(file: SummaryFile, job_fd: int) -> Iterator[int]:
    try:
        fd = os.open(file.name, _REGULAR, dir_fd=job_fd)
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


def _read(file: SummaryFile, job_fd: int) -> NodeSummary:
    with _opened(file, job_fd) as fd:
        size = os.fstat(fd).st_size
        if size > SUMMARY_BYTES_MAX:
            raise RefusedError("too_big")
        summary = decode(read_at(fd, size, 0))
    _expect(file, summary.head)
    return summary


def _written_ns(file: SummaryFile, job_fd: int) -> int:
    try:
        return os.stat(file.name, dir_fd=job_fd, follow_symlinks=False).st_mtime_ns
    except OSError:  # renewed or removed just now
        return 0


def look(job_id: int, report_dir: Path) -> Shelf:
    """Return what is there of a job id, from the first lines alone.

    Raises:
        AbsentError: nothing is.
        InspectorError: its directory cannot be read.
    """
    heads: dict[SummaryFile, Head] = {}
    refused = []
    written_ns = 0
    with _job_directory(job_id, report_dir) as job_fd:
        for file in _files(job_id, job_fd):
            try:
                heads[file] = _read_head(file, job_fd)
            except RefusedError as err:
                refused.append(Refused(file, str(err), _written_ns(file, job_fd)))
            else:
                written_ns = max(written_ns, _written_ns(file, job_fd))
    if not heads and not refused:
        raise AbsentError(f"no report of job {job_id}: {report_dir / str(job_id)} is empty")
    return Shelf(job_id, heads, tuple(refused), written_ns)


def written(job_id: int, report_dir: Path) -> dict[SummaryFile, int]:
    """Return the summaries of a job id, unread, with when they were written (Unix nanoseconds).

    Raises:
        InspectorError: the job's directory is there and cannot be read.
    """
    try:
        with _job_directory(job_id, report_dir) as job_fd:
            return {file: _written_ns(file, job_fd) for file in _files(job_id, job_fd)}
    except AbsentError:
        return {}


def peek(job_id: int, report_dir: Path) -> list[Head]:
    """Return the heads of a few summaries of a job id: none when there is none that can be read.

    A neighbour's directory may be large, another user's or gone: it costs three small reads.
    The last attempt and the first may be of different jobs, where the id was given again.
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
    files: list[SummaryFile], report_dir: Path
) -> tuple[list[NodeSummary], list[str]]:
    """Return the whole summaries of files of one job id, and in words which cannot be read."""
    summaries, problems = [], []
    with _job_directory(files[0].job_id, report_dir) as job_fd:
        for file in files:
            try:
                summaries.append(_read(file, job_fd))
            except RefusedError as err:
                problems.append(unreadable(file, str(err)))
    return summaries, problems


def unreadable(file: SummaryFile, why: str) -> str:
    """Return the line of a summary that cannot be read."""
    return f"{file.node}: its summary cannot be read: {why}"
