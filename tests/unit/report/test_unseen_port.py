# SPDX-License-Identifier: Apache-2.0
"""A port with errors that everything passes is a reason not to call a job healthy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from nccl_inspector.analysis.hardware.counter_rules import CABLE
from nccl_inspector.analysis.join import Figures, JoinedComm, Member, Place
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model import rules
from nccl_inspector.model.card import HIGH, INFO, WARNING, Entity, Finding, Operations, Period
from nccl_inspector.report.causes import JobView
from nccl_inspector.report.unseen_port import unseen_port

WALL_S = 1000.0
PORT = Finding(
    rule=rules.HARDWARE_PORT.id, severity=WARNING, confidence=HIGH, title="n01 mlx5_2/1: symbols",
    detail="",
    entities=(Entity("port", "n01 mlx5_2/1"),), actions=(CABLE,), period=Period(0, WALL_S),
)  # fmt: skip
OPERATIONS = [Operations("a", "AllReduce", 24, "RING/SIMPLE", 100, 1e7, 40.0, 0.1)]


@dataclass(frozen=True)
class Asked:
    """Records by which twice as fast transfers would have saved so much."""

    saves: float

    def below(self, factors: Mapping[tuple[int, int, int], float]) -> tuple[float, float]:
        assert set(factors.values()) <= {0.5}
        return (self.saves, 0.0) if factors else (0.0, 0.0)


def comm(*nodes: str) -> JoinedComm:
    members = {
        rank: Member(Place(node, f"{node}/{rank}", "GPU0", f"rank {rank}"), *[None] * 2)  # type: ignore[arg-type]
        for rank, node in enumerate(nodes)
    }
    figures = cast("tuple[Figures, ...]", ("some",))
    return JoinedComm(10, "dp", len(nodes), len(set(nodes)), members, figures, ())


def why(
    port: Finding = PORT, saves: float = 0.2, comms: Sequence[JoinedComm] = (comm("n01", "n02"),),
    transport: str = "net",
) -> str:  # fmt: skip
    view = JobView((), (), (), WALL_S, comms)
    judged = cast(Judged, Asked(saves))
    return unseen_port(judged, OPERATIONS, {"a": transport}, view, [port])


def test_the_port_is_named() -> None:
    assert why().startswith("n01 mlx5_2/1: symbols; ")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("transfers matter little", lambda: why(saves=0.04)),
        ("others do not pass it", lambda: why(comms=[comm("n01", "n02"), comm("n03", "n04")])),
        ("all is inside of nodes", lambda: why(transport="nvlink")),
        ("errors were few", lambda: why(replace(PORT, severity=INFO))),
        ("they were for a while", lambda: why(replace(PORT, period=Period(0, 0.2 * WALL_S)))),
        ("it is no cable", lambda: why(replace(PORT, actions=()))),
    ],
)
def test_a_job_may_be_called_healthy_all_the_same_where(
    reason: str, said: Callable[[], str]
) -> None:
    assert said() == "", reason


def test_a_share_of_the_time_with_operations_is_less_of_the_job() -> None:
    view = JobView((), (), (), wall_s=100.0, communicators=(), active_s=40.0)
    assert view.of_job(0.2) == pytest.approx(0.08)
    assert replace(view, active_s=0.0).of_job(0.2) == 0.2
    assert replace(view, active_s=120.0).of_job(0.2) == 0.2
