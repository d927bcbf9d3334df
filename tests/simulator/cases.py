# SPDX-License-Identifier: Apache-2.0
"""The jobs that the report is tried with: what is wrong in each of them, if anything."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.simulator import plans, truth
from tests.simulator.faults import Fault, LateHost, SlowGpu, When
from tests.simulator.job import Clock, Job
from tests.simulator.machine import S
from tests.simulator.plans import Chance
from tests.simulator.running import Plan, Run, count_steps, run, to_job, transfer_times
from tests.simulator.truth import Name, Truth

ALWAYS = When()
WELL = frozenset({truth.HEALTHY, truth.CANNOT_TELL})


@dataclass
class Scenario:
    """What a case is made of for one seed. `target`: the share of the wall time that it costs."""

    plan: Plan
    faults: tuple[Fault, ...] = ()
    target: float = 0.0
    causes: frozenset[str] = frozenset()
    statuses: frozenset[str] = WELL
    guilty: frozenset[Name] = frozenset()
    related: frozenset[Name] = frozenset()
    noted: frozenset[Name] = frozenset()
    period: tuple[float, float] | None = None  # shares of the steps
    clocks: dict[str, Clock] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """`kind`: healthy, or the class of what is wrong. `fast`: part of the short run."""

    name: str
    kind: str
    scenario: Callable[[Chance, int], Scenario]
    about: str
    fast: bool = False


def node_of(plan: Plan, rank: int) -> str:
    """Return the name of a rank's node."""
    return f"n{plan.first_node + rank // plan.machine.gpus + 1:02}"


def who_is(plan: Plan, rank: int) -> tuple[frozenset[Name], frozenset[Name]]:
    """Return a rank with its GPU, and what else it is no lie to name: its node."""
    node, local = node_of(plan, rank), rank % plan.machine.gpus
    guilty = truth.rank_names([plan.first_rank + rank]) | {truth.gpu_name(node, local)}
    return guilty, truth.node_names([node])


def a_rank(chance: Chance, plan: Plan) -> int:
    """Return any rank but the first, which has work of its own."""
    return int(chance.integers(1, plan.machine.ranks))


# Scenarios.

Maker = Callable[..., Plan]


def _healthy(make: Maker) -> Callable[[Chance, int], Scenario]:
    def scenario(chance: Chance, seed: int) -> Scenario:
        return Scenario(make(chance, seed))

    return scenario


def _straggler(
    make: Maker, fault: Callable[[int], Fault], low: float = 0.02, high: float = 0.08,
    when: When = ALWAYS,
) -> Callable[[Chance, int], Scenario]:  # fmt: skip
    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = make(chance, seed)
        rank = a_rank(chance, plan)
        guilty, related = who_is(plan, rank)
        return Scenario(
            plan, (replace(fault(rank), when=when),), float(chance.uniform(low, high)),
            frozenset({truth.STRAGGLER}), frozenset({truth.DEGRADED}), guilty, related,
            period=(when.start, when.end),
        )  # fmt: skip

    return scenario


def _gpu(rank: int) -> Fault:
    return SlowGpu(0.05, ranks=(rank,))


def _host(rank: int) -> Fault:
    return LateHost(0.05, ranks=(rank,))


CASES: tuple[Case, ...] = (
    Case("healthy-ddp", "healthy", _healthy(plans.ddp), "data parallel", fast=True),
    Case("healthy-tp-dp", "healthy", _healthy(plans.tensor_data), "tensor and data parallel", True),
    Case("healthy-fsdp", "healthy", _healthy(plans.fsdp), "sharded parameters"),
    Case("healthy-hsdp", "healthy", _healthy(plans.hsdp), "sharded in nodes, replicated over them"),
    Case("gpu-ddp", "gpu", _straggler(plans.ddp, _gpu), "a GPU is slower", fast=True),
    Case("gpu-ddp-1-2", "gpu", _straggler(plans.ddp, _gpu, 0.01, 0.02), "a GPU is a bit slower"),
    Case("gpu-tp-dp", "gpu", _straggler(plans.tensor_data, _gpu), "a GPU is slower", fast=True),
    Case("gpu-fsdp", "gpu", _straggler(plans.fsdp, _gpu), "a GPU is slower"),
    Case("host-ddp", "host", _straggler(plans.ddp, _host), "a host comes late", fast=True),
    Case("host-tp-dp", "host", _straggler(plans.tensor_data, _host), "a host comes late"),
    Case("gpu-ddp-second-half", "gpu", _straggler(plans.ddp, _gpu, when=When(0.5, 1.0)),
         "a GPU is slower in the second half"),
)  # fmt: skip


def case_of(name: str) -> Case:
    """Return the case of this name."""
    return next(one for one in CASES if one.name == name)


# Making them.


def _with_size(faults: Sequence[Fault], size: float) -> tuple[Fault, ...]:
    return (faults[0].with_size(size), *faults[1:])


def tune(plan: Plan, faults: Sequence[Fault], target: float) -> tuple[Fault, ...]:
    """Return the faults, the first as bad as to cost `target` of the wall time."""
    short = replace(plan, steps=max(60, plan.steps // 6) if plan.steps > 60 else plan.steps)
    clean = run(short)
    began = float(clean.begins[min(3, len(clean.begins) - 1)])
    size = faults[0].size
    for _ in range(4):
        slow = run(short, _with_size(faults, size), clean)
        cost = (slow.wall_ns - clean.wall_ns) / (slow.wall_ns - began)
        if abs(cost - target) < 0.1 * target:
            break
        size *= float(np.clip(target / max(cost, 1e-4), 0.2, 5.0))
    return _with_size(faults, size)


def _clocks(plan: Plan, seed: int) -> dict[str, Clock]:
    """Return clocks as NTP keeps them: a millisecond, and some parts in a million."""
    chance = np.random.default_rng((seed, 30))
    return {
        node_of(plan, node * plan.machine.gpus): Clock(
            int(chance.normal(0, 0.7e6)), float(chance.normal(0, 0.05))
        )
        for node in range(plan.machine.nodes)
    }


def _simulate(scenario: Scenario) -> tuple[Plan, Run, Run]:
    """Return the plan with its steps, and the run with its faults and the one without."""
    plan = replace(scenario.plan, steps=count_steps(scenario.plan))
    faults = scenario.faults
    if faults and scenario.target:
        faults = tune(plan, faults, scenario.target)
    clean = run(plan)
    return plan, run(plan, faults, clean) if faults else clean, clean


def chance_of(name: str, seed: int) -> Chance:
    """Return what the case draws from for this seed."""
    return np.random.default_rng((zlib.crc32(name.encode()), seed))


def make(name: str, seed: int) -> tuple[Job, Truth]:
    """Return the job of a case for a seed, and what is true of it."""
    scenario = case_of(name).scenario(chance_of(name, seed), seed)
    plan, done, clean = _simulate(scenario)
    job = to_job(plan, done, {**_clocks(plan, seed), **scenario.clocks})
    period = None
    if scenario.period is not None and scenario.faults:
        last = len(done.begins) - 1
        ends = [done.begins[min(last, int(share * last))] / S for share in scenario.period]
        period = float(ends[0]), float(ends[1]) if scenario.period[1] < 1 else done.wall_ns / S
    return job, Truth(
        scenario.statuses, scenario.causes, scenario.guilty, scenario.related, scenario.noted,
        period, (done.wall_ns - clean.wall_ns) / S, done.wall_ns / S, transfer_times(done),
    )  # fmt: skip
