# SPDX-License-Identifier: Apache-2.0
"""Find and open the JSON files of a capture; symbolic links are never followed."""

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.system.safe_files import NO_LINK, open_directory

END = ".end"  # appended to the name of a process's newest file when the process has ended
ENDINGS = (".log", ".jsonl", ".log.gz", ".jsonl.gz")
FILES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A file with its path below the directory and its size in bytes.

    `has_end`: next to it is a file that says that its process ended.
    """

    name: str
    size: int
    has_end: bool = False

    @property
    def gzipped(self) -> bool:
        """Whether it is compressed, judged by its name."""
        return self.name.endswith(".gz")


def find_files(directory: Path, refused: Counter[str]) -> list[CaptureFile]:
    """Return the files that may have JSON lines; `refused` counts unusable ones, by reason.

    Raises:
        InspectorError: there is no such directory, no such file, or far too many.
    """
    if not directory.is_dir():
        raise InspectorError(f"{directory}: no such directory")
    found: list[CaptureFile] = []

    def skip(_: OSError) -> None:
        refused["folder_unreadable"] += 1

    for folder, _, names, folder_fd in os.fwalk(directory, onerror=skip):
        listed = set(names)
        for name in names:
            if not name.endswith(ENDINGS):
                continue
            try:
                status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except FileNotFoundError:  # a running job renames and removes its files
                continue
            if not stat.S_ISREG(status.st_mode):
                refused["file_not_regular"] += 1
                continue
            below = str((Path(folder) / name).relative_to(directory))
            found.append(CaptureFile(below, status.st_size, name + END in listed))
            if len(found) > FILES_MAX:
                raise InspectorError(f"{directory}: more than {FILES_MAX} files")
    if not found:
        raise InspectorError(f"{directory}: no JSON lines ({', '.join(ENDINGS)}) below it")
    return sorted(found, key=lambda file: file.name)


@contextmanager
def opened(directory: Path, file: CaptureFile) -> Iterator[int]:
    """Give the descriptor of a file; no part of its path may be a link.

    Raises:
        OSError: the file is gone or is no regular file any more.
    """
    *folders, name = Path(file.name).parts
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = open_directory(folder, fd)
            os.close(fd)
            fd = below
        file_fd = os.open(name, NO_LINK, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        if not stat.S_ISREG(os.fstat(file_fd).st_mode):
            raise OSError("not a regular file")
        yield file_fd
    finally:
        os.close(file_fd)
