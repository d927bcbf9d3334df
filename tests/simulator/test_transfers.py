# SPDX-License-Identifier: Apache-2.0
"""T, the time of a transfer without waiting, beside that of the simulated job."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nccl_inspector.model.card import Card, Operations
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded, load_summaries
from tests.simulator import plans
from tests.simulator.case import Planner, healthy, of_size
from tests.simulator.cases import with_noise
from tests.simulator.making import make_job
from tests.simulator.play import JOB_ID, play
from tests.simulator.truth import Truth

SEED = 3
ERROR_MAX = 0.05
SHORT_DDP, SHORT_FSDP = (of_size(one, wall_s=(90.0, 120.0)) for one in (plans.ddp, plans.fsdp))


def ratios(card: Card, truth: Truth) -> Iterator[tuple[Operations, float]]:
    """Yield the rows whose T is told, with T beside the true one."""
    for one in card.operations:
        key = int(one.communicator, 16), one.func, one.size_class
        if key in truth.transfer and not one.waiting_included:
            yield one, one.time_ns / truth.transfer[key][0]


@pytest.mark.parametrize(
    "planner",
    [SHORT_DDP, with_noise(SHORT_FSDP, batches=0.15)],
    ids=["data parallel", "batches differ, so that another rank is the last each time"],
)
def test_t_is_that_of_the_job_with_exact_records_and_without(
    tmp_path: Path, planner: Planner
) -> None:
    scenario = healthy(planner)(np.random.default_rng(SEED), SEED)
    job, truth = make_job(scenario, SEED)
    loaded = load_summaries(JOB_ID, play(job, tmp_path), None)
    without = tuple(
        replace(node, processes=tuple(replace(one, samples=None) for one in node.processes))
        for node in loaded.summaries
    )
    for found in (loaded, Loaded(without, loaded.attempts, loaded.problems)):
        told = list(ratios(build_card(found), truth))
        assert told
        for one, ratio in told:
            assert ratio == pytest.approx(1, abs=ERROR_MAX), (one.func, one.size_class, one.count)
            assert one.time_error_ns is not None
            assert one.waiting_share is not None
