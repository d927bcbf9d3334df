# SPDX-License-Identifier: Apache-2.0
"""The map of who came late when."""

import numpy as np
import pytest

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.late_map import map_lateness
from nccl_inspector.analysis.slow_times.line_columns import Columns
from nccl_inspector.model.process import FUNCS

ALL_REDUCE = FUNCS.index("AllReduce")
COMM = JoinedComm(7, "world", 4, 4, {}, (), ())
NAMES = {member: f"rank {member}" for member in range(4)}


def line(member: int, medians_ms: list[float], first: int = 0, func: int = ALL_REDUCE) -> Columns:
    count = len(medians_ms)
    ones = np.ones(count)
    start_s = 1000 + 10 * (first + np.arange(count))
    ns = np.array(medians_ms) * 1e6
    return Columns(
        (7, func, 20), member, member, 10, 1000, start_s, ones, ones, ns, ns, ns, ones, ones
    )


def test_the_late_rank_is_late_in_the_windows_in_which_it_was() -> None:
    columns = [line(member, [5.0, 5.0, 5.0]) for member in range(3)] + [line(3, [5.0, 2.0, 5.0])]
    found = dict(map_lateness(columns, [COMM], NAMES, 100))
    assert found["rank 3"] == pytest.approx((0, 3e6, 0))
    assert found["rank 0"] == pytest.approx((0, 0, 0))


def test_windows_of_which_too_few_ranks_tell_are_empty() -> None:
    columns = [line(0, [5.0]), line(1, [5.0, 5.0]), line(2, [5.0, 5.0]), line(3, [5.0], first=1)]
    found = dict(map_lateness(columns, [COMM], NAMES, 100))
    assert found["rank 0"] == (0.0, None)
    assert found["rank 3"] == (None, 0.0)
    assert map_lateness(columns[:2], [COMM], NAMES, 100) == ()


def test_sends_make_no_map() -> None:
    columns = [line(member, [5.0], func=FUNCS.index("Send")) for member in range(4)]
    assert map_lateness(columns, [COMM], NAMES, 100) == ()
    assert map_lateness([], [COMM], NAMES, 100) == ()
