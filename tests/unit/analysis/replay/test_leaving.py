# SPDX-License-Identifier: Apache-2.0
"""Whether a rank may leave an operation before the last one has come."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.model.process import FUNCS, PEER_NONE

MS, TIMES = 1_000_000, 200
SEND, RECV, ALL_REDUCE = (FUNCS.index(name) for name in ("Send", "Recv", "AllReduce"))


def records(funcs: tuple[int, int], *, early: bool) -> Records:
    """Two ranks; in each second operation rank 1 comes 3 ms after rank 0, which may be gone."""
    number = np.repeat(np.arange(1, TIMES + 1), 2)
    member = np.tile([0, 1], TIMES)
    late = 3 * MS * (number % 2) * member
    begin = number * 20 * MS + late
    both = number * 20 * MS + 3 * MS * (number % 2) + MS
    end = np.where((member == 0) & early, begin + MS, both)
    order = np.argsort(member, kind="stable")
    same = np.zeros(2 * TIMES, np.int64)
    peer = 1 - member if SEND in funcs else same + PEER_NONE
    columns = {
        "member": member, "comm": same, "func": np.tile(funcs, TIMES), "size_class": same + 10,
        "number": number, "peer": peer, "bytes": same + 1024, "begin": begin, "end": end,
        "queued": same, "joined": number - 1, "piece": same, "run": same,
    }  # fmt: skip
    comms = (RecordedComm(1, "pp", 2, 2, 0, (0, 1)),)
    ordered = {name: column[order] for name, column in columns.items()}
    return Records(comms, **ordered, members=2, lost=0)


def test_a_small_send_lies_in_a_buffer_and_its_rank_goes_on() -> None:
    made = records((SEND, RECV), early=True)
    left = find_order(made).left
    assert left.sum() == TIMES / 2
    assert (made.member[left] == 0).all()


@pytest.mark.parametrize("funcs", [(SEND, RECV), (ALL_REDUCE, ALL_REDUCE)])
def test_where_both_end_together_nobody_has_left(funcs: tuple[int, int]) -> None:
    assert not find_order(records(funcs, early=False)).left.any()


def test_nobody_leaves_an_allreduce_whatever_the_clocks_say() -> None:
    assert not find_order(records((ALL_REDUCE, ALL_REDUCE), early=True)).left.any()
