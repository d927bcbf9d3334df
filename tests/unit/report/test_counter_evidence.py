# SPDX-License-Identifier: Apache-2.0
"""Counters that speak for causes of lost time, and what becomes of those that speak for none."""

import pytest

from nccl_inspector.model import card, rules
from nccl_inspector.model.card import CRITICAL, HIGH, INFO, MEDIUM, WARNING, Entity, Finding
from nccl_inspector.report.counter_evidence import with_counters


def slow_network(node: str, title: str = "slow") -> tuple[str, Finding]:
    return card.NETWORK, Finding(
        rule=rules.SLOW_NETWORK.id, severity=WARNING, confidence=MEDIUM, title=title, detail="It.",
        entities=(Entity("node", node),),
    )  # fmt: skip


def port(node: str, number: int = 0, severity: card.Severity = WARNING) -> Finding:
    name = f"{node} mlx5_{number}/1"
    return Finding(
        rule=rules.HARDWARE_PORT.id, severity=severity, confidence=MEDIUM, title=f"{name}: rose",
        detail="", entities=(Entity("port", name),),
    )  # fmt: skip


def test_a_port_speaks_for_every_slow_time_of_its_node() -> None:
    early, late, other = (
        slow_network("n1", "early"), slow_network("n1", "late"), slow_network("n2", "other"),
    )  # fmt: skip
    causes, left = with_counters([early, late, other], [port("n1"), port("n1", 1)])
    assert [one.confidence for _, one in causes] == [HIGH, HIGH, MEDIUM]
    assert ["n1 mlx5_1/1: rose." in one.detail for _, one in causes] == [True, True, False]
    assert left == []


def test_a_node_is_written_as_it_is_called() -> None:
    ((_, told),), _ = with_counters([slow_network("n1")], [port("n1")])
    assert told.detail == "It. Counters: n1 mlx5_0/1: rose."


@pytest.mark.parametrize(
    ("severity", "told"), [(WARNING, INFO), (CRITICAL, CRITICAL), (INFO, INFO)]
)
def test_what_speaks_for_nothing_is_information_unless_it_is_critical(
    severity: card.Severity, told: card.Severity
) -> None:
    causes, left = with_counters([slow_network("n1")], [port("n2", 0, severity)])
    assert [one.severity for one in left] == [told]
    assert causes == [slow_network("n1")]
