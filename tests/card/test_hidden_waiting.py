# SPDX-License-Identifier: Apache-2.0
"""A healthy job is said to be one only as far as medians can tell."""

from nccl_inspector.card.build import build_card
from nccl_inspector.card.model import HEALTHY, LOW, Card
from nccl_inspector.report import Loaded
from tests.boxes import MS, fixed_chance
from tests.synthetic.jobs import Job, through_summaries


def card_of(stop_ns: int) -> Card:
    """Of a job whose rank 0 stops for so long in each tenth iteration."""
    job = Job(fixed_chance(9), 8)
    world = job.group("world", range(8))
    for iteration in range(1000):
        job.compute(200 * MS, {0: stop_ns} if iteration % 10 == 0 else {})
        job.collective(world, "AllReduce", 1 << 26, 8 * MS)
    return build_card(Loaded(tuple(through_summaries(job.processes())), (0,), ()))


def test_waiting_that_medians_do_not_see_is_told_with_the_verdict() -> None:
    """Each tenth iteration rank 0 stops for a second, as to write."""
    verdict = card_of(1000 * MS).verdict
    assert (verdict.status, verdict.confidence) == (HEALTHY, LOW)
    assert "yet a rank waited 1 min 28 s of it for others at the mean" in verdict.summary


def test_a_job_that_hardly_waits_is_not_told_so() -> None:
    assert "yet" not in card_of(0).verdict.summary
