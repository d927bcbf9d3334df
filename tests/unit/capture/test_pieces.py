# SPDX-License-Identifier: Apache-2.0
"""How `analyze --slurm` divides a capture: by its size, and by the tasks that there are."""

import pytest

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.pieces import FILES_MAX, plan_work

GIB = 1 << 30


def files(count: int, size: int, ending: str = ".log") -> list[CaptureFile]:
    return [CaptureFile(f"{at}{ending}", size) for at in range(count)]


@pytest.mark.parametrize(
    ("capture", "tasks", "shares"),
    [
        (files(8, 1 << 20), 8, 8),
        (files(8, 1 << 20), 1024, 64),
        (files(64, GIB), 32, 32),
        (files(64, GIB), 256, 256),
        (files(64, GIB), 1024, 256),
        (files(1024, GIB), 1024, 512),
        (files(1024, GIB // 10, ".log.gz"), 1024, 512),
        (files(1024, GIB // 10), 256, 256),
    ],
)
def test_a_large_capture_has_shares_for_many_tasks_and_a_small_one_has_few(
    capture: list[CaptureFile], tasks: int, shares: int
) -> None:
    pieces, found = plan_work(capture, tasks)
    assert found == shares
    assert len(pieces) >= min(tasks, len(capture))
    assert len(pieces) * found <= FILES_MAX


def test_so_many_pieces_that_their_files_would_be_too_many_have_few_shares() -> None:
    pieces, shares = plan_work(files(20_000, GIB), 1024)
    assert (len(pieces) >= 20_000, shares) == (True, 64)
