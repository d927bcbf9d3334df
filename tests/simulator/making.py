# SPDX-License-Identifier: Apache-2.0
"""A scenario made into the job that is played, and the truth about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nccl_inspector.counters.node_counters import NodeCounters
from tests.simulator import hardware, truth
from tests.simulator.endings import Ending
from tests.simulator.faults import Congestion, Fault
from tests.simulator.hardware import Event
from tests.simulator.job import NEVER, Clock, Job
from tests.simulator.machine import S
from tests.simulator.running import (
    Plan,
    Run,
    run,
    settle,
    to_job,
    transfer_times,
)
from tests.simulator.truth import Name, Truth

WELL = frozenset({truth.HEALTHY, truth.CANNOT_TELL})
_CLOSE = 0.07  # of the cost that is aimed at
_DRIFT_PPM = (3.0, 400.0)  # of a quartz in a cool rack, of one in a hot virtual machine


@dataclass
class Scenario:
    """What a case is made of for one seed. `target`: the share of the wall time that it costs.

    The names are those of `Truth`. `ending` is told the clean run, as a time limit needs it.
    `period`: shares of the steps. `counted`: what hardware counted besides everyday events.
    """

    plan: Plan
    faults: tuple[Fault, ...] = ()
    target: float = 0.0
    causes: frozenset[str] = frozenset()
    statuses: frozenset[str] = WELL
    guilty: frozenset[Name] = frozenset()
    related: frozenset[Name] = frozenset()
    noted: frozenset[Name] = frozenset()
    nameable: bool = True
    period: tuple[float, float] | None = None
    ending: Callable[[Run], Ending] | None = None
    clocks: dict[str, Clock] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    counted: tuple[Event, ...] = ()
    counters: bool | None = None  # None: chance says whether there are any
    prints: bool | None = None  # its throughput; None: chance says whether it does
    counted_when: Callable[[Run], tuple[Event, ...]] | None = None  # the same, of the run
    nccl_api: int = 7
    second: Plan | None = None  # another training in the same job


def _with_size(faults: Sequence[Fault], size: float) -> tuple[Fault, ...]:
    return (faults[0].with_size(size), *faults[1:])


def _next_size(tried: list[tuple[float, float]], target: float) -> float:
    """Return a better size, from sizes and what they cost."""
    size, cost = tried[-1]
    below = [one for one in tried if one[1] < target]
    above = [one for one in tried if one[1] >= target]
    if below and above:
        (low, low_cost), (high, high_cost) = max(below), min(above)
        share = (target - low_cost) / max(high_cost - low_cost, 1e-9)
        return low + (high - low) * float(np.clip(share, 0.1, 0.9))
    return size * float(np.clip(target / max(cost, 1e-4), 0.2, 4.0))


def tune(plan: Plan, faults: Sequence[Fault], target: float) -> tuple[Fault, ...]:
    """Return the faults, the first as bad as to cost about `target` of the wall time."""
    steps = min(plan.steps, max(60, plan.steps // 6))
    if any(one.when.on_share < 1 or isinstance(one, Congestion) for one in faults):
        steps = plan.steps  # a part of it would have other spells
    short = replace(plan, steps=steps)
    clean = run(short)
    began = float(clean.begins[min(3, len(clean.begins) - 1)])
    tried: list[tuple[float, float]] = []
    size = faults[0].size
    for _ in range(7):
        slow = run(short, _with_size(faults, size), clean)
        cost = (slow.wall_ns - clean.wall_ns) / (slow.wall_ns - began)
        tried.append((size, cost))
        if abs(cost - target) < _CLOSE * target:
            break
        size = _next_size(tried, target)
    return _with_size(faults, min(tried, key=lambda one: abs(one[1] - target))[0])


def _clocks(plan: Plan, seed: int) -> dict[str, Clock]:
    """Return clocks that are milliseconds apart, and that nobody sets while the job runs."""
    chance = np.random.default_rng((seed, 30))
    found = {}
    for node in plan.node_names:
        ahead_ns = int(chance.normal(0, 0.7e6))
        drift_ppm = float(np.exp(chance.uniform(*np.log(_DRIFT_PPM))))
        found[node] = Clock(ahead_ns, drift_ppm if chance.random() < 0.5 else -drift_ppm)
    return found


def _simulate(scenario: Scenario) -> tuple[Run, Run]:
    """Return the run with what is wrong, and the one without."""
    plan = settle(scenario.plan)
    faults = scenario.faults
    if faults and scenario.target:
        faults = tune(plan, faults, scenario.target)
    clean = run(plan)
    if not faults and scenario.ending is None:
        return clean, clean
    ending = scenario.ending(clean) if scenario.ending else None
    return run(plan, faults, clean, ending), clean


def _counters(scenario: Scenario, done: Run) -> dict[str, NodeCounters]:
    plan, wall_s = scenario.plan, done.wall_ns / S
    chance = np.random.default_rng((plan.seed, 31))
    there = chance.random() < 0.6 if scenario.counters is None else scenario.counters
    if not there:
        return {}
    events = [*hardware.everyday(plan.machine, chance, wall_s), *scenario.counted]
    if scenario.counted_when is not None:
        events += scenario.counted_when(done)
    return hardware.counters_of(plan.machine, plan.node_names, events, plan.start_unix_s, wall_s)


def _throughput(scenario: Scenario, done: Run) -> tuple[tuple[float, float], ...]:
    """Return what the job printed of its own progress, if it did."""
    plan = scenario.plan
    chance = np.random.default_rng((plan.seed, 32))
    prints = chance.random() < 0.4 if scenario.prints is None else scenario.prints
    if not prints or len(done.begins) < 40:
        return ()
    every = 10
    begins = done.begins[::every] / S
    steps = np.diff(begins)
    return tuple(
        (float(end), float(every * plan.machine.ranks * 4 / took))
        for end, took in zip(begins[1:], steps, strict=True)
        if took > 0
    )


def _period(scenario: Scenario, done: Run) -> tuple[float, float] | None:
    if scenario.period is None:
        return None
    last = len(done.begins) - 1
    start, end = (float(done.begins[min(last, int(s * last))]) / S for s in scenario.period)
    return start, end if scenario.period[1] < 1 else done.wall_ns / S


def _late_by(scenario: Scenario) -> str:
    kinds = {one.late_by for one in scenario.faults}
    return kinds.pop() if len(kinds) == 1 and truth.STRAGGLER in scenario.causes else ""


def _in_flight(job: Job) -> bool:
    """Tell whether any rank was in an operation, or had called one, when it ended."""
    return any(bool((one.operations["end_ns"] == NEVER).any()) for one in job.ranks)


def make_job(scenario: Scenario, seed: int) -> tuple[Job, Truth]:
    """Return the job, and what is true of it."""
    done, clean = _simulate(scenario)
    plan = scenario.plan
    job = to_job(plan, done, {**_clocks(plan, seed), **scenario.clocks})
    transfers = transfer_times(done)
    if scenario.second is not None:
        beside = settle(scenario.second)
        other = run(beside)
        job = _both(job, to_job(beside, other, _clocks(beside, seed + 1)))
        transfers |= transfer_times(other)
    elif not scenario.silent:
        job = replace(job, throughput=_throughput(scenario, done))
    job = replace(
        job,
        silent_nodes=scenario.silent,
        counters=_counters(scenario, done),
        nccl_api=scenario.nccl_api,
    )
    cost_s = (done.wall_ns - clean.wall_ns) / S if scenario.faults else 0.0
    statuses, guilty, nameable = scenario.statuses, scenario.guilty, scenario.nameable
    if truth.HUNG in statuses and not _in_flight(job):
        # Whoever stopped had called all of the step, and its hosts meet outside NCCL.
        statuses, guilty, nameable = frozenset({truth.CANNOT_TELL}), frozenset(), False
    return job, Truth(
        statuses, scenario.causes, guilty, scenario.related, scenario.noted,
        nameable, _late_by(scenario), _period(scenario, done), cost_s, job.wall_ns / S,
        transfers,
    )  # fmt: skip


def _both(job: Job, other: Job) -> Job:
    return replace(
        job,
        ranks=(*job.ranks, *other.ranks),
        nodes=tuple(dict.fromkeys((*job.nodes, *other.nodes))),
        clocks={**job.clocks, **other.clocks},
        wall_ns=max(job.wall_ns, other.wall_ns),
    )
