# SPDX-License-Identifier: Apache-2.0
"""Clocks of processes on one time line, also while a slow link keeps ends apart."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.alignment import align
from nccl_inspector.analysis.replay.arrays import Ints, Mask

MS, S = 10**6, 10**9
RANKS, PIECES, STEPS = 4, 24, 40
DRIFT_PPM = np.array([0.0, 40.0, -25.0, 80.0])
AHEAD_NS = np.array([0, 5 * S, -3 * MS, 200 * MS])


def ends(slow: range) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return member, end by its own clock, joined, piece, and what the clock lacks, by row.

    While a link is slow, ranks behind it end a chunk of 20 ms later, or two: which ones differs by
    operation. (So it was on the sandbox cluster: 10 to 20 ms where the link did 10 MB/s.)
    """
    chance = np.random.default_rng(3)
    rows = []
    for piece in range(PIECES):
        for step in range(STEPS):
            true = round((piece * STEPS + step) * 0.5 * S)
            chunks = chance.integers(0, 3, RANKS) * (np.arange(RANKS) >= 2) * (piece in slow)
            for rank in range(RANKS):
                clock = AHEAD_NS[rank] + round(DRIFT_PPM[rank] * 1e-6 * true)
                end = true + chunks[rank] * 20 * MS + int(chance.integers(0, 20_000))
                rows.append((rank, end + clock, piece * STEPS + step, piece, -clock))
    member, end, joined, piece_of, lacks = np.array(rows, np.int64).T
    return member, end, joined, piece_of, lacks


def aligned_ns(slow: range) -> float:
    """Return by how much two clocks are apart at most, where all are moved alike."""
    member, end, joined, piece, lacks = ends(slow)
    every: Mask = np.ones(len(end), dtype=bool)
    _, found = align(member, end - MS, end, every, joined, piece)
    wrong = (found - end - lacks).reshape(-1, RANKS)
    return float(np.ptp(wrong, axis=1).max())


@pytest.mark.parametrize("slow", [range(0), range(8, 14), range(4), range(18, PIECES)])
def test_a_slow_link_moves_no_clock(slow: range) -> None:
    assert aligned_ns(slow) < 0.1 * MS


def test_where_ends_are_apart_all_the_time_they_are_taken_as_they_are() -> None:
    assert aligned_ns(range(PIECES)) < 45 * MS
