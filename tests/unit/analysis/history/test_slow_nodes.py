# SPDX-License-Identifier: Apache-2.0
"""Slow nodes over many users' jobs, similar jobs, two jobs beside each other: seeded, pure."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nccl_inspector.analysis.history.baseline import (
    OTHERS_MIN,
    PastKind,
    beside_others,
    compare_kind,
    compare_kinds,
    make_baseline,
)
from nccl_inspector.analysis.history.compare import (
    FASTER,
    NOISE,
    ONLY_B,
    SLOWER,
    UNKNOWN,
    Difference,
    compare,
)
from nccl_inspector.analysis.history.node_score import NodeScore
from nccl_inspector.analysis.kinds import KindKey, KindRow
from nccl_inspector.model.card import Card, Environment
from nccl_inspector.model.table_columns import COLUMNS
from nccl_inspector.store.card_rows import nodes_of
from nccl_inspector.store.text import difference_text, nodes_text
from tests.support.boxes import fixed_chance
from tests.support.scored_jobs import ScoredJob, score_nodes
from tests.support.stored_cards import card, communicator, operations

NODES = [f"n{at:03}" for at in range(200)]
SIZES = (4, 8, 16)
USERS = [f"u{at:02}" for at in range(12)]
NOISE_SHARE = 0.03


def key(nodes: int = 8, func: str = "AllReduce", **words: object) -> KindKey:
    one = KindKey("mixed", func, 26, 8 * nodes, nodes, "H100", "2.30", "RING")
    return replace(one, **words)  # type: ignore[arg-type]  # words of its fields


def job(
    chance: random.Random, job_id: int, nodes: list[str], slow: Mapping[str, float]
) -> ScoredJob:
    """A job in a mesh of which the slowest node makes the pace."""
    pace = min([slow.get(node, 1.0) for node in nodes])
    kinds = tuple(
        (key(len(nodes), func), 300 * pace * chance.gauss(1, NOISE_SHARE), 1e12)
        for func in ("AllReduce", "AllGather")
    )
    owner = USERS[job_id % len(USERS)]
    return ScoredJob(job_id, dict.fromkeys(nodes, 0.0), frozenset(), kinds, owner)


def fleet(seed: int, jobs: int, slow: Mapping[str, float]) -> list[NodeScore]:
    chance = fixed_chance(seed)
    return score_nodes(
        [job(chance, at, chance.sample(NODES, chance.choice(SIZES)), slow) for at in range(jobs)]
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_slow_node_among_200_comes_first_and_alone(seed: int) -> None:
    scores = fleet(seed, 500, {"n042": 0.85})
    assert [one.node for one in scores if one.suspect] == ["n042"]
    assert scores[0].node == "n042"
    assert scores[0].depth == pytest.approx(-0.15, abs=0.03)
    assert scores[0].reasons == ("slow",)


@pytest.mark.parametrize("seed", range(30))
def test_without_a_slow_node_nobody_is_called_one(seed: int) -> None:
    assert [one for one in fleet(100 + seed, 500, {}) if one.suspect] == []


def test_two_slow_nodes_are_both_found() -> None:
    scores = fleet(7, 800, {"n010": 0.7, "n150": 0.85})
    assert [one.node for one in scores if one.suspect] == ["n010", "n150"]


def test_nodes_that_always_run_together_are_not_told_apart() -> None:
    chance = fixed_chance(3)
    twins = ["n000", "n001"]
    jobs = [job(chance, at, chance.sample(NODES[2:], 8), {}) for at in range(300)]
    jobs += [
        job(chance, 300 + at, twins + chance.sample(NODES[2:], 6), {"n000": 0.8})
        for at in range(30)
    ]
    (first, *rest) = [one for one in score_nodes(jobs) if one.suspect]
    assert rest == []
    assert {first.node, *first.with_it} == set(twins)


def test_a_node_that_warnings_are_about_again_and_again_is_a_suspect() -> None:
    chance = fixed_chance(4)
    jobs = [job(chance, at, chance.sample(NODES, 8), {}) for at in range(500)]
    named = [
        replace(one, named=frozenset({"n007"} if "n007" in one.local else {min(one.local)}))
        if at % 10 == 0 or "n007" in one.local
        else one
        for at, one in enumerate(jobs)
    ]
    (suspect,) = [one for one in score_nodes(named) if one.suspect]
    assert (suspect.node, suspect.reasons) == ("n007", ("named",))
    text = nodes_text(score_nodes(named), len(named), False)
    flat = " ".join(text.split())
    assert f"warnings are about it in {suspect.named} of {suspect.jobs} jobs, by " in flat
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_a_node_of_few_jobs_is_never_judged() -> None:
    chance = fixed_chance(5)
    jobs = [job(chance, at, chance.sample(NODES[1:], 8), {}) for at in range(200)]
    jobs += [job(chance, 200 + at, ["n000", *NODES[1:8]], {"n000": 0.3}) for at in range(4)]
    scores = {one.node: one for one in score_nodes(jobs)}
    assert (scores["n000"].z, scores["n000"].suspect) == (None, False)


def of_user(one: ScoredJob, owner: str) -> ScoredJob:
    return replace(one, owner=owner)


def test_the_jobs_of_one_user_accuse_no_node() -> None:
    chance = fixed_chance(6)
    jobs = [job(chance, at, chance.sample(NODES, 8), {}) for at in range(500)]
    # Far more jobs than all others together, slow and with warnings wherever n007 takes part.
    forged = [
        of_user(job(chance, 500 + at, nodes, {"n007": 0.3}), "mallory")
        for at in range(1500)
        for nodes in [chance.sample(NODES, 8) if at % 3 else ["n007", *chance.sample(NODES[8:], 7)]]
    ]
    forged = [replace(one, named=frozenset({"n007"}) & frozenset(one.local)) for one in forged]
    suspects = [one.node for one in score_nodes(jobs + forged) if one.suspect]
    assert suspects == []
    assert "n007" in [one.node for one in score_nodes(forged, each_job=True) if one.suspect]


def test_the_jobs_of_one_user_hide_no_slow_node() -> None:
    chance = fixed_chance(8)
    jobs = [
        job(chance, at, chance.sample(NODES, chance.choice(SIZES)), {"n042": 0.85})
        for at in range(500)
    ]
    forged = [
        of_user(job(chance, 500 + at, ["n042", *chance.sample(NODES, 7)], {}), "mallory")
        for at in range(1500)
    ]
    scores = score_nodes(jobs + forged)
    assert [one.node for one in scores if one.suspect] == ["n042"]


def test_figures_of_another_user_do_not_move_how_a_job_is_rated() -> None:
    chance = fixed_chance(9)
    jobs = [job(chance, at, chance.sample(NODES[:100], 8), {}) for at in range(500)]
    # Much too good, of the same kinds, on the other half of the nodes.
    forged = [
        of_user(job(chance, 500 + at, chance.sample(NODES[100:], 8), {}), "mallory")
        for at in range(500)
    ]
    forged = [
        replace(one, kinds=tuple((key, 10 * gbs, ns) for key, gbs, ns in one.kinds))
        for one in forged
    ]
    assert [one for one in score_nodes(jobs + forged) if one.suspect] == []


def test_two_users_with_slow_jobs_on_a_node_are_enough() -> None:
    chance = fixed_chance(10)
    jobs = [
        of_user(job(chance, at, chance.sample(NODES[:40], 8), {"n007": 0.7}), f"u{at % 2}")
        for at in range(400)
    ]
    (suspect,) = [one for one in score_nodes(jobs) if one.suspect]
    assert (suspect.node, suspect.users) == ("n007", 2)


def test_no_jobs_are_no_suspects() -> None:
    assert score_nodes([]) == []
    assert nodes_text([], 0, False) == "no job in the index\n"


# Similar jobs.


def past(gbs: list[float], **words: object) -> list[PastKind]:
    return [PastKind(key(**words), at, value, 5e6) for at, value in enumerate(gbs)]  # type: ignore[arg-type]


def kind(gbs: float) -> KindRow:
    return KindRow(key(), 5e6, gbs, 0.1, 1e12)


def test_a_job_below_its_like_is_flagged() -> None:
    found = compare_kind(kind(80.0), past([100, 101, 99, 100, 102, 98]))
    assert found is not None
    assert (found.jobs, found.differs, found.is_low) == (6, (), True)
    assert found.delta == pytest.approx(-0.2)
    assert found.z < -3


@pytest.mark.parametrize(
    ("gbs", "spread"),
    [(91.0, 1.0), (80.0, 20.0), (130.0, 1.0)],
    ids=["less than a tenth", "within the spread", "faster"],
)
def test_what_is_no_loss_is_not_flagged(gbs: float, spread: float) -> None:
    values = [100 + spread * step for step in (-2, -1, 0, 1, 2)]
    found = compare_kind(kind(gbs), past(values))
    assert found is not None
    assert not found.is_low


def test_four_jobs_are_too_few() -> None:
    assert compare_kind(kind(80.0), past([100, 100, 100, 100])) is None
    assert make_baseline(compare_kinds([kind(80.0)], {})) is None


def test_other_users_count_once_each_however_many_jobs_they_ran() -> None:
    honest = [replace(one, owner=f"u{one.job_id}") for one in past([100.0 + at for at in range(5)])]
    flood = [replace(one, owner="mallory") for one in past([1.0] * 50)]
    found = beside_others(kind(80.0), [*flood, *honest])
    assert found is not None
    assert (found.users, found.median_gbs) == (6, 101.5)
    assert beside_others(kind(80.0), honest[: OTHERS_MIN - 1] + flood[:0]) is None


def test_what_differs_is_said_and_then_nothing_is_flagged() -> None:
    found = compare_kind(kind(80.0), past([100] * 6, nccl="2.27"))
    assert found is not None
    assert (found.differs, found.is_low) == (("nccl",), False)
    found = compare_kind(kind(80.0), past([100] * 6, nodes=16, nccl="2.27"))
    assert found is None  # the nodes, the ranks and the release: not similar any more
    baseline = make_baseline(compare_kinds([kind(80.0)], {key(): past([100] * 6, gpu="B200")}))
    assert baseline is not None
    assert (baseline.jobs, baseline.differs) == (6, ("gpu",))
    assert (baseline.metrics[0].unit, baseline.metrics[0].median) == ("GB/s", 100)


def test_only_the_twenty_latest_count() -> None:
    found = compare_kind(kind(100.0), past([100.0] * 20 + [10.0] * 100))
    assert found is not None
    assert (found.jobs, found.median_gbs) == (20, 100)


# Two jobs.


def verdict(a_ms: float, b_ms: float, error: float | None = 0.001) -> str:
    a, b = (
        replace(card(), operations=(operations(time_ms=ms, error=error),)) for ms in (a_ms, b_ms)
    )
    return compared(a, b).kinds[0].verdict


def compared(a: Card, b: Card) -> Difference:
    return compare(a, b, set(nodes_of(a)), set(nodes_of(b)))


@pytest.mark.parametrize(
    ("a_ms", "b_ms", "error", "word"),
    [
        (5, 6, 0.001, SLOWER), (6, 5, 0.001, FASTER), (5, 5.1, 0.001, NOISE), (5, 6, 0.05, NOISE),
        (5, 6, None, UNKNOWN),
    ],
)  # fmt: skip
def test_a_change_is_one_only_beyond_the_noise(
    a_ms: float, b_ms: float, error: float | None, word: str
) -> None:
    assert verdict(a_ms, b_ms, error) == word


def test_nodes_and_environment_that_changed_are_said() -> None:
    a = replace(card(1), operations=(operations(time_ms=5),))
    other = communicator("0x9", ["n2", "n3"])
    b = replace(
        card(2, nodes="n[2-3]", communicators=[other]),
        operations=(operations("0x9", time_ms=8), replace(operations("0x9"), func="Reduce")),
        environment=Environment(nccl=("2.31.0",), gpu_models=("H100",), gpus=16),
    )
    found = compared(a, b)
    assert (found.nodes_gone, found.nodes_new, found.nodes_both) == (("n1",), ("n3",), 1)
    assert [(one.field, one.a, one.b) for one in found.fields] == [("NCCL", "2.30.7", "2.31.0")]
    assert {one.verdict for one in found.kinds} == {SLOWER, ONLY_B}
    text = difference_text(found, False)
    assert "of 1 kinds of operation 1 slower, 0 faster, 0 within noise" in text
    assert "B was slower and ran on n3, A did not" in text
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_hostile_names_of_any_length_stay_in_the_table() -> None:
    name = "\x1b[31m" + "x" * 500
    comm = communicator(name=name)
    one = card(1, name=name, submit_line=name, communicators=[comm])
    text = difference_text(compared(one, replace(one, job=replace(one.job, name="y"))), True)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= COLUMNS
