# SPDX-License-Identifier: Apache-2.0
"""Grades: who counts as accused, and what as right."""

from dataclasses import replace

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    DEGRADED,
    HIGH,
    INFO,
    STRAGGLER,
    WARNING,
    Card,
    Entity,
    Finding,
    Severity,
    Verdict,
)
from nccl_inspector.model.rules import Rule
from tests.simulator.grade import grade
from tests.simulator.trials import page, table
from tests.simulator.truth import HEALTHY, Truth
from tests.support import stored_cards

WELL = Truth(frozenset({HEALTHY}), wall_s=1000.0)
SLOW = Truth(
    frozenset({DEGRADED}), frozenset({STRAGGLER}), frozenset({("rank", "rank 5")}),
    frozenset({("node", "n1")}), cost_s=50.0, wall_s=1000.0,
)  # fmt: skip


def card(
    *entities: tuple[str, str], rule: Rule = rules.STRAGGLER, severity: Severity = WARNING,
    cost_s: float | None = 48.0,
) -> Card:  # fmt: skip
    found = stored_cards.card()
    whom = tuple(Entity(*one) for one in entities)
    finding = Finding(rule.id, severity, HIGH, "t", "d", entities=whom)
    if not entities:
        return found
    verdict = Verdict(DEGRADED, STRAGGLER, HIGH, "late", cost_s=cost_s)
    return replace(found, findings=(finding,), verdict=verdict)


def test_a_healthy_card_of_a_healthy_job_is_right() -> None:
    assert grade(card(), WELL).accused == []
    assert grade(card(), WELL).status_right


def test_a_name_in_a_healthy_job_is_an_accusation() -> None:
    assert len(grade(card(("rank", "rank 5")), WELL).accused) == 2  # and the verdict


def test_information_accuses_nobody() -> None:
    one = replace(card(("rank", "rank 5"), severity=INFO), verdict=card().verdict)
    assert grade(one, WELL).accused == []


def test_the_culprit_with_its_node_and_cost_is_right() -> None:
    found = grade(card(("rank", "rank 5"), ("node", "n1")), SLOW)
    assert found.accused == []
    assert found.entity_right
    assert found.class_right
    assert found.cost_right
    assert found.severity_right


def test_the_node_alone_is_not_enough() -> None:
    assert grade(card(("node", "n1")), SLOW).entity_right is False


def test_another_rank_is_innocent_and_a_victim_is_not_accused() -> None:
    found = grade(card(("rank", "rank 5"), ("rank", "rank 6"), ("victim", "rank 7")), SLOW)
    assert [one.split(" (")[0] for one in found.accused] == ["rank 6"]


def test_errors_of_a_port_may_be_told_where_there_were_some() -> None:
    true = replace(SLOW, noted=frozenset({("port", "n2 mlx5_1/1")}))
    port = ("port", "n2 mlx5_1/1")
    assert grade(card(port, rule=rules.HARDWARE_PORT), true).accused == []
    assert grade(card(port, rule=rules.SLOW_NETWORK), true).accused != []


def test_a_cost_that_is_twice_the_truth_is_wrong() -> None:
    assert grade(card(("rank", "rank 5"), cost_s=100.0), SLOW).cost_right is False
    assert grade(card(("rank", "rank 5"), cost_s=None), SLOW).cost_right is False


def test_the_page_has_a_line_for_each_case_and_each_band() -> None:
    row = {
        "case": "gpu-ddp", "kind": "gpu", "seed": 7, "accused": [], "status_right": True,
        "class_right": True, "entity_right": None, "period_right": None, "cost_right": False,
        "cost_told": 0.08,
        "cost_true": 0.05, "time_errors": [0.01, -0.02],
    }  # fmt: skip
    broken = {"case": "gpu-ddp", "kind": "gpu", "error": "ValueError"}
    lines = table([row, broken]).splitlines()
    assert lines[2] == (
        "| gpu-ddp | 1 (1 broken) | 0 % | 100 % | 100 % | - | - | 0 % | 5.0 to 5.0 % "
        "| +3.0, 3.0 % | 1.5, 2.0 % |"
    )
    assert "2 % and more" in lines[-1]
    assert "| gpu-ddp | a GPU is slower |" in page([row])
    assert "Jobs: 1, with the seeds 7 to 7." in page([row])
