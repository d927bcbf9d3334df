# SPDX-License-Identifier: Apache-2.0
"""How the files of a capture are divided among the tasks that read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.file_parts import PART_BYTES_MIN, Part, parts_of
from nccl_inspector.capture.reader import batches

_PIECES_PER_TASK = 4  # so that no task waits long for the last one


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


def divide(files: Sequence[CaptureFile], tasks: int) -> list[Piece]:
    """Divide files into pieces; into more than for one process if there would be too few."""
    wanted = tasks * _PIECES_PER_TASK
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
