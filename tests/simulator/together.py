# SPDX-License-Identifier: Apache-2.0
"""Cases of ranks that are late together, and of uneven work that looks like it.

A tensor group whose input is late, a context ring, a replica, a stage, a rail, nodes beside each
other: each of their ranks alone costs nothing, because the others of its set are as late. And one
slow rank among those that wait for it is not its node.
"""

from collections.abc import Callable
from dataclasses import replace

from tests.simulator import plans, truth
from tests.simulator.case import Case, Make, Planner, a_rank, healthy, in_turns, who_is
from tests.simulator.faults import Fault, HotExperts, LateTogether, SlowGpu, When
from tests.simulator.making import WELL, Scenario
from tests.simulator.plans import Chance
from tests.simulator.programs import MB, Experts, Pipeline, TensorData
from tests.simulator.running import Plan
from tests.simulator.solvers import RingAttention
from tests.simulator.truth import Name, gpu_name, node_names, rank_names

_LATE = frozenset({truth.STRAGGLER})
_SLOW = frozenset({truth.DEGRADED})

# Of a plan, the ranks that are late together.
Choose = Callable[[Chance, Plan], tuple[int, ...]]


def _names(plan: Plan, ranks: tuple[int, ...]) -> tuple[frozenset[Name], frozenset[Name]]:
    """Return ranks with their GPUs and the nodes that are wholly theirs; and where they are."""
    gpus = plan.machine.gpus
    nodes = {rank // gpus for rank in ranks}
    whole = {node for node in nodes if set(range(node * gpus, node * gpus + gpus)) <= set(ranks)}
    names = plan.node_names
    guilty = rank_names(plan.first_rank + rank for rank in ranks)
    guilty |= {gpu_name(names[rank // gpus], rank % gpus) for rank in ranks}
    guilty |= node_names(names[node] for node in whole)
    return guilty, node_names(names[node] for node in nodes)


def late_set(
    planner: Planner, choose: Choose, fault: Fault | None = None, when: When | None = None
) -> Make:
    """Return jobs of which some ranks are late together; `fault`: their inputs or their GPUs."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        ranks = choose(chance, plan)
        kind = fault or (LateTogether(0.05), SlowGpu(0.05))[int(chance.integers(2))]
        own = replace(kind, ranks=ranks, when=when or When())  # type: ignore[call-arg]
        guilty, related = _names(plan, ranks)
        period = (when.start, when.end) if when else None
        return Scenario(
            plan, (own,), float(chance.uniform(0.02, 0.09)), _LATE, _SLOW, guilty, related,
            period=period,
        )  # fmt: skip

    return scenario


# Shapes.


def tensor_part(chance: Chance, seed: int) -> Plan:
    """Return replicas of tensor groups that are smaller than a node."""
    found = plans.tensor_data(chance, seed)
    program = found.program()
    assert isinstance(program, TensorData)
    tp = int(chance.choice([2, 4])) if found.machine.gpus == 8 else 2
    program = replace(program, tp=tp)
    return replace(found, program=lambda: replace(program))


def rings(chance: Chance, seed: int) -> Plan:
    """Return context rings beside each other."""
    where = plans.machine(chance, (2, 3, 4))
    width = int(chance.choice([where.gpus // 2, where.gpus]))
    if where.nodes == 4 and chance.random() < 0.4:
        width = 2 * where.gpus
    program = RingAttention(
        where,
        step_s=float(chance.uniform(1.5, 3.0)),
        layers=int(chance.choice([2, 3])),
        keys_bytes=int(chance.choice([4, 16, 32])) * MB,
        width=width,
    )
    return plans.of_program(chance, seed, where, program, (600.0, 1200.0))


def served(chance: Chance, seed: int) -> Plan:
    """Return reinforcement learning: groups of ranks write answers, and all learn from them."""
    found = (plans.ddp, plans.fsdp)[int(chance.integers(2))](chance, seed)
    return plans.writing(
        found,
        write_s=float(chance.uniform(4, 12)),
        steps_each=int(chance.integers(2, 5)),
        uneven=float(chance.uniform(0.01, 0.05)),
        served=int(chance.choice([found.machine.gpus // 2, found.machine.gpus])),
    )


def sharded(chance: Chance, seed: int) -> Plan:
    """Return replicas of shards over two nodes, or over half of one."""
    found = plans.hsdp(chance, seed)
    where = replace(found.machine, nodes=4)
    size = int(chance.choice([where.gpus // 2, 2 * where.gpus]))
    program = replace(found.program(), machine=where, shard=size)  # type: ignore[call-arg]
    return replace(found, machine=where, program=lambda: replace(program))


def moe(chance: Chance, seed: int) -> Plan:
    """Return experts over half of a node, a node, two nodes, or all ranks."""
    found = plans.experts(chance, seed)
    where = found.machine
    widths = [where.gpus // 2, where.gpus, where.ranks]
    if where.nodes % 2 == 0:
        widths.append(2 * where.gpus)
    program = found.program()
    assert isinstance(program, Experts)
    program = replace(program, width=widths[seed % len(widths)], by_sends=chance.random() < 0.4)
    if program.by_sends and program.width > 8:
        program = replace(program, by_sends=False)
    return replace(found, program=lambda: replace(program))


# Who is late.


def tensor_group(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return the ranks of a tensor group."""
    tp = plan.program().tp  # type: ignore[attr-defined]  # of these shapes
    return _group(chance, plan, tp)


def _group(chance: Chance, plan: Plan, size: int) -> tuple[int, ...]:
    first = int(chance.integers(plan.machine.ranks // size)) * size
    return tuple(range(first, first + size))


def a_ring(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return the ranks of a ring."""
    return _group(chance, plan, plan.program().width)  # type: ignore[attr-defined]


def a_server(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return the ranks that write together."""
    return _group(chance, plan, plan.program().served)  # type: ignore[attr-defined]


def a_shard(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return the ranks that have all parameters together."""
    return _group(chance, plan, plan.program().shard)  # type: ignore[attr-defined]


def a_pipeline(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return all stages of a replica."""
    program = plan.program()
    assert isinstance(program, Pipeline)
    inner = plan.machine.ranks // program.stages
    first = int(chance.integers(inner // program.tp)) * program.tp
    return tuple(
        stage * inner + first + place
        for stage in range(program.stages)
        for place in range(program.tp)
    )


def a_stage(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return all ranks of a stage."""
    program = plan.program()
    assert isinstance(program, Pipeline)
    return _group(chance, plan, plan.machine.ranks // program.stages)


def a_rail(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return the ranks at the same place of all nodes."""
    gpus = plan.machine.gpus
    return tuple(range(int(chance.integers(gpus)), plan.machine.ranks, gpus))


def a_switch(chance: Chance, plan: Plan) -> tuple[int, ...]:
    """Return all ranks of some nodes beside each other, less than half of all."""
    nodes, gpus = plan.machine.nodes, plan.machine.gpus
    some = 2 if nodes < 8 else 3
    first = int(chance.integers(nodes - some + 1))
    return tuple(range(first * gpus, (first + some) * gpus))


def of_nodes(planner: Planner, *nodes: int) -> Planner:
    """Return plans of some size."""
    sizes = plans.Sizes(nodes=nodes)
    return lambda chance, seed: planner(chance, seed, sizes)


# Uneven work.


def hot_experts(planner: Planner) -> Make:
    """Return healthy jobs in which the experts at one place of each group get the most."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        width = plan.program().width  # type: ignore[attr-defined]
        place = int(chance.integers(width))
        ranks = tuple(range(place, plan.machine.ranks, width))
        return Scenario(
            plan, (HotExperts(0.3, ranks=ranks),), float(chance.uniform(0.03, 0.1)), _LATE, WELL
        )

    return scenario


def long_stage(chance: Chance, seed: int) -> Scenario:
    """Return pipelines one of whose stages always has more to do."""
    plan = plans.pipeline(chance, seed)
    even = replace(plan.program(), weights=())  # type: ignore[call-arg]  # of a pipeline
    plan = replace(plan, program=lambda: replace(even))
    fault = SlowGpu(0.2, ranks=a_stage(chance, plan))
    return Scenario(plan, (fault,), float(chance.uniform(0.03, 0.1)), _LATE, WELL)


def one_of_many(planner: Planner) -> Make:
    """Return jobs of which one rank is slow, and ranks of its node work closely with it."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        rank = a_rank(chance, plan)
        guilty, related = who_is(plan, rank)
        kind = (LateTogether(0.05), SlowGpu(0.05))[int(chance.integers(2))]
        return Scenario(
            plan, (replace(kind, ranks=(rank,)),), float(chance.uniform(0.015, 0.06)), _LATE,
            _SLOW, guilty, related,
        )  # fmt: skip

    return scenario


_TENSOR = in_turns(tensor_part, plans.pipeline, tensor_part)
_MIXED = in_turns(
    tensor_part, plans.hsdp, moe, rings, served, plans.rails, plans.pipeline, sharded
)  # fmt: skip
_BESIDE = in_turns(
    of_nodes(plans.ddp, 5, 6), of_nodes(plans.fsdp, 5, 6), of_nodes(plans.tensor_data, 5, 6)
)

TOGETHER = (
    Case("set-tp", "set", late_set(_TENSOR, tensor_group), "a tensor group is late", True),
    Case("set-ring", "set", late_set(rings, a_ring), "a context ring is late"),
    Case("set-server", "set", late_set(served, a_server),
         "reinforcement learning: a group of ranks writes more slowly"),
    Case("set-shard", "set", late_set(sharded, a_shard), "a replica of sharded parameters is late"),
    Case("set-pipeline", "set", late_set(plans.pipeline, a_pipeline),
         "all stages of a replica are late"),
    Case("set-stage", "set", late_set(plans.pipeline, a_stage, SlowGpu(0.2), When(0.5, 1.0)),
         "a stage is slower in the second half"),
    Case("stage-uneven", "healthy", long_stage, "a stage always computes longer than the others"),
    Case("set-rail", "set", late_set(plans.rails, a_rail), "a rail of GPUs is late"),
    Case("set-switch", "set", late_set(_BESIDE, a_switch), "nodes beside each other are late"),
    Case("one-of-node", "host", one_of_many(_MIXED), "one rank is late, its node waits"),
    Case("moe-hot", "healthy", hot_experts(moe), "experts at one place get more than the others",
         True),
    Case("healthy-rings", "healthy", healthy(rings),
         "context rings beside each other"),
    Case("healthy-served", "healthy", healthy(served),
         "reinforcement learning: groups of ranks write"),
    Case("healthy-sharded", "healthy", healthy(sharded),
         "replicas of shards over half a node or two"),
    Case("healthy-moe-any", "healthy", healthy(moe),
         "experts of any width"),
)  # fmt: skip
