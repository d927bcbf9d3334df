# SPDX-License-Identifier: Apache-2.0
"""Cases of slow networks: adapters, nodes, rails, NVLinks, and some that are hard to place or time.

Hard are nodes that share most of their paths, one direction only, some seconds of congestion, and a
slow drift. These have several shapes, one after the other by seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.simulator import hardware, plans, truth
from tests.simulator.case import (
    NOBODY,
    Case,
    Make,
    Planner,
    a_node,
    a_rank,
    all_of,
    healthy,
    in_turns,
    of_size,
    ports_of,
    who_is,
)
from tests.simulator.engine import Group, World
from tests.simulator.faults import Congestion, Fault, SlowNetwork, SlowNic, SlowNvlink, When
from tests.simulator.hardware import Event
from tests.simulator.machine import Machine, S
from tests.simulator.making import Scenario
from tests.simulator.plans import Chance, Sizes
from tests.simulator.programs import MB, Pipeline, Program
from tests.simulator.running import Phases, Plan
from tests.simulator.solvers import RingAttention, exchange
from tests.simulator.truth import gpu_name, node_names, port_name, rank_names

_SLOW = frozenset({truth.DEGRADED})
_NETWORK = frozenset({truth.NETWORK})
_ALWAYS = When()
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


def _machine(chance: Chance, nodes: tuple[int, ...], **changes: object) -> Machine:
    gbs, rate = _ADAPTERS[int(chance.integers(len(_ADAPTERS)))]
    found = replace(plans.machine(chance, nodes), nic_gbs=gbs, nic_rate=rate)
    return replace(found, **changes)  # type: ignore[arg-type]


def _plan(chance: Chance, seed: int, program: Program, wall_s: tuple[float, float]) -> Plan:
    found = plans.of_program(chance, seed, program.machine, program, wall_s)
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
    program = RingAttention(where, step_s=step_s, layers=layers, keys_bytes=keys, width=width,
                           grads_bytes=int(chance.choice([50, 200])) * MB)  # fmt: skip
    return _plan(chance, seed, program, (400.0, 700.0))


_SHORTER = {"wall_s": (600.0, 1000.0)}
_BOUND = in_turns(
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


def _congestion(chance: Chance) -> Congestion:
    return Congestion(1.0, period_s=float(chance.uniform(45, 90)),
                      length_s=float(chance.uniform(4, 8)))  # fmt: skip


def _drift(chance: Chance) -> SlowNetwork:
    del chance
    return SlowNetwork(0.3, grows=True)


# Slow adapters, networks and links of the plain kind.


def slow_network(planner: Planner, fault: Fault, low: float, high: float) -> Make:
    """Return jobs whose whole network is slow; nobody is to be named."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        target = float(chance.uniform(low, high)) if high else 0.0
        when = fault.when
        return Scenario(
            plan, (fault,), target, _NETWORK, _SLOW, nameable=False,
            period=(when.start, when.end), counters=True,
        )  # fmt: skip

    return scenario


def slow_nic(planner: Planner, *, everywhere: bool = False, told: bool = False) -> Make:
    """Return jobs with a slow adapter, of one node or of all; `told`: counters say so."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        nodes, nics = range(plan.machine.nodes), plan.machine.nics
        node, nic = a_node(chance, plan), int(chance.integers(nics))
        slow = tuple(nodes) if everywhere else (node,)
        rail = frozenset(port_name(plan.node_names[one], nic) for one in nodes)
        guilty = frozenset({("rail", str(nic)), *(rail if everywhere else ())})
        related = rail
        if not everywhere:
            near = frozenset(
                (kind, name) for local in range(plan.machine.gpus)
                if plan.machine.nic_of(local) == nic
                for kind, name in who_is(plan, node * plan.machine.gpus + local)[0]
            )  # fmt: skip
            guilty |= {port_name(plan.node_names[node], nic)}
            guilty |= node_names([plan.node_names[node]]) if told else NOBODY
            related |= near | node_names([plan.node_names[node]])
        # Where all transfers pass one port all the time, nothing shows what they would take.
        unsure = _SLOW | {truth.CANNOT_TELL}
        counted = (
            Event(node, "port", hardware.port(nic), "symbol_error", 5000),
            Event(node, "port", hardware.port(nic), "link_error_recovery", 12),
        )
        return Scenario(
            plan, (SlowNic(0.5, nodes=slow, nic=nic),), float(chance.uniform(0.02, 0.06)),
            _NETWORK, unsure if told else _SLOW, guilty, related,
            counted=counted if told else (), counters=True if told else None,
        )  # fmt: skip

    return scenario


def slow_node(chance: Chance, seed: int) -> Scenario:
    """Return a node all of whose adapters are slow."""
    plan = plans.crossed(chance, seed)
    node = a_node(chance, plan)
    return Scenario(
        plan, (SlowNic(0.4, nodes=(node,)),), float(chance.uniform(0.02, 0.08)),
        _NETWORK, _SLOW, node_names([plan.node_names[node]]),
        ports_of(plan, node),
    )  # fmt: skip


def slow_halo(chance: Chance, seed: int) -> Scenario:
    """Return a solver of which a node's adapters are slow: two of its paths between nodes."""
    plan = plans.halo(chance, seed, Sizes(nodes=(6, 8)))
    program = replace(plan.program(), border_bytes=int(chance.choice([64, 256])) * MB)  # type: ignore[call-arg]
    plan = replace(plan, program=lambda: replace(program))
    node = a_node(chance, plan)
    near = frozenset(
        name for rank in range(plan.machine.ranks) if rank // plan.machine.gpus == node
        for name in who_is(plan, rank)[0]
    )  # fmt: skip
    return Scenario(
        plan, (SlowNic(0.4, nodes=(node,)),), float(chance.uniform(0.02, 0.08)),
        _NETWORK, _SLOW, node_names([plan.node_names[node]]),
        ports_of(plan, node) | near,
    )  # fmt: skip


