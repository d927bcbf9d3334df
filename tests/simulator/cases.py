# SPDX-License-Identifier: Apache-2.0
"""The jobs that the report is tried with: what is wrong in each of them, if anything.

job, truth = make("gpu-ddp", seed=1)
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tests.simulator import hardware, plans, truth
from tests.simulator.case import (
    SHORT,
    Case,
    Make,
    Planner,
    a_node,
    a_rank,
    all_of,
    healthy,
    of_size,
    who_is,
)
from tests.simulator.delays import DELAYS
from tests.simulator.endings import TimeLimit
from tests.simulator.faults import (
    BusyCpus,
    Fault,
    LateHost,
    Pauses,
    SlowCopies,
    SlowGpu,
    SlowStorage,
    When,
)
from tests.simulator.hangs import HANGS
from tests.simulator.hardware import Event
from tests.simulator.job import Clock, Job
from tests.simulator.making import WELL, Scenario, make_job
from tests.simulator.networks import NETWORKS
from tests.simulator.plans import Chance, Sizes
from tests.simulator.running import Phases, Plan
from tests.simulator.solvers import EACH_OPERATION, EACH_PHASE, EACH_STEP
from tests.simulator.together import TOGETHER
from tests.simulator.truth import Truth, gpu_name, node_names, port_name

ALWAYS = When()
LATE = frozenset({truth.STRAGGLER})
SLOW = frozenset({truth.DEGRADED})

Fault_of = Callable[[int], Fault]


# Healthy jobs, and what they may look like.


def with_phases(planner: Planner, **changes: object) -> Planner:
    """Return plans with other habits."""

    def plan(chance: Chance, seed: int) -> Plan:
        found = planner(chance, seed)
        return replace(found, phases=replace(found.phases, **changes))  # type: ignore[arg-type]

    return plan


def with_noise(planner: Planner, **changes: float) -> Planner:
    """Return plans with another kind of chance."""

    def plan(chance: Chance, seed: int) -> Plan:
        found = planner(chance, seed)
        return replace(found, noise=replace(found.noise, **changes))

    return plan


def few(ranks: int, nodes: int = 1) -> Planner:
    """Return trainings of so many ranks."""
    return lambda chance, seed: plans.few(chance, seed, ranks, nodes)


def idle(chance: Chance, seed: int) -> Plan:
    """Return a training that everybody interrupts for a while now and then."""
    found = plans.tensor_data(chance, seed)
    every_s, idle_s = float(chance.uniform(80, 200)), float(chance.uniform(2, 6))
    phases = replace(found.phases, idle_every_s=every_s, idle_s=idle_s)
    return replace(found, phases=phases)


def long_break(chance: Chance, seed: int) -> Plan:
    """Return a training that everybody interrupts for minutes once or twice, to evaluate it say."""
    found = plans.ddp(chance, seed)
    every_s, idle_s = float(chance.uniform(700, 1100)), float(chance.uniform(100, 240))
    phases = replace(found.phases, idle_every_s=every_s, idle_s=idle_s)
    return replace(found, phases=phases)


def long_steps(chance: Chance, seed: int) -> Plan:
    """Return a training of few, long steps."""
    found = plans.fsdp(chance, seed)
    program = replace(found.program(), step_s=float(chance.uniform(6, 12)))
    return replace(found, program=lambda: replace(program))


def of_few_steps(planner: Planner) -> Planner:
    """Return jobs of 8 to 30 steps."""
    return lambda chance, seed: plans.of_steps(planner(chance, seed), chance)


def any_training(chance: Chance, seed: int) -> Plan:
    """Return a training of any kind."""
    kinds = (
        plans.ddp, plans.fsdp, plans.hsdp, plans.tensor_data, plans.pipeline, plans.interleaved,
        plans.experts, plans.accumulated, plans.ring_attention,
    )  # fmt: skip
    return kinds[int(chance.integers(len(kinds)))](chance, seed)


def with_halo(meets: str) -> Planner:
    """Return solvers whose hosts meet there."""
    return lambda chance, seed: plans.halo(chance, seed, meets=meets)


def with_phases_of(meets: str, *, on_gpu: bool = False) -> Planner:
    """Return phases of operations; where the hosts meet, and what computes."""
    return lambda chance, seed: plans.phased(chance, seed, meets=meets, on_gpu=on_gpu)


def clocks_off(planner: Planner, offset_s: float, drift_ppm: float = 0.0) -> Make:
    """Return healthy jobs with a node whose clock is wrong."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        node = plan.node_names[a_node(chance, plan)]
        sign = 1 if chance.random() < 0.5 else -1
        clock = Clock(int(sign * offset_s * 1e9), sign * drift_ppm)
        return Scenario(plan, clocks={node: clock})

    return scenario


