# SPDX-License-Identifier: Apache-2.0
"""Cases of long delays that are rare, of faults that cost much, and of costs that are hard to tell.

What a program may do by itself (it saves, it evaluates, it waits for storage) has to be told with
its cost, whether the verdict is about it or not.
"""

from dataclasses import replace

from tests.simulator import plans, truth
from tests.simulator.case import Case, Make, Planner, a_node, a_rank, all_of, in_turns, who_is
from tests.simulator.faults import BusyCpus, Fault, LateHost, SlowGpu, SlowHost, Stalls
from tests.simulator.making import WELL, Scenario
from tests.simulator.plans import Chance, Sizes
from tests.simulator.programs import MB, Ddp
from tests.simulator.running import Phases, Plan
from tests.simulator.truth import node_names

_LATE = frozenset({truth.STRAGGLER})
_SLOW = frozenset({truth.DEGRADED})
# What may be a fault, and may be a part of the program.
_EITHER = WELL | _SLOW

_ANY = in_turns(
    plans.ddp, plans.tensor_data, plans.fsdp, plans.hsdp, plans.pipeline, plans.experts,
    plans.rails, plans.accumulated, plans.interleaved, plans.net_bound,
)  # fmt: skip


def _without_habits(plan: Plan) -> Plan:
    return replace(plan, phases=Phases(warm_up=plan.phases.warm_up, log_every=0))


def _other_rank(chance: Chance, plan: Plan) -> int:
    """Return any rank but the first, which is where programs save and log."""
    return 1 + int(chance.integers(plan.machine.ranks - 1))


def stalling_node(chance: Chance, seed: int) -> Scenario:
    """Return a node all of whose ranks stand still now and then, as by a stuck file system."""
    plan = _ANY(chance, seed)
    node, gpus = a_node(chance, plan), plan.machine.gpus
    ranks = tuple(range(node * gpus, (node + 1) * gpus))
    fault = Stalls(float(chance.uniform(1, 3)), ranks=ranks,
                   period_s=float(chance.uniform(30, 60)))  # fmt: skip
    return Scenario(
        plan, (fault,), 0.0, _LATE, _SLOW, node_names([plan.node_names[node]]), all_of(plan, node)
    )


def few_pauses(chance: Chance, seed: int) -> Scenario:
    """Return a rank that stands still for some seconds, two to five times in all."""
    plan = _ANY(chance, seed)
    rank = _other_rank(chance, plan)
    times = int(chance.integers(2, 6))
    fault = Stalls(float(chance.uniform(0.03, 0.07)) * plan.wall_s / times, ranks=(rank,),
                   period_s=plan.wall_s / (times + 1), most=times)  # fmt: skip
    guilty, related = who_is(plan, rank)
    return Scenario(plan, (fault,), 0.0, _LATE, _SLOW, guilty, related)


def short_pauses(chance: Chance, seed: int) -> Scenario:
    """Return a rank that stands still for a second or two, each half a minute to two minutes."""
    plan = _ANY(chance, seed)
    rank = _other_rank(chance, plan)
    period_s = float(chance.uniform(25, 90))
    fault = Stalls(period_s * float(chance.uniform(0.02, 0.04)), ranks=(rank,), period_s=period_s)
    guilty, related = who_is(plan, rank)
    return Scenario(plan, (fault,), 0.0, _LATE, _SLOW, guilty, related)


def saving_rank(chance: Chance, seed: int) -> Scenario:
    """Return a training whose first rank saves for long, while the others wait for it."""
    plan = _without_habits(_ANY(chance, seed))
    times = int(chance.integers(3, 7))
    fault = Stalls(float(chance.uniform(0.03, 0.09)) * plan.wall_s / times, ranks=(0,),
                   period_s=plan.wall_s / (times + 1), most=times, item=1)  # fmt: skip
    guilty, related = who_is(plan, 0)
    return Scenario(plan, (fault,), 0.0, _LATE, WELL, guilty, related)


def evaluating_node(chance: Chance, seed: int) -> Scenario:
    """Return a training of which one node evaluates while the others wait for it."""
    plan = _without_habits(_ANY(chance, seed))
    node, gpus = a_node(chance, plan), plan.machine.gpus
    ranks = tuple(range(node * gpus, (node + 1) * gpus))
    period_s = float(chance.uniform(80, 200))
    fault = Stalls(period_s * float(chance.uniform(0.15, 0.7)), ranks=ranks, period_s=period_s,
                   item=1)  # fmt: skip
    return Scenario(
        plan, (fault,), 0.0, _LATE, _EITHER, node_names([plan.node_names[node]]),
        all_of(plan, node),
    )  # fmt: skip


