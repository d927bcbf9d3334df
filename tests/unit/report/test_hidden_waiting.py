# SPDX-License-Identifier: Apache-2.0
"""A rank that stops now and then is in no median, and costs what it costs."""

import pytest

from nccl_inspector.model.card import CANNOT_TELL, DEGRADED, HEALTHY, Card
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import MS, fixed_chance
from tests.support.synthetic.jobs import Job


def card_of(stop_ns: int, *, sampled: bool) -> Card:
    """Of a job whose rank 3 stops for so long in each tenth iteration."""
    job = Job(fixed_chance(9), 8, sampled=sampled)
    world = job.group("world", range(8))
    for iteration in range(400):
        job.compute(200 * MS, {3: stop_ns} if iteration % 10 == 0 else {})
        job.collective(world, "AllReduce", 1 << 26, 8 * MS)
    return build_card(Loaded(tuple(job.summaries()), (0,), ()))


def test_who_stops_now_and_then_is_named_with_what_that_costs() -> None:
    card = card_of(100 * MS, sampled=True)
    assert (card.verdict.status, card.stragglers[0].rank) == (DEGRADED, "rank 3")
    assert card.findings[0].cost_share == pytest.approx(10 / 218, rel=0.2)


def test_without_exact_records_such_a_job_is_not_called_healthy() -> None:
    verdict = card_of(1000 * MS, sampled=False).verdict
    assert verdict.status == CANNOT_TELL
    assert verdict.waiting_share is not None
    assert verdict.waiting_share > 0.9


def test_a_job_that_hardly_waits_is_healthy() -> None:
    assert card_of(0, sampled=True).verdict.status == HEALTHY
