# SPDX-License-Identifier: Apache-2.0
"""Points at which all ranks waited are found by what the other operations show."""

from dataclasses import replace

import numpy as np

from nccl_inspector.analysis.replay.hidden import fill_holes
from nccl_inspector.analysis.replay.records import Comm, Records
from nccl_inspector.model import PEER_NONE

MS = 10**6
RANKS, STEPS = 4, 100


def records(synchronised: bool, late_ms: float = 0) -> Records:
    """Two pairs of ranks; each pair meets twice a step, all meet after that where they are so.

    `late_ms`: by so much the second pair comes last. In a step of ten the machine is busy: the
    first is as late and a little more, and what the second does next takes longer.
    """
    chance = np.random.default_rng(5)
    ready = np.zeros(RANKS)
    own_ns = np.array([MS / 10, MS / 10, 0, 0]) if late_ms else MS / 10
    pair_ns = (MS, MS / 100) if late_ms else MS
    rows = []
    for step in range(STEPS):
        for part, work_ms in enumerate((50, 80)):
            ready += work_ms * MS + chance.normal(0, own_ns, RANKS)
            ready += np.repeat(chance.normal(0, pair_ns, 2), 2)
            if late_ms and part:
                busy = chance.random() < 0.1
                ready[2:] = ready[2:].max() + late_ms * MS
                ready[:2] = ready[2] + MS / 10 if busy else ready[:2]
            for pair in ((0, 1), (2, 3)):
                begin = ready[list(pair)].copy()
                end = begin.max() + MS
                ready[list(pair)] = end
                rows += [
                    (rank, pair[0] // 2, 2 * step + part, began, end)
                    for rank, began in zip(pair, begin, strict=True)
                ]
        if synchronised:
            ready[:] = ready.max() + 50_000
        if late_ms and busy:
            ready[2:] += MS / 3
    rows.sort(key=lambda row: (row[0], row[3]))
    member, comm, number, begin, end = np.array(rows).astype(np.int64).T
    same = np.zeros(len(rows), np.int64)
    return Records(
        comms=tuple(Comm(at + 1, "tp", 2, 1, 0, (2 * at, 2 * at + 1)) for at in range(2)),
        member=member, comm=comm, func=same + 1, size_class=24 - 4 * (number % 2), number=number,
        peer=same + PEER_NONE, bytes=same + (1 << 24), begin=begin, end=end, queued=same,
        joined=number * 2 + comm, piece=same, run=same, members=RANKS, shift=same, lost=0,
    )  # fmt: skip


def test_a_point_where_all_wait_becomes_an_operation() -> None:
    found = fill_holes(records(True))
    hidden = found.comm == 2
    assert hidden.sum() == RANKS * (STEPS - 1)  # after the last step nothing follows
    assert found.comms[2].members == (0, 1, 2, 3)
    for joined in np.unique(found.joined[hidden]):
        rows = found.joined == joined
        assert len(set(found.end[rows])) == 1
        assert found.end[rows][0] - found.begin[rows].max() <= 50_000


def test_who_is_always_last_there_says_nothing_against_it() -> None:
    found = fill_holes(records(True, late_ms=40))
    assert (found.comm == 2).sum() == RANKS * (STEPS - 1)
    apart = records(False, late_ms=40)
    assert fill_holes(apart) is apart


def test_ranks_that_do_not_wait_for_each_other_are_left_alone() -> None:
    given = records(False)
    assert fill_holes(given) is given


def test_a_few_records_are_left_alone() -> None:
    given = records(True)
    few = replace(
        given, **{name: getattr(given, name)[:3] for name in given.__slots__
                  if isinstance(getattr(given, name), np.ndarray)}
    )  # fmt: skip
    assert fill_holes(few) is few
