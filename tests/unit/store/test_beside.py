# SPDX-License-Identifier: Apache-2.0
"""A report card beside those of similar jobs: when that changes the verdict, and when not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nccl_inspector.model.card import DEGRADED, HEALTHY, INFO, WARNING, Card
from nccl_inspector.render import tables
from nccl_inspector.render.output_limits import PAGE
from nccl_inspector.report.similar import beside_similar
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import put, writing
from nccl_inspector.store.place import IndexPlace
from tests.support import example_cards

SPREAD = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)


AMY, MALLORY = (4711, "amy"), (4712, "mallory")


def job(job_id: int, factors: Sequence[float], owner: tuple[int, str] = AMY) -> Card:
    """A healthy job with an operation for each factor of bandwidth, the first the longest."""
    card = example_cards.healthy()
    one = next(
        one for one in card.operations if one.bus_gbs and not one.waiting_included and one.time_ns
    )
    operations = tuple(
        replace(one, size_class=12 + at, count=1000 if at == 0 else 10, bus_gbs=100.0 * factor)
        for at, factor in enumerate(factors)
    )
    uid, user = owner
    named = replace(card.job, job_id=job_id, uid=uid, user=user)
    return replace(card, job=named, operations=operations)


def keep(store: IndexPlace, *done: Card) -> None:
    with writing(store, None) as index:
        for one in done:
            put(index, rows_of(one))


MOSTLY_SQLITE = pytest.mark.parametrize(
    "index_place",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)],
    indirect=True,
)


@pytest.fixture
def store(index_place: IndexPlace) -> IndexPlace:
    """Six jobs that had four kinds of operation."""
    keep(index_place, *(job(100 + at, [factor] * 4) for at, factor in enumerate(SPREAD)))
    return index_place


def test_a_job_whose_operations_are_mostly_slower_than_in_its_like_is_degraded(
    store: IndexPlace,
) -> None:
    card = beside_similar(job(7, [0.7, 1, 1, 1]), store)
    (finding,) = card.findings
    assert (card.verdict.status, finding.severity, card.exit_code) == (DEGRADED, WARNING, 1)
    assert "97% of the job's operations" in finding.detail


def test_a_slow_kind_with_little_of_the_time_is_told_and_makes_no_job_degraded(
    store: IndexPlace,
) -> None:
    card = beside_similar(job(7, [1, 1, 0.7, 1]), store)
    (finding,) = card.findings
    assert (card.verdict.status, finding.severity, card.exit_code) == (HEALTHY, INFO, 0)


def test_without_an_index_the_verdict_stays_and_that_is_said(index_place: IndexPlace) -> None:
    card = beside_similar(job(7, [0.7]), index_place)
    assert (card.verdict.status, card.findings) == (HEALTHY, ())
    assert "no index" in card.data_quality.inputs[-1].detail


def test_without_some_ranks_nothing_is_compared(store: IndexPlace) -> None:
    """Then T may be the waiting for a rank that did not tell, and not the network's."""
    card = job(7, [0.3, 0.3])
    comms = tuple(replace(one, ranks_seen=one.nranks // 2) for one in card.communicators)
    card = beside_similar(replace(card, communicators=comms), store)
    assert (card.verdict.status, card.findings, card.baseline) == (HEALTHY, (), None)
    assert rows_of(card).kinds == ()


def test_jobs_of_another_user_make_no_job_degraded(store: IndexPlace) -> None:
    """The more so as everything that is compared was written by that user's processes."""
    keep(store, *(job(200 + at, [2.0] * 4, MALLORY) for at in range(21)))
    card = beside_similar(job(7, [1, 1, 1, 1]), store)
    assert (card.verdict.status, card.findings) == (HEALTHY, ())
    assert card.baseline is not None
    assert card.baseline.jobs == len(SPREAD)


@MOSTLY_SQLITE
def test_jobs_of_another_user_hide_no_degradation(store: IndexPlace) -> None:
    keep(store, *(job(200 + at, [0.7] * 4, MALLORY) for at in range(400)))
    card = beside_similar(job(7, [0.7, 1, 1, 1]), store)
    assert card.verdict.status == DEGRADED


def test_jobs_of_whoever_had_the_users_number_before_do_not_count(store: IndexPlace) -> None:
    card = beside_similar(job(7, [0.7] * 4, (AMY[0], "new")), store)
    assert (card.verdict.status, card.baseline) == (HEALTHY, None)
    assert card.data_quality.inputs[-1].detail == "fewer than 5 similar jobs of this user"


def test_other_users_jobs_are_information_with_the_number_of_users(store: IndexPlace) -> None:
    for uid in range(6):
        owner = (5000 + uid, f"u{uid}")
        keep(store, *(job(1000 + 10 * uid + at, [2.0] * 4, owner) for at in range(3)))
    card = beside_similar(job(7, [1, 1, 1, 1]), store)
    assert (card.verdict.status, card.findings) == (HEALTHY, ())
    assert card.baseline is not None
    assert {one.median for one in card.baseline.others} == {200.0}
    about = tables.baseline(card, PAGE).about
    assert about == "6 earlier jobs of the same user; 18 jobs of 6 other users as information"


@MOSTLY_SQLITE
def test_few_other_users_are_not_even_information(store: IndexPlace) -> None:
    for uid in range(4):
        owner = (5000 + uid, f"u{uid}")
        keep(store, *(job(1000 + 100 * uid + at, [2.0], owner) for at in range(50)))
    card = beside_similar(job(7, [1.0]), store)
    assert card.baseline is not None
    assert card.baseline.others == ()
