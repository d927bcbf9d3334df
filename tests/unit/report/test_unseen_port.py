# SPDX-License-Identifier: Apache-2.0
"""Ports with errors that everything passes: a reason not to call a job healthy, or a cause."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from nccl_inspector.analysis.hardware.counter_rules import CABLE
from nccl_inspector.analysis.join import Figures, JoinedComm, Member, Place
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model import rules
from nccl_inspector.model.card import HIGH, INFO, WARNING, Entity, Finding, Operations, Period
from nccl_inspector.report.below_ports import tell_below
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


def port_of(node: str, **words: object) -> Finding:
    name = f"{node} mlx5_2/1"
    return replace(PORT, title=f"{name}: symbols", entities=(Entity("port", name),), **words)  # type: ignore[arg-type]


def why(
    port: Finding | Sequence[Finding] = PORT, saves: float = 0.2,
    comms: Sequence[JoinedComm] = (comm("n01", "n02"),), transport: str = "net",
) -> str:  # fmt: skip
    view = JobView((), (), (), WALL_S, comms)
    judged = cast(Judged, Asked(saves))
    ports = [port] if isinstance(port, Finding) else port
    return unseen_port(judged, OPERATIONS, {"a": transport}, view, ports)


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


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_faulty_ports_the_one_that_all_transfers_pass_is_named(turned: bool) -> None:
    ports = [port_of("n03"), port_of("n01")]
    said = why(ports[::-1] if turned else ports, comms=[comm("n01", "n02"), comm("n01", "n03")])
    assert said.startswith("n01 mlx5_2/1: symbols; all transfers between nodes pass this port")


def test_faulty_ports_that_all_transfers_pass_are_all_named() -> None:
    said = why([port_of("n02"), port_of("n01")], comms=[comm("n01", "n02"), comm("n02", "n01")])
    assert said == (
        "n02 mlx5_2/1: symbols, n01 mlx5_2/1: symbols; all transfers between nodes pass these "
        "ports, so their cost cannot be seen"
    )


def test_where_each_communicator_passes_a_faulty_port_none_shows_what_is_to_be_expected() -> None:
    comms = [comm("n01", "n02"), comm("n03", "n04")]
    assert why([port_of("n01"), port_of("n04")], comms=comms).count("symbols") == 2
    assert why([port_of("n01"), port_of("n02")], comms=comms) == ""
    assert why([port_of("n01"), port_of("n04", severity=INFO)], comms=comms) == ""
    with_another = [*comms, comm("n05", "n06")]
    assert why([port_of("n01"), port_of("n04")], comms=with_another) == ""


def test_a_faulty_port_of_a_node_that_sends_nothing_is_not_named() -> None:
    comms = [comm("n01", "n02"), comm("n03", "n04")]
    assert "n09" not in why([port_of("n09"), port_of("n01"), port_of("n04")], comms=comms)


def test_operations_of_communicators_that_were_added_up_are_no_kind_that_was_replayed() -> None:
    added_up = replace(OPERATIONS[0], communicator="folded 16/2 dp")
    view = JobView((), (), (), WALL_S, (comm("n01", "n02"),))
    judged = cast(Judged, Asked(0.2))
    assert unseen_port(judged, [added_up], {}, view, [PORT]) == ""
    assert unseen_port(judged, [added_up, *OPERATIONS], {}, view, [PORT]) != ""


@dataclass(frozen=True)
class Replayed:
    """Records without located causes, by which faster transfers would have saved a fifth."""

    causes: tuple[()] = ()

    def below(self, factors: Mapping[tuple[int, int, int], float]) -> tuple[float, float]:
        return 0.2 if factors else 0.0, 0.01

    def queued_share(self, _: object) -> float:
        return 0.0


def below(ports: Sequence[Finding], reached: float, *comms: JoinedComm) -> list[Finding]:
    """What is said of transfers that reach such a part of what they could, on all paths."""
    rows = [
        replace(OPERATIONS[0], communicator=hex(one.id), bus_gbs=reached * 50.0, expected_gbs=50.0,
                expected_source="the ports")
        for one in comms
    ]  # fmt: skip
    view = JobView((), (), (), WALL_S, comms)
    return [one for _, one in tell_below(cast(Judged, Replayed()), rows, {}, view, ports)]


FIRST, SECOND = replace(comm("n01", "n02"), id=10), replace(comm("n01", "n03"), id=11)


@pytest.mark.parametrize("turned", [False, True])
def test_transfers_that_are_slow_everywhere_name_the_port_that_all_pass(turned: bool) -> None:
    ports = [port_of("n03"), port_of("n01")]
    (told,) = below(ports[::-1] if turned else ports, 0.7, FIRST, SECOND)
    assert [one.name for one in told.entities] == ["n01"]
    assert told.title.endswith(": n01 mlx5_2/1: symbols")


def test_slow_transfers_name_all_faulty_ports_that_all_pass() -> None:
    (told,) = below([port_of("n02"), port_of("n01")], 0.7, FIRST)
    assert [one.name for one in told.entities] == ["n01", "n02"]


@pytest.mark.parametrize("node", ["n03", "n09"])
def test_a_port_that_not_all_slow_transfers_pass_is_not_blamed_for_them(node: str) -> None:
    assert below([port_of(node)], 0.7, FIRST, SECOND) == []
    (told,) = below([port_of(node)], 0.4, FIRST, SECOND)
    assert told.entities == ()


def test_a_share_of_the_time_with_operations_is_less_of_the_job() -> None:
    view = JobView((), (), (), wall_s=100.0, communicators=(), active_s=40.0)
    assert view.of_job(0.2) == pytest.approx(0.08)
    assert replace(view, active_s=0.0).of_job(0.2) == 0.2
    assert replace(view, active_s=120.0).of_job(0.2) == 0.2
