# SPDX-License-Identifier: Apache-2.0
"""Cases of slow networks that are hard to place, or to time.

Nodes that share most of their paths, one direction only, some seconds of congestion, a slow drift.

Every case has several shapes, one after the other by seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.simulator import plans, truth
from tests.simulator.case import Case, Make, Planner, a_node, all_of, of_size, ports_of
from tests.simulator.delays import any_shape
from tests.simulator.engine import Group, World
from tests.simulator.faults import Congestion, SlowNetwork, SlowNic, When
from tests.simulator.machine import Machine, S
from tests.simulator.making import Scenario
from tests.simulator.plans import Chance, Sizes
from tests.simulator.programs import MB, Pipeline, Program
from tests.simulator.running import Phases, Plan
from tests.simulator.solvers import RingAttention, exchange
from tests.simulator.truth import gpu_name, node_names, port_name, rank_names

_SLOW = frozenset({truth.DEGRADED})
_NETWORK = frozenset({truth.NETWORK})
_ADAPTERS = ((11.5, "100 Gb/sec (4X EDR)"), (23.0, "200 Gb/sec (4X HDR)"))


@dataclass
class Mesh(Program):
    """Nodes in rows and columns: several communicators along each row, one along each column.

    So Megatron has it where data, context and expert parallelism share nodes.
    """

    columns: int = 2
    of_row: int = 4  # communicators along a row, each of its own
    row_bytes: int = 128 * MB
    column_bytes: int = 128 * MB
    groups: list[Group] = field(default_factory=list)

    def setup(self, world: World) -> None:
        """Make the world, the communicators of rows, and those of columns."""
        gpus = self.machine.gpus
        rows = world.n // gpus // self.columns
        self.world_group = world.make_group("default_pg", [list(range(world.n))])
        along = [
            [(row * self.columns + column) * gpus + local for column in range(self.columns)]
            for row in range(rows)
            for local in range(gpus)
        ]
        down = [
            [(row * self.columns + column) * gpus + local for row in range(rows)]
            for column in range(self.columns)
            for local in range(gpus)
        ]
        self.groups = [world.make_group(f"row{at}", along) for at in range(self.of_row)]
        self.down = world.make_group("column", down)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Compute, and sum along rows and columns."""
        self.fetch(world)
        ns = self.step_s * S * scale / (self.of_row + 1)
        for group in self.groups:
            world.compute(ns, kernels=20)
            world.collective(group.whole, "AllReduce", self.row_bytes)
        world.compute(ns, kernels=20)
        if not forward_only:
            world.collective(self.down.whole, "AllReduce", self.column_bytes)
        world.sync()


