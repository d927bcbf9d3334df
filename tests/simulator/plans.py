# SPDX-License-Identifier: Apache-2.0
"""Jobs as people run them: sizes, speeds and habits drawn by a seed."""

from dataclasses import dataclass, replace

import numpy as np

from tests.simulator.engine import Noise
from tests.simulator.machine import Machine
from tests.simulator.programs import MB, Ddp, Fsdp, Program, TensorData
from tests.simulator.running import Phases, Plan

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
    )


def phases(chance: Chance) -> Phases:
    """Return habits of a training."""
    return Phases(
        warm_up=float(chance.uniform(1.5, 6)),
        evaluate_every=int(chance.choice([0, 0, 100])),
        save_every=int(chance.choice([0, 150, 250])),
        save_s=float(chance.uniform(2, 9)),
        save_all=bool(chance.random() < 0.5),
        log_ms=float(chance.uniform(0.2, 3)),
        log_every=int(chance.choice([1, 10])),
    )


def _plan(chance: Chance, seed: int, sizes: Sizes, where: Machine, program: Program) -> Plan:
    return Plan(
        where, lambda: replace(program), seed, float(chance.uniform(*sizes.wall_s)),
        noise=noise(chance), phases=phases(chance),
    )  # fmt: skip


def ddp(chance: Chance, seed: int, sizes: Sizes = Sizes()) -> Plan:
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


def fsdp(chance: Chance, seed: int, sizes: Sizes = Sizes()) -> Plan:
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


def hsdp(chance: Chance, seed: int, sizes: Sizes = Sizes()) -> Plan:
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


def tensor_data(chance: Chance, seed: int, sizes: Sizes = Sizes()) -> Plan:
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