def silent(planner: Planner) -> Make:
    """Return healthy jobs of which a node's summary never arrives."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        return Scenario(plan, silent=(plan.node_names[a_node(chance, plan)],))

    return scenario


def herring(kind: str) -> Make:
    """Return healthy jobs in which hardware reports errors that slow nothing down."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = plans.tensor_data(chance, seed)
        node, nic = a_node(chance, plan), int(chance.integers(plan.machine.nics))
        name, gpu = plan.node_names[node], int(chance.integers(plan.machine.gpus))
        at_s = float(chance.uniform(100, 900))
        if kind == "link":
            some = Event(node, "port", hardware.port(nic), "symbol_error", 60, at_s, at_s + 120)
            once = Event(
                node, "port", hardware.port(nic), "link_error_recovery", 1, at_s, at_s + 60
            )
            return Scenario(plan, counted=(some, once), counters=True,
                            noted=frozenset({port_name(name, nic)}))  # fmt: skip
        if kind == "xid":
            event = Event(node, "xid", f"GPU{gpu}", "xid", 63, at_s)
            return Scenario(plan, counted=(event,), counters=True,
                            noted=frozenset({gpu_name(name, gpu)}))  # fmt: skip
        return Scenario(plan, counters=True)

    return scenario


def time_limit(planner: Planner, slow_ranks: int, offset_s: float = 0.0) -> Make:
    """Return healthy jobs that run into their time limit."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        late = tuple(int(one) for one in chance.choice(plan.machine.ranks, slow_ranks, False))
        share = float(chance.uniform(0.7, 0.95))
        clocks = {}
        if offset_s:
            clocks[plan.node_names[a_node(chance, plan)]] = Clock(int(offset_s * 1e9))
        return Scenario(
            plan, clocks=clocks,
            ending=lambda clean: TimeLimit(at_ns=clean.wall_ns * share, slow_ranks=late),
        )  # fmt: skip

    return scenario


def two_trainings(chance: Chance, seed: int) -> Scenario:
    """Return two trainings in one job, on nodes of their own."""
    plan = plans.ddp(chance, seed, Sizes(nodes=(1, 2)))
    other = plans.tensor_data(chance, seed, Sizes(nodes=(1, 2), wall_s=(600.0, 1200.0)))
    other = replace(
        other, seed=seed + 1000, first_rank=plan.machine.ranks, first_node=plan.machine.nodes
    )
    return Scenario(plan, second=other, counters=False)


# Ranks that are slow or late.


def straggler(
    planner: Planner, fault: Fault_of, low: float = 0.02, high: float = 0.08, when: When = ALWAYS
) -> Make:
    """Return jobs of which one rank is slow; its cost is between these shares of the wall time."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        plan = planner(chance, seed)
        rank = a_rank(chance, plan)
        guilty, related = who_is(plan, rank)
        target = float(chance.uniform(low, high)) if high else 0.0
        return Scenario(
            plan, (replace(fault(rank), when=when),), target, LATE, SLOW, guilty, related,
            period=(when.start, when.end),
        )  # fmt: skip

    return scenario


def gpu(rank: int) -> Fault:
    """Return a GPU that computes slowly."""
    return SlowGpu(0.05, ranks=(rank,))


def host(rank: int) -> Fault:
    """Return a host that comes late to each step."""
    return LateHost(0.05, ranks=(rank,))


def steady(rank: int) -> Fault:
    """Return a host that comes late by the same time each time."""
    return LateHost(0.05, ranks=(rank,), spread=0.0)


def pauses(rank: int) -> Fault:
    """Return a host that stands still for two seconds a minute."""
    return Pauses(2.0, ranks=(rank,))


def hot_gpu(chance: Chance, seed: int) -> Scenario:
    """Return a GPU that is slow because it is hot, and says so."""
    made = straggler(plans.ddp, gpu)(chance, seed)
    fault = made.faults[0]
    assert isinstance(fault, SlowGpu)
    node, local = divmod(fault.ranks[0], made.plan.machine.gpus)
    held = int(0.3 * made.plan.wall_s * 1e9)
    made.counted = (Event(node, "gpu", f"GPU{local}", "hw_thermal", held),)
    made.counters = True
    return made


