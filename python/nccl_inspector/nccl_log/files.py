# SPDX-License-Identifier: Apache-2.0
"""Find the logs in files and folders, and read them one after the other."""

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader

FILES_MAX = 100_000
STDIN = "-"
_CHUNK_BYTES = 1 << 19
# O_NONBLOCK: a FIFO in a folder must not wait for its writer.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOTES_MAX = 20
# Of the files that `--nccl-inspector=MODE,debug` makes (spank/taskenv.c): the number of the task.
_TASK = re.compile(r"nccl\.[0-9]{1,10}\.[0-9a-z]{1,10}\.[0-9]{1,10}\.([0-9]{1,10})\.")

# Gets bytes read and bytes in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    size: int


def task_of(name: str) -> int | None:
    """Return the task that wrote a file, if the file's name says so."""
    match = _TASK.match(name)
    return int(match[1]) if match else None


def read_logs(paths: Sequence[Path], progress: Progress | None = None) -> LogReport:
    """Return what the logs say; a folder stands for all regular files below it.

    Raises:
        InspectorError: a path cannot be read, or is neither a file nor a folder.
    """
    found: list[_Found] = []
    notes: list[str] = []
    for path in paths:
        found += _files(path, notes)
    whole = sum(one.size for one in found)
    # In several files an equal host and pid need not be the same process: containers begin at 1.
    reader = LogReader(own_files=len(found) > 1)
    done = 0
    for one in found:
        try:
            done = _read(reader, one, done, whole, progress)
        except OSError as err:
            notes.append(f"{one.path}: {os.strerror(err.errno or 0)}")
    kept = notes[:_NOTES_MAX]
    if len(notes) > _NOTES_MAX:
        kept.append(f"and {len(notes) - _NOTES_MAX} more files that could not be read")
    reader.log.notes += kept
    return judge_log(reader.log, own_files=len(found) > 1)


def _files(path: Path, notes: list[str]) -> list[_Found]:
    if str(path) == STDIN:
        return [_Found(STDIN, 0)]
    try:
        status = path.stat()
    except (OSError, ValueError) as err:
        raise InspectorError(f"{path}: {_why(err)}") from err
    if stat.S_ISREG(status.st_mode):
        if not os.access(path, os.R_OK):
            raise InspectorError(f"{path}: {os.strerror(errno.EACCES)}")
        return [_Found(str(path), status.st_size)]
    if not stat.S_ISDIR(status.st_mode):
        raise InspectorError(f"{path}: neither a file nor a folder")
    return _below(path, notes)


def _why(err: OSError | ValueError) -> str:
    return os.strerror(err.errno or 0) if isinstance(err, OSError) else str(err)


def _below(folder: Path, notes: list[str]) -> list[_Found]:
    """Return the regular files below a folder, by name; links are not followed."""
    found: list[_Found] = []

    def failed(err: OSError) -> None:
        notes.append(f"{err.filename}: {os.strerror(err.errno or 0)}")

    for place, folders, names in os.walk(folder, onerror=failed):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118 - a name may be no valid text
            try:
                status = os.lstat(path)
            except OSError as err:
                failed(err)
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            if len(found) >= FILES_MAX:
                notes.append(f"{folder}: only the first {FILES_MAX:,} files were read")
                return found
            found.append(_Found(path, status.st_size))
    return found


def _read(reader: LogReader, one: _Found, done: int, whole: int, progress: Progress | None) -> int:
    if one.path == STDIN:
        reader.read("standard input", _chunks(sys.stdin.fileno()), time.localtime().tm_year)
        return done
    fd = os.open(one.path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "")
        year = time.gmtime(max(0, min(status.st_mtime, 1 << 40))).tm_year
        shown = os.fsencode(one.path).decode("utf-8", "replace")
        counted = _counted(_chunks(fd), done, whole, progress)
        reader.read(shown, counted, year, task_of(os.path.basename(one.path)))  # noqa: PTH119
    finally:
        os.close(fd)
    return done + one.size


def _chunks(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, _CHUNK_BYTES):
        yield chunk


def _counted(
    chunks: Iterator[bytes], done: int, whole: int, progress: Progress | None
) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if progress:
            progress(min(done, whole), whole)
