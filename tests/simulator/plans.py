# SPDX-License-Identifier: Apache-2.0
"""Jobs as people run them: sizes, speeds and habits drawn by a seed."""

from dataclasses import dataclass, replace

import numpy as np

from tests.simulator.engine import Noise
from tests.simulator.machine import Machine
from tests.simulator.programs import (
    MB,
    Ddp,
    Elastic,
    Experts,
    Fsdp,
    Inference,
    Pipeline,
    Program,
    TensorData,
)
from tests.simulator.running import Phases, Plan
from tests.simulator.solvers import (
    EACH_PHASE,
    EXCHANGE,
    NOWHERE,
    Benchmark,
    Halo,
    Phased,
    RingAttention,
    Rollout,
)

Chance = np.random.Generator

_FLEETS = (
    Machine(),
    Machine(nic_gbs=23.0, nic_rate="200 Gb/sec (4X HDR)"),
    Machine(nvlink_gbs=220.0, nic_gbs=23.0, nics=4, nic_rate="200 Gb/sec (4X HDR)",
            model="NVIDIA A100-SXM4-80GB"),
    Machine(nvlink_gbs=150.0, nics=4, gpus=4, nic_gbs=46.0),
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How large a job may be."""

    nodes: tuple[int, ...] = (2, 3, 4)
    wall_s: tuple[float, float] = (1200.0, 2400.0)


def machine(chance: Chance, nodes: tuple[int, ...] = (2, 3, 4)) -> Machine:
    """Return one of some fleets, and how many of its nodes."""
    fleet = _FLEETS[int(chance.integers(len(_FLEETS)))]
    return replace(fleet, nodes=int(chance.choice(nodes)))


def noise(chance: Chance) -> Noise:
    """Return everyday noise, more or less of it."""
    return Noise(
        compute=float(chance.uniform(0.003, 0.012)),
        tail_ms=float(chance.uniform(0.1, 1.0)),
        gpus=float(chance.uniform(0.0015, 0.003)),
        transfer=float(chance.uniform(0.008, 0.03)),
        pause_share=float(chance.uniform(0.0, 0.003)),
        pause_ms=float(chance.uniform(15, 60)),
        weather=float(chance.uniform(0.005, 0.03)),
        bursts_per_hour=float(chance.uniform(0, 10)),
        burst_times=float(chance.uniform(1.1, 1.8)),
        batches=float(chance.choice([0.0, 0.0, 0.02])),
        crowding=float(chance.choice([0.0, 0.03])),
    )


def phases(chance: Chance) -> Phases:
    """Return habits of a training. What rank 0 does alone is well below a per cent of the time."""
    save_all = bool(chance.random() < 0.5)
    return Phases(
        warm_up=float(chance.uniform(1.5, 6)),
        evaluate_every_s=float(chance.choice([0, 0, 250])),
        save_every_s=float(chance.choice([0, 400, 700])),
        save_s=float(chance.uniform(2, 7)) if save_all else float(chance.uniform(0.5, 2)),
        save_all=save_all,
        log_ms=float(chance.uniform(0.2, 1.2)),
        log_every=int(chance.choice([1, 10])),
    )


def _plan(chance: Chance, seed: int, sizes: Sizes, where: Machine, program: Program) -> Plan:
    return Plan(
        where, lambda: replace(program), seed, float(chance.uniform(*sizes.wall_s)),
        noise=noise(chance), phases=phases(chance),
    )  # fmt: skip


def of_program(
    chance: Chance, seed: int, where: Machine, program: Program, wall_s: tuple[float, float]
) -> Plan:
    """Return a training of any program."""
    return _plan(chance, seed, Sizes(wall_s=wall_s), where, program)


_ANY = Sizes()


def ddp(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a data-parallel training."""
    where = machine(chance, sizes.nodes)
    program = Ddp(
        where,
        step_s=float(chance.uniform(0.4, 1.5)),
        buckets=int(chance.integers(5, 16)),
        bucket_bytes=int(chance.choice([25, 50, 100, 200])) * MB,
        sync_every=int(chance.choice([1, 1, 10])),
        loader_ms=float(chance.uniform(0.5, 5)),
        name=str(chance.choice(["default_pg", ""])),
    )
    return _plan(chance, seed, sizes, where, program)


def fsdp(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training with sharded parameters."""
    where = machine(chance, sizes.nodes)
    program = Fsdp(
        where,
        step_s=float(chance.uniform(1.0, 4.0)),
        units=int(chance.integers(8, 25)),
        unit_bytes=int(chance.choice([100, 200, 400, 800])) * MB,
        ahead=int(chance.choice([1, 2, 3])),
        sync_every=int(chance.choice([1, 5])),
    )
    return _plan(chance, seed, sizes, where, program)


def hsdp(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training sharded within nodes and replicated over them."""
    where = machine(chance, sizes.nodes)
    program = Fsdp(
        where,
        step_s=float(chance.uniform(1.0, 4.0)),
        units=int(chance.integers(8, 20)),
        unit_bytes=int(chance.choice([200, 400, 800])) * MB,
        shard=where.gpus,
    )
    return _plan(chance, seed, sizes, where, program)


def tensor_data(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training with layers split over GPUs of a node, and replicas."""
    where = machine(chance, sizes.nodes)
    program = TensorData(
        where,
        step_s=float(chance.uniform(1.5, 4.0)),
        tp=int(chance.choice([2, 4, 8])) if where.gpus == 8 else int(chance.choice([2, 4])),
        layers=int(chance.integers(4, 13)),
        layer_bytes=int(chance.choice([16, 32, 64, 128])) * MB,
        grads_bytes=int(chance.choice([400, 800, 1600])) * MB,
        sequence=bool(chance.random() < 0.4),
        distributed=bool(chance.random() < 0.5),
        overlap=bool(chance.random() < 0.4),
    )
    return _plan(chance, seed, sizes, where, program)


def _weights(chance: Chance, stages: int) -> tuple[float, ...]:
    """Stages of a pipeline are never of one size: embedding and loss are at its ends."""
    return tuple(float(one) for one in 1 + chance.uniform(0, 0.12, stages))


def pipeline(chance: Chance, seed: int, sizes: Sizes = _ANY, chunks: int = 1) -> Plan:
    """Return a training with stages, tensor groups and replicas."""
    where = replace(machine(chance, (4,)), gpus=8 if chance.random() < 0.6 else 4)
    where = replace(where, nics=min(where.nics, where.gpus))
    stages = int(chance.choice([2, 4]))
    program = Pipeline(
        where,
        step_s=float(chance.uniform(2.0, 5.0)),
        stages=stages,
        tp=int(chance.choice([2, 4])),
        chunks=chunks,
        batches=2 * stages,
        layers=int(chance.choice([2, 3])) if chunks == 1 else chunks,
        layer_bytes=int(chance.choice([16, 32, 64])) * MB,
        grads_bytes=int(chance.choice([200, 400, 800])) * MB,
        weights=_weights(chance, stages),
        host_sync=bool(chance.random() < 0.4),
    )
    return _plan(chance, seed, sizes, where, program)


def interleaved(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a pipeline whose stages have two chunks of layers each."""
    return pipeline(chance, seed, sizes, chunks=2)


def experts(chance: Chance, seed: int, sizes: Sizes = _ANY, wide: bool = False) -> Plan:
    """Return a training with experts; `wide`: on all ranks, else within nodes."""
    where = machine(chance, sizes.nodes)
    program = Experts(
        where,
        step_s=float(chance.uniform(1.5, 4.0)),
        width=where.ranks if wide else where.gpus,
        layers=int(chance.integers(4, 10)),
        tokens_bytes=int(chance.choice([1, 2, 4])) * MB,
        dense_bytes=int(chance.choice([200, 400])) * MB,
        uneven=float(chance.uniform(0.02, 0.08)),
    )
    return _plan(chance, seed, sizes, where, program)


def elastic(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a data-parallel training whose communicators are made anew at times."""
    where = machine(chance, sizes.nodes)
    program = Elastic(
        where,
        step_s=float(chance.uniform(0.5, 1.5)),
        buckets=int(chance.integers(5, 12)),
        renew_every=int(chance.integers(150, 400)),
        away_s=float(chance.uniform(1, 6)),
    )
    return _plan(chance, seed, sizes, where, program)


def inference(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return servers that answer requests as they come."""
    where = machine(chance, (1, 2))
    program = Inference(
        where,
        step_s=float(chance.uniform(0.3, 1.5)),
        tp=min(where.gpus, int(chance.choice([2, 4, 8]))),
        idle_s=float(chance.uniform(0.5, 4)),
    )
    return replace(_plan(chance, seed, sizes, where, program), phases=Phases(log_every=0))


def few(chance: Chance, seed: int, ranks: int, nodes: int = 1) -> Plan:
    """Return a training of very few ranks."""
    where = Machine(nodes=nodes, gpus=ranks // nodes)
    program: Program
    if chance.random() < 0.5:
        program = Ddp(where, step_s=float(chance.uniform(0.3, 1.0)), buckets=6,
                      sync_every=int(chance.choice([1, 10])))  # fmt: skip
    else:
        program = Fsdp(where, step_s=float(chance.uniform(0.6, 2.0)), units=8, unit_bytes=200 * MB)
    return _plan(chance, seed, Sizes(wall_s=(600, 1500)), where, program)


def one_node(chance: Chance, seed: int) -> Plan:
    """Return a training within a node."""
    make = (ddp, fsdp, tensor_data)[int(chance.integers(3))]
    return make(chance, seed, Sizes(nodes=(1,), wall_s=(600, 1500)))


def launch_bound(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training of a small model, whose GPUs wait for their hosts."""
    where = machine(chance, sizes.nodes)
    program = Ddp(where, step_s=0.012, buckets=4, bucket_bytes=8 * MB, loader_ms=4.0)
    plan = _plan(chance, seed, replace(sizes, wall_s=(500.0, 700.0)), where, program)
    habits = replace(plan.phases, log_every=100, log_ms=0.5)
    return replace(plan, noise=replace(plan.noise, pause_share=0.0005), phases=habits)


def net_bound(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training that waits for its network for a good part of each step."""
    where = replace(machine(chance, sizes.nodes), nic_gbs=11.5, nic_rate="100 Gb/sec (4X EDR)")
    if chance.random() < 0.5:
        step_s = float(chance.uniform(0.3, 0.6))
        traffic = step_s * where.nic_gbs * where.nics * 1e9 / 2
        program: Program = Ddp(
            where, step_s=step_s, buckets=8,
            bucket_bytes=int(traffic * chance.uniform(0.5, 1.1) / 8),
        )  # fmt: skip
    else:
        step_s = float(chance.uniform(1.0, 2.5))
        gathered = step_s * where.nic_gbs * where.nics * 1e9 / 3
        program = Fsdp(
            where, step_s=step_s, units=8,
            unit_bytes=int(gathered * chance.uniform(0.7, 1.3) / 8),
        )  # fmt: skip
    return _plan(chance, seed, sizes, where, program)


def rails(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training whose replicas meet on rails: GPU k of each node by its adapter k."""
    where = Machine(nodes=int(chance.choice(sizes.nodes)), nic_gbs=23.0,
                    nic_rate="200 Gb/sec (4X HDR)")  # fmt: skip
    step_s = float(chance.uniform(1.5, 3.0))
    grads = int(step_s * chance.uniform(0.12, 0.3) * where.nic_gbs * 1e9 / 2)
    program = TensorData(
        where, step_s=step_s, tp=8, layers=int(chance.integers(4, 9)), layer_bytes=32 * MB,
        grads_bytes=grads, distributed=bool(chance.random() < 0.5),
    )  # fmt: skip
    return _plan(chance, seed, sizes, where, program)


def crossed(chance: Chance, seed: int) -> Plan:
    """Return a pipeline on four nodes whose communicators cross: their sets tell nodes apart."""
    where = Machine(nodes=4, nic_gbs=23.0, nic_rate="200 Gb/sec (4X HDR)")
    step_s = float(chance.uniform(2.0, 4.0))
    program = Pipeline(
        where, step_s=step_s, stages=2, tp=8, batches=4, layers=2, layer_bytes=256 * MB,
        grads_bytes=int(step_s * chance.uniform(0.15, 0.3) * where.nic_gbs * 1e9),
        weights=_weights(chance, 2),
    )  # fmt: skip
    return _plan(chance, seed, Sizes(), where, program)


def nvlink_bound(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training that waits for NVLink for a good part of each step."""
    where = Machine(
        nodes=int(chance.choice(sizes.nodes)), nvlink_gbs=float(chance.choice([220, 360]))
    )
    step_s = float(chance.uniform(1.5, 3.0))
    layers = int(chance.integers(4, 9))
    traffic = step_s * chance.uniform(0.12, 0.25) * where.nvlink_gbs * 1e9 / (8 * layers)
    program = TensorData(
        where, step_s=step_s, tp=int(chance.choice([4, 8])), layers=layers,
        layer_bytes=int(traffic), grads_bytes=400 * MB, sequence=bool(chance.random() < 0.4),
    )  # fmt: skip
    return _plan(chance, seed, sizes, where, program)


_OPERATIONS = (
    ("AllReduce", 2 * MB),
    ("AllGather", MB),
    ("ReduceScatter", MB),
    ("Broadcast", 2 * MB),
    (EXCHANGE, MB),
    ("AllReduce", 64 * MB),
    ("AllReduce", 8),
)


def phased(
    chance: Chance, seed: int, sizes: Sizes = _ANY, meets: str = EACH_PHASE, on_gpu: bool = False
) -> Plan:
    """Return phases of operations between which the hosts meet by another library."""
    where = replace(machine(chance, sizes.nodes), gpus=int(chance.choice([2, 4, 8])))
    where = replace(where, nics=min(where.nics, where.gpus))
    kinds = (("world",), ("world", "node"), ("world", "pair", "node"))[int(chance.integers(3))]
    chosen = chance.choice(len(_OPERATIONS), int(chance.integers(2, 6)), replace=False)
    program = Phased(
        where,
        step_s=float(chance.uniform(0.3, 3.0)),
        kinds=kinds,
        operations=tuple(_OPERATIONS[one] for one in chosen.tolist()),
        meets=meets,
        on_gpu=on_gpu,
        waits=bool(chance.random() < 0.7),
    )
    return _plan(chance, seed, sizes, where, program)


def halo(chance: Chance, seed: int, sizes: Sizes = _ANY, meets: str = NOWHERE) -> Plan:
    """Return a solver whose ranks exchange with their neighbours."""
    where = machine(chance, sizes.nodes)
    program = Halo(
        where,
        step_s=float(chance.uniform(0.05, 1.0)),
        border_bytes=int(chance.choice([1, 4, 16, 64])) * MB,
        norm_every=int(chance.choice([1, 1, 10])),
        loader_ms=0.05,
        meets=meets,
    )
    plan = _plan(chance, seed, replace(sizes, wall_s=(300.0, 900.0)), where, program)
    return replace(plan, phases=Phases(warm_up=plan.phases.warm_up, log_every=100, log_ms=1.0))


def accumulated(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a data-parallel training that adds up gradients of some batches first."""
    found = ddp(chance, seed, sizes)
    program = replace(found.program(), batches=int(chance.choice([4, 8])))  # type: ignore[call-arg]
    return replace(found, program=lambda: replace(program))


def ring_attention(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a training whose ranks have parts of one sequence."""
    del sizes
    where = machine(chance, (1, 2))
    program = RingAttention(
        where,
        step_s=float(chance.uniform(1.0, 3.0)),
        layers=int(chance.choice([2, 4])),
        keys_bytes=int(chance.choice([4, 16, 64])) * MB,
    )
    return _plan(chance, seed, Sizes(wall_s=(600.0, 1200.0)), where, program)


def writing(found: Plan, **words: float) -> Plan:
    """Return reinforcement learning that learns as a plan does; `words`: fields of Rollout."""
    program = Rollout(found.machine, learning=found.program(), **words)  # type: ignore[arg-type]
    quiet = Phases(warm_up=found.phases.warm_up, log_every=0)
    return replace(found, program=lambda: replace(program), phases=quiet)


def rollout(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return reinforcement learning: ranks write answers for a while, and learn from them."""
    return writing(
        (ddp, fsdp)[int(chance.integers(2))](chance, seed, sizes),
        write_s=float(chance.uniform(3, 15)),
        steps_each=int(chance.integers(3, 10)),
        uneven=float(chance.uniform(0.02, 0.3)),
    )


def benchmark(chance: Chance, seed: int, sizes: Sizes = _ANY) -> Plan:
    """Return a run of nccl-tests: some rounds through all sizes."""
    where = machine(chance, sizes.nodes)
    func = str(chance.choice(["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"]))
    program = Benchmark(where, func=func, step_s=0.1)
    if func != "AllReduce":  # of which a rank has a share
        shares = tuple(max(4, one // where.ranks) for one in program.sizes)
        program = replace(program, sizes=shares)
    plan = _plan(chance, seed, sizes, where, program)
    rounds = int(chance.choice([1, 1, 3]))
    quiet = Phases(warm_up=1.0, log_every=0)
    return replace(plan, steps=rounds * len(program.sizes), phases=quiet)


def of_steps(plan: Plan, chance: Chance) -> Plan:
    """Return the same job, but of few steps, as a try or a test has."""
    quiet = Phases(warm_up=plan.phases.warm_up, log_every=0)
    return replace(plan, steps=int(chance.integers(8, 31)), phases=quiet)