def misled(chance: Chance, seed: int) -> Scenario:
    """Return a slow GPU, while the hardware of another node reports errors."""
    made = straggler(plans.tensor_data, gpu)(chance, seed)
    fault = made.faults[0]
    assert isinstance(fault, SlowGpu)
    machine = made.plan.machine
    node = (fault.ranks[0] // machine.gpus + 1) % machine.nodes
    nic = int(chance.integers(machine.nics))
    made.counted = (Event(node, "port", hardware.port(nic), "symbol_error", 80, 100, 400),)
    made.noted = frozenset({port_name(made.plan.node_names[node], nic)})
    made.counters = True
    return made


def old_nccl(made: Make, api: int) -> Make:
    """Return the same jobs with an NCCL whose profiler tells less."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        return replace(made(chance, seed), nccl_api=api)

    return scenario


def two_gpus(chance: Chance, seed: int) -> Scenario:
    """Return two slow GPUs in different replicas."""
    made = straggler(plans.tensor_data, gpu, 0.03, 0.08)(chance, seed)
    plan = made.plan
    fault = made.faults[0]
    assert isinstance(fault, SlowGpu)
    other = (fault.ranks[0] + plan.machine.ranks // 2) % plan.machine.ranks
    guilty, related = who_is(plan, other)
    made.faults = (replace(fault, ranks=(*fault.ranks, other)),)
    made.guilty, made.related = made.guilty | guilty, made.related | related
    return made


def slow_gpus_of_node(chance: Chance, seed: int, low: float = 0.02, high: float = 0.08) -> Scenario:
    """Return a node all of whose GPUs are slow."""
    planner = (plans.ddp, plans.tensor_data)[int(chance.integers(2))]
    plan = planner(chance, seed)
    node, gpus = a_node(chance, plan), plan.machine.gpus
    ranks = tuple(range(node * gpus, node * gpus + gpus))
    name = node_names([plan.node_names[node]])
    return Scenario(
        plan, (SlowGpu(0.05, ranks=ranks),), float(chance.uniform(low, high)), LATE, SLOW,
        name | all_of(plan, node), name,
    )  # fmt: skip


def growing(rank: int) -> Fault:
    """Return a GPU that gets slower all the time."""
    return SlowGpu(0.05, ranks=(rank,), grows=True)


def busy_node(chance: Chance, seed: int) -> Scenario:
    """Return a node whose CPUs are busy with something else."""
    plan = plans.ddp(chance, seed)
    node = a_node(chance, plan)
    return Scenario(
        plan, (BusyCpus(0.02, nodes=(node,)),), float(chance.uniform(0.02, 0.08)), LATE, SLOW,
        node_names([plan.node_names[node]]), all_of(plan, node),
        counted=(Event(node, "node", "", "cpu_some", int(0.5 * plan.wall_s * 1e6)),),
    )  # fmt: skip


def behind_clock(chance: Chance, seed: int) -> Scenario:
    """Return a slow GPU in a job one of whose clocks is wrong by half a minute."""
    made = straggler(plans.ddp, gpu)(chance, seed)
    node = made.plan.node_names[a_node(chance, made.plan)]
    made.clocks = {node: Clock(int(30e9))}
    return made


def on_silent_node(chance: Chance, seed: int) -> Scenario:
    """Return a slow GPU on the node whose summary never arrives."""
    made = straggler(plans.ddp, gpu, 0.04, 0.08)(chance, seed)
    made.silent = tuple(name for kind, name in made.related if kind == "node")
    made.statuses = frozenset({truth.DEGRADED, truth.CANNOT_TELL})
    made.causes = made.causes | {truth.UNKNOWN, truth.OTHER, truth.COMMUNICATION}
    made.nameable = False
    return made


def beside_silent_node(chance: Chance, seed: int) -> Scenario:
    """Return a slow GPU in a job of which another node's summary never arrives."""
    planner = (plans.ddp, plans.tensor_data, plans.fsdp)[seed % 3]
    made = straggler(of_size(planner, nodes=(3, 4)), gpu, 0.03, 0.08)(chance, seed)
    guilty = {name for kind, name in made.related if kind == "node"}
    others = [name for name in made.plan.node_names if name not in guilty]
    made.silent = (others[int(chance.integers(len(others)))],)
    return made


def agreed(chance: Chance, seed: int) -> Scenario:
    """Return a late host where hosts meet before each operation: NCCL does not know who it is."""
    made = straggler(with_phases_of(EACH_OPERATION), steady, 0.05, 0.3)(chance, seed)
    made.statuses = frozenset({truth.DEGRADED, truth.CANNOT_TELL})
    made.causes = made.causes | {truth.UNKNOWN, truth.OTHER, truth.OUTSIDE}
    made.nameable = False
    return made


def pcie(chance: Chance, seed: int) -> Scenario:
    """Return a GPU whose PCIe link came up with half of its lanes."""
    plan = plans.ddp(chance, seed)
    rank = a_rank(chance, plan)
    node, local = divmod(rank, plan.machine.gpus)
    guilty, related = who_is(plan, rank)
    nic = plan.machine.nic_of(local)
    return Scenario(
        plan, (SlowCopies(0.4, rank=rank),), float(chance.uniform(0.02, 0.06)),
        frozenset({truth.STRAGGLER, truth.NETWORK, truth.OTHER}), SLOW, guilty,
        related | {port_name(plan.node_names[node], nic)}, counters=True,
        counted=(Event(node, "gpu", f"GPU{local}", "=pcie_width", 8),),
    )  # fmt: skip


# Storage.


def storage(when: When) -> Make:
    """Return jobs all of whose ranks wait for their input for a while."""

    def scenario(chance: Chance, seed: int) -> Scenario:
        planner = (plans.ddp, plans.tensor_data, plans.fsdp)[int(chance.integers(3))]
        plan = planner(chance, seed)
        return Scenario(
            plan, (SlowStorage(0.3, when=when),), float(chance.uniform(0.03, 0.1)),
            frozenset({truth.OUTSIDE}), SLOW, nameable=False, period=(when.start, when.end),
            prints=bool(chance.random() < 0.7),
        )  # fmt: skip

    return scenario


_SECOND_HALF, _LAST_THIRD = When(0.5, 1.0), When(0.67, 1.0)
_A_WHILE, _NOW_AND_THEN = When(0.4, 0.6), When(on_share=0.3)
_TENTH = When(every=10)

_HEALTHY = (
    Case("healthy-ddp", "healthy", healthy(plans.ddp), "data parallel", True),
    Case("healthy-ddp-network", "healthy", healthy(plans.net_bound), "bound by its network"),
    Case("healthy-ddp-launch", "healthy", healthy(plans.launch_bound), "bound by its hosts"),
    Case("healthy-fsdp", "healthy", healthy(plans.fsdp), "sharded parameters"),
    Case("healthy-fsdp-uneven", "healthy", healthy(with_noise(plans.fsdp, batches=0.15)),
         "batches differ at random by 15 %", True),
    Case("healthy-ddp-uneven", "healthy", healthy(with_noise(plans.ddp, batches=0.1)),
         "batches differ at random by 10 %"),
    Case("healthy-hsdp", "healthy", healthy(plans.hsdp), "sharded in nodes, replicated over them"),
    Case("healthy-tp-dp", "healthy", healthy(plans.tensor_data), "tensor and data parallel", True),
    Case("healthy-tp-dp-uneven", "healthy", healthy(with_noise(plans.tensor_data, batches=0.08)),
         "batches of replicas differ by 8 %"),
    Case("healthy-rails", "healthy", healthy(plans.rails), "replicas meet on rails"),
    Case("healthy-nvlink", "healthy", healthy(plans.nvlink_bound), "bound by NVLink"),
    Case("healthy-pp", "healthy", healthy(plans.pipeline), "pipeline of unequal stages", True),
    Case("healthy-pp-interleaved", "healthy", healthy(plans.interleaved), "interleaved pipeline"),
    Case("healthy-pp-crossed", "healthy", healthy(plans.crossed), "pipeline over whole nodes"),
    Case("healthy-moe", "healthy", healthy(plans.experts), "experts within nodes"),
    Case("healthy-moe-wide", "healthy",
         healthy(lambda chance, seed: plans.experts(chance, seed, wide=True)),
         "experts on all ranks"),
    Case("healthy-elastic", "healthy", healthy(plans.elastic), "communicators made anew"),
    Case("healthy-inference", "healthy", healthy(plans.inference), "requests as they come"),
    Case("healthy-two-trainings", "healthy", two_trainings, "two trainings in one job"),
    Case("healthy-2-ranks", "healthy", healthy(few(2)), "two ranks", True),
    Case("healthy-3-ranks", "healthy", healthy(few(3)), "three ranks"),
    Case("healthy-2-nodes-1-gpu", "healthy", healthy(few(2, 2)), "two nodes with one GPU each"),
    Case("healthy-one-node", "healthy", healthy(plans.one_node), "one node"),
    Case("healthy-logs", "healthy",
         healthy(with_phases(plans.tensor_data, log_every=1, log_ms=4.0)),
         "rank 0 writes a log in each step"),
    Case("healthy-checkpoints", "healthy",
         healthy(with_phases(plans.fsdp, save_every_s=250.0, save_s=1.5, save_all=False)),
         "rank 0 writes checkpoints, the others wait"),
    Case("healthy-checkpoints-all", "healthy",
         healthy(with_phases(plans.tensor_data, save_every_s=300.0, save_s=6.0, save_all=True)),
         "all write checkpoints"),
    Case("healthy-evaluation", "healthy",
         healthy(with_phases(plans.ddp, evaluate_every_s=120.0, evaluate_steps=20)), "evaluations"),
    Case("healthy-curriculum", "healthy", healthy(with_phases(plans.tensor_data, grow=0.6)),
         "sequences grow in three jumps"),
    Case("healthy-idle", "healthy", healthy(idle), "everybody rests now and then"),
    Case("healthy-long-break", "healthy", healthy(long_break), "everybody rests for minutes once"),
    Case("healthy-long-steps", "healthy", healthy(long_steps), "steps of 6 to 12 s"),
    Case("healthy-short", "healthy", healthy(of_size(plans.ddp, wall_s=(90.0, 180.0))),
         "two minutes"),
    Case("healthy-gpus", "healthy", healthy(with_noise(plans.ddp, gpus=0.005)),
         "GPUs differ by half a per cent"),
    Case("healthy-clock-5s", "healthy", clocks_off(plans.ddp, 5.0, 400.0),
         "a clock is 5 s off and 400 ppm fast"),
    Case("healthy-clock-30s", "healthy", clocks_off(plans.tensor_data, 30.0),
         "a clock is 30 s off"),
    Case("healthy-missing-node", "healthy", silent(plans.ddp), "a node's summary is missing"),
    Case("healthy-counters", "healthy", herring("everyday"), "everyday marks and retransmissions"),
    Case("healthy-link-errors", "healthy", herring("link"), "a port has errors, nothing is slow"),
    Case("healthy-xid", "healthy", herring("xid"), "a GPU has an XID 63, nothing is slow"),
    Case("healthy-old-nccl", "healthy", old_nccl(healthy(plans.tensor_data), 4),
         "the profiler's interface is version 4"),
    Case("healthy-time-limit", "healthy", time_limit(of_size(plans.ddp, **SHORT), 0),
         "ended by its time limit"),
    Case("healthy-kill-wait", "healthy", time_limit(of_size(plans.tensor_data, **SHORT), 2),
         "time limit; two ranks take KillWait of 25 s", True),
    Case("healthy-limit-clock", "healthy",
         time_limit(of_size(plans.ddp, **SHORT), 1, offset_s=30.0),
         "time limit, and a clock is 30 s off"),
)  # fmt: skip
_HEALTHY_SOLVERS = (
    Case("healthy-phases", "healthy", healthy(plans.phased),
         "phases of operations, hosts meet by MPI after each", True),
    Case("healthy-phases-few", "healthy", healthy(of_few_steps(plans.phased)),
         "the same, 8 to 30 steps"),
    Case("healthy-agreed", "healthy", healthy(with_phases_of(EACH_OPERATION)),
         "hosts agree on each operation, as Horovod's do"),
    Case("healthy-halo", "healthy", healthy(plans.halo), "neighbours exchange borders"),
    Case("healthy-halo-mpi", "healthy", healthy(with_halo(EACH_STEP)),
         "neighbours exchange borders, hosts meet by MPI after each step"),
    Case("healthy-few-steps", "healthy", healthy(of_few_steps(plans.ddp)), "8 to 30 steps"),
    Case("healthy-accumulated", "healthy", healthy(plans.accumulated),
         "gradients of 4 or 8 batches are added up first"),
    Case("healthy-tails", "healthy", healthy(with_noise(plans.ddp, batch_tail=0.25)),
         "some batches are twice as large as others"),
    Case("healthy-compile", "healthy", healthy(with_phases(plans.fsdp, compile_s=60.0)),
         "compiles for a minute, some ranks longer than others"),
    Case("healthy-ring-attention", "healthy", healthy(plans.ring_attention),
         "keys go round a ring while they are computed on"),
    Case("healthy-rollout", "healthy", healthy(plans.rollout),
         "reinforcement learning: ranks write for a while, then learn"),
    Case("healthy-benchmark", "healthy", healthy(plans.benchmark), "nccl-tests"),
)  # fmt: skip
_STRAGGLERS = (
    Case("gpu-ddp", "gpu", straggler(plans.ddp, gpu), "a GPU is slower", True),
    Case("gpu-ddp-1-2", "gpu", straggler(plans.ddp, gpu, 0.01, 0.02), "a bit slower: 1 to 2 %"),
    Case("gpu-tp-dp", "gpu", straggler(plans.tensor_data, gpu), "a GPU is slower", True),
    Case("gpu-tp-dp-1-2", "gpu", straggler(plans.tensor_data, gpu, 0.01, 0.02), "a bit slower"),
    Case("gpu-fsdp", "gpu", straggler(plans.fsdp, gpu), "a GPU is slower"),
    Case("gpu-fsdp-uneven", "gpu", straggler(with_noise(plans.fsdp, batches=0.1), gpu),
         "a GPU is slower, and batches differ"),
    Case("gpu-hsdp", "gpu", straggler(plans.hsdp, gpu), "a GPU is slower"),
    Case("gpu-pp", "gpu", straggler(plans.pipeline, gpu), "a GPU of a pipeline is slower"),
    Case("gpu-pp-interleaved", "gpu", straggler(plans.interleaved, gpu), "a GPU is slower"),
    Case("gpu-moe", "gpu", straggler(plans.experts, gpu), "a GPU is slower"),
    Case("gpu-2-ranks", "gpu", straggler(few(2), gpu, 0.03, 0.1), "one of two GPUs is slower"),
    Case("gpu-3-ranks", "gpu", straggler(few(3), gpu, 0.03, 0.1), "one of three is slower"),
    Case("gpu-second-half", "gpu", straggler(plans.ddp, gpu, when=_SECOND_HALF),
         "slower in the second half", True),
    Case("gpu-last-third", "gpu", straggler(plans.tensor_data, gpu, 0.02, 0.05, _LAST_THIRD),
         "slower in the last third"),
    Case("gpu-now-and-then", "gpu", straggler(plans.ddp, gpu, 0.02, 0.05, _NOW_AND_THEN),
         "slower now and then"),
    Case("gpu-hot", "gpu", hot_gpu, "slower, and its counters say that it is hot"),
    Case("gpu-misled", "gpu", misled, "slower, and another node's port has errors"),
    Case("gpu-two", "gpu", two_gpus, "two GPUs are slower"),
    Case("gpu-clock-30s", "gpu", behind_clock, "slower, and a clock is 30 s off"),
    Case("gpu-old-nccl", "gpu", old_nccl(straggler(plans.ddp, gpu), 4),
         "slower, and the profiler's interface is version 4"),
    Case("gpu-missing-node", "gpu", on_silent_node, "slower, on the node that is missing"),
    Case("gpu-beside-missing", "gpu", beside_silent_node, "slower, and another node is missing"),
    Case("host-ddp", "host", straggler(plans.ddp, host), "a host comes late to each step", True),
    Case("host-tp-dp", "host", straggler(plans.tensor_data, host), "a host comes late"),
    Case("host-fsdp", "host", straggler(plans.fsdp, host), "a host comes late"),
    Case("host-pp", "host", straggler(plans.pipeline, host), "a host comes late"),
    Case("host-stall", "host", straggler(plans.ddp, host, 0.03, 0.08, _A_WHILE),
         "a data loader stalls for a fifth of the job", True),
    Case("host-stall-tp-dp", "host", straggler(plans.tensor_data, host, 0.03, 0.08, _A_WHILE),
         "a data loader stalls for a fifth of the job"),
    Case("host-every-tenth", "host", straggler(plans.tensor_data, host, 0.02, 0.03, _TENTH),
         "late by a quarter of a step in every tenth"),
    Case("host-phases", "host", straggler(plans.phased, steady, 0.02, 0.3),
         "late by the same time for each operation, hosts meet by MPI"),
    Case("host-phases-few", "host", straggler(of_few_steps(plans.phased), steady, 0.05, 0.5),
         "the same, 8 to 30 steps", True),
    Case("gpu-phases", "gpu", straggler(with_phases_of(EACH_PHASE, on_gpu=True), gpu),
         "a GPU is slower, hosts meet by MPI"),
    Case("gpu-few-steps", "gpu", straggler(of_few_steps(plans.ddp), gpu, 0.05, 0.4),
         "a GPU is slower, 8 to 30 steps"),
    Case("gpu-halo", "gpu", straggler(plans.halo, gpu), "a GPU is slower, neighbours exchange"),
    Case("host-halo-mpi", "host", straggler(with_halo(EACH_STEP), steady, 0.02, 0.2),
         "late by the same time in each step, neighbours exchange, hosts meet by MPI"),
    Case("gpu-accumulated", "gpu", straggler(plans.accumulated, gpu),
         "a GPU is slower, gradients are added up first"),
    Case("gpu-tails", "gpu", straggler(with_noise(plans.ddp, batch_tail=0.15), gpu, 0.03, 0.1),
         "a GPU is slower, and batches differ with a tail"),
    Case("gpu-ring-attention", "gpu", straggler(plans.ring_attention, gpu),
         "a GPU is slower, keys go round a ring"),
    Case("gpu-rollout", "gpu", straggler(plans.rollout, gpu),
         "a GPU is slower, ranks write and learn"),
    Case("gpu-node", "gpu", slow_gpus_of_node, "all GPUs of a node are slower"),
    Case("gpu-ring-much", "gpu", straggler(plans.ring_attention, gpu, 0.08, 0.3),
         "a GPU is much slower, keys go round a ring"),
    Case("gpu-much", "gpu", straggler(with_noise(any_training, batches=0.05), gpu, 0.1, 0.4),
         "a GPU is much slower, in any kind of training"),
    Case("gpu-much-node", "gpu", partial(slow_gpus_of_node, low=0.1, high=0.4),
         "all GPUs of a node are much slower"),
    Case("host-much", "host", straggler(any_training, host, 0.1, 0.4),
         "a host comes much too late to each step, in any kind of training"),
    Case("host-much-steady", "host",
         straggler(with_noise(any_training, batches=0.03), steady, 0.1, 0.4),
         "by the same time in each step"),
    Case("gpu-growing", "gpu", straggler(plans.tensor_data, growing),
         "a GPU gets slower all the time"),
    Case("host-agreed", "host", agreed, "late before hosts agree on each operation"),
    Case("host-pauses", "host", straggler(plans.tensor_data, pauses, 0, 0),
         "stands still for 2 s a minute"),
    Case("host-busy-node", "host", busy_node, "CPUs of a node are busy"),
    Case("pcie", "host", pcie, "a GPU has half of its PCIe lanes"),
)  # fmt: skip
_STORAGE = (
    Case("storage-stall", "outside", storage(When(0.5, 0.65)), "all wait for storage for a while"),
    Case("storage-outage", "outside", storage(When(0.5, 0.51)), "all stand still for a minute"),
)  # fmt: skip
CASES = (
    *_HEALTHY, *_HEALTHY_SOLVERS, *_STRAGGLERS, *DELAYS, *TOGETHER, *NETWORKS, *_STORAGE, *HANGS,
)  # fmt: skip


def case_of(name: str) -> Case:
    """Return the case of this name."""
    return next(one for one in CASES if one.name == name)


def make(name: str, seed: int) -> tuple[Job, Truth]:
    """Return the job of a case for a seed, and what is true of it."""
    chance = np.random.default_rng((zlib.crc32(name.encode()), seed))
    scenario = case_of(name).scenario(chance, seed)
    # The same seed of two cases is not the same chance.
    own = int(np.random.default_rng((zlib.crc32(name.encode()), seed, 1)).integers(1 << 30))
    scenario.plan = replace(scenario.plan, seed=own)
    return make_job(scenario, seed)


__all__ = ["CASES", "WELL", "Case", "Phases", "case_of", "make"]
