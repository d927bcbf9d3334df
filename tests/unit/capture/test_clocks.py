# SPDX-License-Identifier: Apache-2.0
"""Times by a GPU's clock become Unix times, whatever a file says of the clocks."""

import numpy as np
import pytest

from nccl_inspector.capture.line_samples import _on_unix_time, _OpRows

HOUR_NS = 3600 * 10**9


def rows(ahead_ns: list[int]) -> _OpRows:
    """Operations of one process, 10 ms apart; `ahead_ns`: by how much Unix time is ahead."""
    many = len(ahead_ns)
    zero, ones = np.zeros(many, np.int64), np.ones(many, dtype=bool)
    start = np.arange(many, dtype=np.int64) * 10_000_000 + 1000
    return _OpRows(
        kind=zero, process=zero, stream=zero, number=np.arange(many), peer=zero - 1,
        start_ns=start, by_gpu_clock=ones, time_ns=zero + 500, heard_ns=start + 500 + ahead_ns,
        called_ns=zero,
        bytes=zero + 8, sn=np.arange(many), grouped=~ones, by_cpu=~ones,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead_ns", "kept"),
    [
        ([5_000] * 9, 9),
        ([-9 * HOUR_NS, *[5_000] * 8], 0),  # the least difference is hours from the usual one
        ([0, 9 * HOUR_NS], 0),
        ([0, 0, 0, 9 * HOUR_NS], 3),
    ],
)
def test_clocks_that_are_hours_apart_cost_records_and_no_analysis(
    ahead_ns: list[int], kept: int
) -> None:
    found = _on_unix_time(rows(ahead_ns))
    assert len(found.kind) == kept