def standing_still(low_s: float, high_s: float) -> Make:
    """Return jobs all of whose ranks stand still for that long now and then."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = _without_habits(_ANY(chance, seed))
        period_s = float(chance.uniform(60, 150))
        fault = Stalls(float(chance.uniform(low_s, high_s)), ranks=tuple(range(plan.machine.ranks)),
                       period_s=period_s)  # fmt: skip
        return Scenario(plan, (fault,), 0.0, frozenset({truth.OUTSIDE}), _EITHER, nameable=False)

    return scenario


def long_pause(chance: Chance, seed: int) -> Scenario:
    """Return a rank that stands still once, for most of the job."""
    plan = _without_habits(_ANY(chance, seed))
    short = replace(plan, wall_s=float(chance.uniform(150, 400)))
    rank = _other_rank(chance, short)
    fault = Stalls(short.wall_s * float(chance.uniform(0.3, 6)), ranks=(rank,),
                   period_s=short.wall_s * float(chance.uniform(0.35, 0.6)), most=1)  # fmt: skip
    guilty, related = who_is(short, rank)
    return Scenario(short, (fault,), 0.0, _LATE, _SLOW, guilty, related)


def costly(planner: Planner, fault: Fault, low: float, high: float) -> Make:
    """Return jobs with a fault of one rank (`fault`: of any) that costs this much."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        rank = a_rank(chance, plan)
        guilty, related = who_is(plan, rank)
        own = replace(fault, ranks=(rank,))  # type: ignore[call-arg]  # a fault of ranks
        return Scenario(
            plan, (own,), float(chance.uniform(low, high)), _LATE, _SLOW, guilty, related
        )

    return scenario


def busy_launchers(chance: Chance, seed: int) -> Scenario:
    """Return a training bound by its hosts, of which those of one node are busy."""
    plan = plans.launch_bound(chance, seed, Sizes())
    node = a_node(chance, plan)
    return Scenario(
        plan, (BusyCpus(0.01, nodes=(node,)),), float(chance.uniform(0.05, 0.3)), _LATE, _SLOW,
        node_names([plan.node_names[node]]), all_of(plan, node),
    )  # fmt: skip


def slow_launcher(chance: Chance, seed: int) -> Scenario:
    """Return a training of many small kernels, of which one host launches more slowly."""
    found = plans.ddp(chance, seed)
    # The GPUs are done with a step long before the hosts have launched the next one.
    size, every = int(chance.choice([1, 4])) * MB, int(chance.choice([1, 10]))
    program = Ddp(found.machine, step_s=0.0008, buckets=4, bucket_bytes=size, batches=4,
                  loader_ms=0.1, sync_every=every)  # fmt: skip
    habits = Phases(warm_up=found.phases.warm_up, log_every=0)
    plan = replace(found, program=lambda: replace(program), wall_s=90.0, phases=habits)
    return costly(lambda *_: plan, SlowHost(0.2), 0.05, 0.3)(chance, seed)


_PIPELINES = in_turns(plans.pipeline, plans.interleaved, plans.crossed)
_FINE = in_turns(plans.ring_attention, plans.halo, plans.experts)

DELAYS = (
    Case("stall-node", "host", stalling_node, "a node stands still for 1 to 3 s at times", True),
    Case("pauses-few", "host", few_pauses, "a rank stands still two to five times", True),
    Case("pauses-short", "host", short_pauses, "a rank stands still for 1 or 2 s now and then"),
    Case("pause-long", "host", long_pause, "a rank stands still once, for most of the job"),
    Case("saves-long", "healthy", saving_rank, "rank 0 saves for long, and the others wait", True),
    Case("evaluating-node", "host", evaluating_node, "a node evaluates, and the others wait"),
    Case("still-short", "outside", standing_still(5, 25), "all stand still for 5 to 25 s"),
    Case("still-long", "outside", standing_still(25, 55), "all stand still for 25 to 55 s"),
    Case("host-costly", "host", costly(_ANY, LateHost(0.3), 0.15, 0.45),
         "a host comes late, and costs a third of the job"),
    Case("gpu-costly", "gpu", costly(_ANY, SlowGpu(0.3), 0.15, 0.45),
         "a GPU is slower, and costs a third of the job"),
    Case("host-launch", "host", costly(plans.launch_bound, LateHost(0.01), 0.03, 0.35),
         "a host comes late where hosts are what the job waits for"),
    Case("host-launch-slow", "host", slow_launcher,
         "a host launches more slowly where launches are what the job waits for"),
    Case("host-launch-node", "host", busy_launchers,
         "a node's CPUs are busy where hosts are what the job waits for"),
    Case("host-pipelines", "host", costly(_PIPELINES, LateHost(0.05), 0.03, 0.1),
         "a host of a pipeline comes late"),
    Case("host-fine", "host", costly(_FINE, LateHost(0.02), 0.02, 0.1),
         "a host comes late: rings, borders, experts"),
)  # fmt: skip
