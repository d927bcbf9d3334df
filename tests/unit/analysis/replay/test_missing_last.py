# SPDX-License-Identifier: Apache-2.0
"""Of a job of which a node left no data it is known whether the others wait for that node."""

from collections.abc import Collection

import pytest

from nccl_inspector.analysis.replay.missing_last import MOST, missing_last_share
from nccl_inspector.analysis.replay.order import find_order
from nccl_inspector.analysis.replay.records import gather
from tests.support.marks import long_but
from tests.support.step_jobs import Fault, data_parallel

_GONE = range(4, 8)  # the ranks of the second node


def share(fault: Fault, seed: int = 1, gone: Collection[int] = _GONE) -> float:
    job = data_parallel(steps=800, fault=fault, uneven=0.01, seed=seed)
    records = gather([one for one in job.sources() if one.member not in gone], job.ranks)
    assert records is not None
    return missing_last_share(records, find_order(records))


SEEDS = long_but({1}, [1, 2, 3])


@pytest.mark.parametrize("seed", SEEDS)
def test_who_makes_the_others_wait_is_known_to_be_among_the_missing(seed: int) -> None:
    assert share(Fault(tuple(_GONE), 1.2), seed) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [Fault(), Fault((9,), 1.2), Fault(tuple(_GONE), 1.2, every=10)])
def test_missing_ranks_that_are_last_no_oftener_than_others_are_not_waited_for(
    fault: Fault, seed: int
) -> None:
    assert share(fault, seed) < MOST


def test_if_all_have_records_nobody_is_missing() -> None:
    assert share(Fault(tuple(_GONE), 1.2), gone=()) == 0.0
