# SPDX-License-Identifier: Apache-2.0
"""What a case is, and what all kinds of cases choose: sizes, ranks and nodes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.simulator.making import Scenario
from tests.simulator.plans import Chance, Sizes
from tests.simulator.running import Plan
from tests.simulator.truth import Name, gpu_name, node_names, port_name, rank_names

NOBODY: frozenset[Name] = frozenset()
SHORT = {"wall_s": (500.0, 1200.0)}

Make = Callable[[Chance, int], Scenario]
Planner = Callable[..., Plan]


@dataclass(frozen=True)
class Case:
    """`kind`: healthy, or the class of what is wrong. `fast`: part of the short run."""

    name: str
    kind: str
    scenario: Make
    about: str
    fast: bool = False


_Chosen = TypeVar("_Chosen", bound=Callable[..., Any])


def in_turns(*some: _Chosen) -> Callable[[Chance, int], Any]:
    """Return planners, or makers of jobs, one after the other by seed.

    So a few seeds already have all of them.
    """
    return lambda chance, seed: some[seed % len(some)](chance, seed)


def healthy(planner: Planner, **changes: object) -> Make:
    """Return scenarios without a fault; `changes`: fields of the scenario."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        return Scenario(planner(chance, seed), **changes)  # type: ignore[arg-type]  # its fields

    return scenario


def who_is(plan: Plan, rank: int) -> tuple[frozenset[Name], frozenset[Name]]:
    """Return a rank with its GPU, and what else it is no lie to name: its node."""
    node, local = plan.node_names[rank // plan.machine.gpus], rank % plan.machine.gpus
    guilty = rank_names([plan.first_rank + rank]) | {gpu_name(node, local)}
    return guilty, node_names([node])


def all_of(plan: Plan, node: int) -> frozenset[Name]:
    """Return the ranks and GPUs of a node."""
    gpus = plan.machine.gpus
    name = plan.node_names[node]
    ranks = rank_names(plan.first_rank + node * gpus + local for local in range(gpus))
    return ranks | {gpu_name(name, local) for local in range(gpus)}


def ports_of(plan: Plan, node: int) -> frozenset[Name]:
    """Return the ports of a node."""
    name = plan.node_names[node]
    return frozenset(port_name(name, nic) for nic in range(plan.machine.nics))


def a_rank(chance: Chance, plan: Plan) -> int:
    """Return any rank."""
    return int(chance.integers(plan.machine.ranks))


def a_node(chance: Chance, plan: Plan) -> int:
    """Return any node."""
    return int(chance.integers(plan.machine.nodes))


def of_size(planner: Planner, **sizes: object) -> Planner:
    """Return plans of another size."""
    return lambda chance, seed: planner(chance, seed, Sizes(**sizes))  # type: ignore[arg-type]
