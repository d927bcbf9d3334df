# SPDX-License-Identifier: Apache-2.0
"""A report card beside those of similar jobs: when that changes the verdict, and when not."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.card.model import DEGRADED, HEALTHY, INFO, WARNING, Card
from nccl_inspector.store.beside import beside_similar
from nccl_inspector.store.index import INDEX, put, writing
from nccl_inspector.store.rows import rows_of
from tests import cards

SPREAD = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)


def job(job_id: int, factors: Sequence[float]) -> Card:
    """A healthy job with an operation for each factor of bandwidth, the first with most time."""
    card = cards.healthy()
    one = next(
        one for one in card.operations if one.bus_gbs and not one.waiting_included and one.time_ns
    )
    operations = tuple(
        replace(one, size_class=12 + at, count=1000 if at == 0 else 10, bus_gbs=100.0 * factor)
        for at, factor in enumerate(factors)
    )
    return replace(card, job=replace(card.job, job_id=job_id), operations=operations)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six jobs that had four kinds of operation."""
    with writing(tmp_path / INDEX, None) as index:
        for number, factor in enumerate(SPREAD):
            put(index, rows_of(job(100 + number, [factor] * 4)))
    return tmp_path


def test_a_job_whose_operations_are_mostly_slower_than_in_its_like_is_degraded(store: Path) -> None:
    card = beside_similar(job(7, [0.7, 1, 1, 1]), store)
    (finding,) = card.findings
    assert (card.verdict.status, finding.severity, card.exit_code) == (DEGRADED, WARNING, 1)
    assert "97% of the job's operations" in finding.detail


def test_a_slow_kind_with_little_of_the_time_is_told_and_makes_no_job_degraded(store: Path) -> None:
    card = beside_similar(job(7, [1, 1, 0.7, 1]), store)
    (finding,) = card.findings
    assert (card.verdict.status, finding.severity, card.exit_code) == (HEALTHY, INFO, 0)


def test_without_an_index_the_verdict_stays_and_that_is_said(tmp_path: Path) -> None:
    card = beside_similar(job(7, [0.7]), tmp_path)
    assert (card.verdict.status, card.findings) == (HEALTHY, ())
    assert "no index" in card.data_quality.inputs[-1].detail


def test_without_some_ranks_nothing_is_compared(store: Path) -> None:
    """Then T may be the waiting for a rank that did not tell, and not the network's."""
    card = job(7, [0.3, 0.3])
    comms = tuple(replace(one, ranks_seen=one.nranks // 2) for one in card.communicators)
    card = beside_similar(replace(card, communicators=comms), store)
    assert (card.verdict.status, card.findings, card.baseline) == (HEALTHY, (), None)
    assert rows_of(card).kinds == ()