@dataclass
class Neighbours(Program):
    """Borders go to both neighbours in a ring, and a collective of all comes after."""

    border_bytes: int = 64 * MB
    sum_bytes: int = 64 * MB

    def setup(self, world: World) -> None:
        """Make one communicator of all."""
        self.world_group = world.make_group("world", [list(range(world.n))])

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Compute, exchange, sum."""
        del forward_only
        self.fetch(world)
        world.compute(self.step_s * S * scale * 0.7, kernels=20)
        exchange(world, self.world_group, self.border_bytes)
        world.compute(self.step_s * S * scale * 0.3, kernels=10)
        world.collective(self.world_group.whole, "AllReduce", self.sum_bytes)
        world.sync()


@dataclass
class ContextRings(RingAttention):
    """A ring of ranks for each sequence, and gradients summed over all."""

    width: int = 8  # ranks of a ring

    def setup(self, world: World) -> None:
        """Make the rings of consecutive ranks."""
        super().setup(world)
        rings = [list(range(first, first + self.width)) for first in range(0, world.n, self.width)]
        self.ring = world.make_group("cp", rings)

    def _layer(self, world: World, ns: float) -> None:
        self.turn(world, self.ring, self.width, ns)


def _machine(chance: Chance, nodes: tuple[int, ...], **changes: object) -> Machine:
    gbs, rate = _ADAPTERS[int(chance.integers(len(_ADAPTERS)))]
    found = replace(plans.machine(chance, nodes), nic_gbs=gbs, nic_rate=rate)
    return replace(found, **changes)  # type: ignore[arg-type]


def _plan(chance: Chance, seed: int, program: Program, wall_s: tuple[float, float]) -> Plan:
    found = Plan(
        program.machine, lambda: replace(program), seed, float(chance.uniform(*wall_s)),
        noise=plans.noise(chance), phases=plans.phases(chance),
    )  # fmt: skip
    return replace(found, phases=Phases(warm_up=found.phases.warm_up, log_every=10, log_ms=0.5))


def mesh(chance: Chance, seed: int, sizes: Sizes = Sizes()) -> Plan:  # noqa: B008 - frozen
    """Return a training whose nodes share most of their paths with those of their row."""
    del sizes
    columns = int(chance.choice([2, 2, 3]))
    where = _machine(chance, (2 * columns, 3 * columns, 4 * columns), gpus=4, nics=4)
    step_s = float(chance.uniform(0.8, 2.0))
    of_row = int(chance.integers(4, 6))
    traffic = step_s * float(chance.uniform(0.15, 0.4)) * where.nic_gbs * 1e9 / (of_row + 1)
    program = Mesh(where, step_s=step_s, columns=columns, of_row=of_row,
                   row_bytes=int(traffic), column_bytes=int(traffic))  # fmt: skip
    return _plan(chance, seed, program, (500.0, 900.0))


def piped(chance: Chance, seed: int) -> Plan:
    """Return a pipeline over whole nodes that waits for what its stages send."""
    stages = int(chance.choice([2, 4]))
    where = _machine(chance, (4, 8), gpus=4, nics=4)
    step_s = float(chance.uniform(1.0, 2.5))
    batches = 2 * stages
    sent = step_s * float(chance.uniform(0.3, 0.6)) * where.nic_gbs * 1e9 / batches
    program = Pipeline(
        where, step_s=step_s, stages=stages, tp=4, batches=batches, layers=2,
        layer_bytes=int(sent), grads_bytes=int(sent), weights=plans._weights(chance, stages),
        host_sync=bool(chance.random() < 0.4),
    )  # fmt: skip
    return _plan(chance, seed, program, (500.0, 900.0))


def neighbours(chance: Chance, seed: int) -> Plan:
    """Return a solver that waits for its neighbours."""
    where = _machine(chance, (4, 6, 8), gpus=int(chance.choice([1, 4])))
    where = replace(where, nics=min(where.nics, where.gpus))
    step_s = float(chance.uniform(0.1, 0.5))
    traffic = step_s * float(chance.uniform(0.2, 0.5)) * where.nic_gbs * 1e9
    program = Neighbours(where, step_s=step_s, loader_ms=0.1,
                         border_bytes=int(traffic / 2), sum_bytes=int(traffic / 4))  # fmt: skip
    return _plan(chance, seed, program, (300.0, 600.0))


def context_rings(chance: Chance, seed: int) -> Plan:
    """Return a training with a ring of keys over nodes that waits for it."""
    gpus = int(chance.choice([2, 4]))
    where = _machine(chance, (2, 4), gpus=gpus, nics=gpus)
    width = int(chance.choice([where.ranks, 2 * gpus]))
    step_s = float(chance.uniform(1.0, 2.5))
    layers = int(chance.choice([2, 4]))
    a_turn = step_s * 0.32 / layers / width
    keys = int(a_turn * float(chance.uniform(0.5, 0.95)) * where.nic_gbs * 1e9)
    program = ContextRings(where, step_s=step_s, layers=layers, keys_bytes=keys, width=width,
                           grads_bytes=int(chance.choice([50, 200])) * MB)  # fmt: skip
    return _plan(chance, seed, program, (400.0, 700.0))


_SHORTER = {"wall_s": (600.0, 1000.0)}
_BOUND = any_shape(
    of_size(plans.net_bound, **_SHORTER), of_size(plans.rails, **_SHORTER), mesh, neighbours
)


def node_of(planner: Planner, when: When = When(), ways: tuple[str, ...] = ("out", "in")) -> Make:  # noqa: B008
    """Return jobs of which all adapters of one node are slow."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        node = a_node(chance, plan)
        fault = SlowNic(0.5, when, nodes=(node,), ways=ways)
        guilty = node_names([plan.node_names[node]])
        if len(ways) == 1:  # round a ring, one path goes over each adapter in each direction
            guilty |= _pairs(plan, node)
        return Scenario(
            plan, (fault,), float(chance.uniform(0.03, 0.1)), _NETWORK, _SLOW,
            guilty, ports_of(plan, node) | all_of(plan, node),
            period=(when.start, when.end),
        )  # fmt: skip

    return scenario