def misled_node(chance: Chance, seed: int) -> Scenario:
    """Return a node with a slow network, while a port of another node reports errors."""
    made = slow_node(chance, seed)
    fault = made.faults[0]
    assert isinstance(fault, SlowNic)
    other = (fault.nodes[0] + 1) % made.plan.machine.nodes
    made.counted = (Event(other, "port", hardware.port(2), "symbol_error", 80, 100, 400),)
    made.noted = frozenset({port_name(made.plan.node_names[other], 2)})
    made.counters = True
    return made


def slow_nvlink(whole_node: bool, when: When = _ALWAYS) -> Make:
    """Return jobs with slow NVLinks, of one GPU or of all of a node."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = plans.nvlink_bound(chance, seed)
        rank = a_rank(chance, plan)
        gpus = plan.machine.gpus
        node = rank // gpus
        ranks = tuple(range(node * gpus, node * gpus + gpus)) if whole_node else (rank,)
        guilty = node_names([plan.node_names[node]])
        related = all_of(plan, node) if whole_node else who_is(plan, rank)[0]
        if not whole_node:
            guilty |= {gpu_name(plan.node_names[node], rank % gpus)}
        return Scenario(
            plan, (SlowNvlink(0.3, when, ranks=ranks),), float(chance.uniform(0.02, 0.06)),
            frozenset({truth.NVLINK}), _SLOW, guilty, related, period=(when.start, when.end),
            prints=True if when != _ALWAYS else None,
        )  # fmt: skip

    return scenario


_SECOND_HALF, _A_WHILE = When(0.5, 1.0), When(0.4, 0.6)
_LATER = When(0.4, 0.7)

NETWORKS = (
    Case("nic-rail", "network", slow_nic(plans.rails), "one adapter of a node is slow", True),
    Case("nic-rail-all", "network", slow_nic(plans.rails, everywhere=True),
         "one rail is slow on all nodes"),
    Case("nic-told", "network", slow_nic(plans.net_bound, told=True),
         "a slow adapter whose counters say so"),
    Case("nic-node", "network", slow_node, "all adapters of a node are slow"),
    Case("nic-node-misled", "network", misled_node,
         "all adapters of a node are slow, another node's port has errors"),
    Case("nic-halo", "network", slow_halo, "a node's adapters are slow, neighbours exchange"),
    Case("network-half", "network",
         slow_network(plans.net_bound, SlowNetwork(1.0), 0, 0), "all paths at half of their speed"),
    Case("network-dip", "network",
         slow_network(plans.net_bound, SlowNetwork(0.5, When(0.4, 0.6)), 0.02, 0.06),
         "the network is slow for a fifth of the job", True),
    Case("network-second-half", "network",
         slow_network(plans.net_bound, SlowNetwork(0.5, _SECOND_HALF), 0.03, 0.1),
         "the network is slow in the second half"),
    Case("network-congestion", "network",
         slow_network(plans.net_bound, SlowNetwork(0.5, When(0.3, 0.7), rough=0.8), 0.03, 0.08),
         "congestion comes and goes"),
    Case("nvlink-gpu", "nvlink", slow_nvlink(False), "a GPU's NVLinks are slow"),
    Case("nvlink-node", "nvlink", slow_nvlink(True), "a node's NVLinks are slow"),
    Case("nvlink-dip", "nvlink", slow_nvlink(True, _A_WHILE),
         "a node's NVLinks are slow for a fifth of the job"),
    Case("node-shared", "network", node_of(mesh),
         "a node's adapters are slow, its neighbours share most of its paths", True),
    Case("node-shared-dip", "network", node_of(mesh, _LATER), "the same, for a while"),
    Case("node-exchange-dip", "network", node_of(neighbours, _LATER),
         "a node's adapters are slow for a while, neighbours exchange"),
    Case("one-way-node", "network",
         in_turns(node_of(piped, ways=("out",)), node_of(piped, ways=("in",)),
                   node_of(neighbours, ways=("out",)), node_of(context_rings, ways=("in",))),
         "a node's adapters are slow in one direction", True),
    Case("ring-nic", "network", border_adapter(context_rings),
         "one adapter is slow, keys go round rings", True),
    Case("congestion-short", "network", _of_all(_congestion, 0.02, 0.05),
         "some seconds of congestion a minute", True),
    Case("network-drift", "network", _of_all(_drift, 0.02, 0.06),
         "the network gets slower all the time", True),
    Case("healthy-mesh", "healthy", healthy(mesh),
         "communicators along rows and columns of nodes"),
    Case("healthy-piped", "healthy", healthy(piped),
         "a pipeline that waits for its network"),
    Case("healthy-neighbours", "healthy", healthy(neighbours),
         "neighbours exchange, and all sum"),
    Case("healthy-context-rings", "healthy",
         healthy(context_rings),
         "keys go round rings over nodes"),
)  # fmt: skip
