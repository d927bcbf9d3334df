# SPDX-License-Identifier: Apache-2.0
"""Jobs as the windows of their unions show them: operations that ended, and how busy GPUs were."""

import numpy as np

from nccl_inspector.summary.unpacked_samples import UnionColumns

WINDOW_S, WINDOWS, START_S = 10, 100, 1_795_000_000
OPERATIONS, BUSY_S = 100, 2.0  # of a usual window
RANKS = 8


class WindowJob:
    """Windows of all ranks; each usual window has as many operations."""

    def __init__(self) -> None:
        self.operations = np.full((RANKS, WINDOWS), OPERATIONS)
        self.busy_s = np.full((RANKS, WINDOWS), BUSY_S)

    def slow(self, first: int, last: int, operations: int, ranks: slice = slice(None)) -> None:
        """Let ranks end fewer operations in some windows, without waiting in them."""
        self.operations[ranks, first : last + 1] = operations
        self.busy_s[ranks, first : last + 1] = BUSY_S * operations / OPERATIONS

    def unions(self) -> list[list[UnionColumns]]:
        """Return what the boxes say of it; windows in which nothing ran are missing."""
        found = []
        for rank in range(RANKS):
            at = np.flatnonzero((self.operations[rank] > 0) | (self.busy_s[rank] > 0))
            zero = np.zeros(len(at), np.int64)
            found.append([
                UnionColumns(
                    0, WINDOW_S, START_S + at * WINDOW_S, self.operations[rank, at], zero,
                    np.rint(self.busy_s[rank, at] * 1e9).astype(np.int64), zero,
                )
            ])  # fmt: skip
        return found

    def stop(self, ranks: slice, at: int, seconds: float) -> None:
        """Let ranks stand still from some window on, while the others wait in an operation."""
        left_s = seconds
        while left_s > 0:
            here_s = min(left_s, float(WINDOW_S))
            goes_on = 1 - here_s / WINDOW_S
            waiting = np.ones(RANKS, dtype=bool)
            waiting[ranks] = False
            self.operations[:, at] = np.rint(OPERATIONS * goes_on)
            self.busy_s[:, at] = BUSY_S * goes_on
            self.busy_s[waiting, at] += here_s
            left_s, at = left_s - here_s, at + 1
