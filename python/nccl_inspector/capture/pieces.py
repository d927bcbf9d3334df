# SPDX-License-Identifier: Apache-2.0
"""How the files of a capture are divided among the tasks that read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.file_parts import PART_BYTES_MIN, Part, parts_of
from nccl_inspector.capture.reader import batches
from nccl_inspector.capture.shares import SHARES_FEW, shares_of

_PIECES_PER_TASK = 4  # so that no task waits long for the last one
# Files that all tasks together may make while they read: each piece becomes one for each share.
FILES_MAX = 1 << 19


@dataclass(frozen=True, slots=True)
class Piece:
    """Files that are read together, or a part of one."""

    files: list[int]
    part: Part | None = None

    def size(self, files: Sequence[CaptureFile]) -> int:
        """Return how many bytes it has."""
        if self.part is not None:
            return self.part.end - self.part.begin
        return sum(files[one].size for one in self.files)


def plan_work(files: Sequence[CaptureFile], tasks: int) -> tuple[list[Piece], int]:
    """Return the pieces that are read, and into how many shares their lines are divided.

    With many shares there are fewer pieces, because of the number of files.
    """
    shares = shares_of(files, tasks)
    pieces = divide(files, max(tasks, min(tasks * _PIECES_PER_TASK, FILES_MAX // shares)))
    fitting = FILES_MAX // max(len(pieces), 1)
    return pieces, max(min(shares, fitting), min(shares, SHARES_FEW))


def divide(files: Sequence[CaptureFile], wanted: int) -> list[Piece]:
    """Divide files into about so many pieces; into more if these would be too large."""
    most_bytes = max(PART_BYTES_MIN, sum(one.size for one in files) // wanted)
    cut = {at for at, one in enumerate(files) if not one.gzipped and one.size >= 2 * most_bytes}
    found = [
        Piece([at], part) for at in sorted(cut) for part in parts_of(files[at].size, most_bytes)
    ]
    most = max(1, (len(files) - len(cut)) // wanted)
    for batch in batches(files):
        whole = [at for at in batch if at not in cut]
        found += [Piece(whole[at : at + most]) for at in range(0, len(whole), most)]
    return found