def _pairs(plan: Plan, node: int) -> frozenset[truth.Name]:
    """Return the pairs of a node and each other one, as a report names them."""
    name = plan.node_names[node]
    others = (one for one in plan.node_names if one != name)
    return frozenset(("pair", " - ".join(sorted((name, one)))) for one in others)


def border_adapter(planner: Planner) -> Make:
    """Return rings with a slow adapter, of a rank that sends to another node or receives from one.

    Only one path goes over it, so nobody can tell which of the path's ends it is.
    """

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        machine = plan.machine
        node, nic = a_node(chance, plan), int(chance.choice([0, machine.nics - 1]))
        name = plan.node_names[node]
        near = [local for local in range(machine.gpus) if machine.nic_of(local) == nic]
        related = rank_names(node * machine.gpus + local for local in near)
        related |= frozenset(gpu_name(name, local) for local in near)
        guilty = node_names([name]) | related | {port_name(name, nic)} | _pairs(plan, node)
        return Scenario(
            plan, (SlowNic(0.5, nodes=(node,), nic=nic),),
            float(chance.uniform(0.03, 0.15)), _NETWORK, _SLOW, guilty, related,
        )  # fmt: skip

    return scenario


def _of_all(fault: Callable[[Chance], Congestion | SlowNetwork], low: float, high: float) -> Make:
    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = _BOUND(chance, seed)
        return Scenario(
            plan, (fault(chance),), float(chance.uniform(low, high)), _NETWORK, _SLOW,
            nameable=False,
        )  # fmt: skip

    return scenario


def _one_of(*makes: Make) -> Make:
    """Return jobs of one of these kinds after another, by seed."""
    return lambda chance, seed: makes[seed % len(makes)](chance, seed)


def _congestion(chance: Chance) -> Congestion:
    return Congestion(1.0, period_s=float(chance.uniform(45, 90)),
                      length_s=float(chance.uniform(4, 8)))  # fmt: skip


def _drift(chance: Chance) -> SlowNetwork:
    del chance
    return SlowNetwork(0.3, grows=True)


_LATER = When(0.4, 0.7)

NETWORKS = (
    Case("node-shared", "network", node_of(mesh),
         "a node's adapters are slow, its neighbours share most of its paths", True),
    Case("node-shared-dip", "network", node_of(mesh, _LATER), "the same, for a while"),
    Case("node-exchange-dip", "network", node_of(neighbours, _LATER),
         "a node's adapters are slow for a while, neighbours exchange"),
    Case("one-way-node", "network",
         _one_of(node_of(piped, ways=("out",)), node_of(piped, ways=("in",)),
                   node_of(neighbours, ways=("out",)), node_of(context_rings, ways=("in",))),
         "a node's adapters are slow in one direction", True),
    Case("ring-nic", "network", border_adapter(context_rings),
         "one adapter is slow, keys go round rings", True),
    Case("congestion-short", "network", _of_all(_congestion, 0.02, 0.05),
         "some seconds of congestion a minute", True),
    Case("network-drift", "network", _of_all(_drift, 0.02, 0.06),
         "the network gets slower all the time", True),
    Case("healthy-mesh", "healthy", lambda chance, seed: Scenario(mesh(chance, seed)),
         "communicators along rows and columns of nodes"),
    Case("healthy-piped", "healthy", lambda chance, seed: Scenario(piped(chance, seed)),
         "a pipeline that waits for its network"),
    Case("healthy-neighbours", "healthy", lambda chance, seed: Scenario(neighbours(chance, seed)),
         "neighbours exchange, and all sum"),
    Case("healthy-context-rings", "healthy",
         lambda chance, seed: Scenario(context_rings(chance, seed)),
         "keys go round rings over nodes"),
)  # fmt: skip
