# SPDX-License-Identifier: Apache-2.0
"""What trainings and inferences do in a step, as PyTorch and Megatron do it."""

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

import numpy as np

from tests.simulator.engine import Group, Handle, Part, World
from tests.simulator.machine import MS, Floats, Ints, Machine, S

MB = 1 << 20


@dataclass
class Program(ABC):
    """What the ranks do. `step_s`: about how long a step computes."""

    machine: Machine
    step_s: float = 1.0
    loader_ms: float = 2.0  # that a host waits for its input, typically

    @abstractmethod
    def setup(self, world: World) -> None:
        """Make the communicators."""

    @abstractmethod
    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Do a step; `scale`: of the work, which changes over a job."""

    def replica_of(self) -> Ints:
        """Return which share of the batch each rank works on."""
        return np.arange(self.machine.ranks, dtype=np.intp)

    def everybody(self) -> Part:
        """Return the communicator in which barriers are called."""
        return self.world_group.whole

    world_group: Group = None  # type: ignore[assignment]  # of setup

    def fetch(self, world: World) -> None:
        """Let the hosts wait for their input."""
        chance = np.random.default_rng((world.seed, 8, world.step))
        waited = self.loader_ms * MS * np.exp(0.4 * chance.standard_normal(world.n))
        world.wait_on_host(waited * world.host_slow + world.late)


def across(machine: Machine, size: int, stride: int) -> list[list[int]]:
    """Return groups of `size` ranks that are `stride` apart, of all ranks."""
    found = []
    for block in range(0, machine.ranks, size * stride):
        for first in range(block, block + stride):
            found.append(list(range(first, first + size * stride, stride)))
    return found


@dataclass
class Ddp(Program):
    """Replicas whose gradients are summed in buckets while backward goes on."""

    buckets: int = 12
    bucket_bytes: int = 100 * MB
    sync_every: int = 1  # steps between two looks at the loss
    name: str = "default_pg"

    def setup(self, world: World) -> None:
        """Make one communicator of all."""
        self.world_group = world.make_group(self.name, [list(range(world.n))])

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward, backward with its buckets, optimizer."""
        self.fetch(world)
        pieces = self.buckets
        forward = self.step_s * S * scale * 0.31
        for _ in range(max(2, pieces // 3)):
            world.compute(forward / max(2, pieces // 3), kernels=30)
        if forward_only:
            world.sync()
            return
        waiting: list[Handle] = []
        for bucket in range(pieces):
            world.compute(self.step_s * S * scale * 0.62 / pieces, kernels=40)
            share = 0.4 if bucket == 0 else 1.0
            nbytes = int(self.bucket_bytes * share)
            waiting.append(
                world.collective(self.world_group.whole, "AllReduce", nbytes, wait=False)
            )
        for handle in waiting:
            world.wait(handle)
        world.compute(self.step_s * S * 0.06, kernels=20)
        if world.step % self.sync_every == 0:
            world.sync()


@dataclass
class Fsdp(Program):
    """Parameters gathered before use and gradients scattered; `shard` ranks have them all."""

    units: int = 10
    unit_bytes: int = 400 * MB  # of a unit's parameters
    shard: int = 0  # 0: all ranks
    ahead: int = 2  # units gathered before they are needed, at most
    sync_every: int = 1

    def setup(self, world: World) -> None:
        """Make shards, and replicas of shards where there are several."""
        size = self.shard or world.n
        self.world_group = world.make_group("default_pg", [list(range(world.n))])
        if size == world.n:
            self.shards = self.world_group
            self.replicas: Group | None = None
        else:
            self.shards = world.make_group("fsdp_shard", across(self.machine, size, 1))
            self.replicas = world.make_group(
                "fsdp_replicate", across(self.machine, world.n // size, size)
            )

    def _gather(self, world: World) -> Handle:
        share = self.unit_bytes // self.shards.size
        return world.collective(self.shards.whole, "AllGather", share, after=False, wait=False)

    def _pass(self, world: World, ns: float, backward: bool) -> None:
        gathered: deque[Handle] = deque()
        done: deque[Floats] = deque()
        reduced: list[Handle] = []
        asked = 0
        for unit in range(self.units):
            while asked < min(self.units, unit + self.ahead):
                if len(done) >= self.ahead:  # memory for so many only
                    world.host[:] = np.maximum(world.host, done.popleft())
                gathered.append(self._gather(world))
                asked += 1
            world.wait(gathered.popleft())
            world.compute(ns / self.units, kernels=30)
            done.append(world.compute_end.copy())
            if backward:
                reduced.append(self._scatter(world))
        for handle in reduced:
            world.wait(handle)

    def _scatter(self, world: World) -> Handle:
        share = self.unit_bytes // self.shards.size
        handle = world.collective(self.shards.whole, "ReduceScatter", share, wait=False)
        if self.replicas is None:
            return handle
        replicas = self.replicas
        held = world.compute_end.copy()
        world.wait(handle)  # a stream of its own waits for it, not computing
        after = world.collective(replicas.whole, "AllReduce", share, wait=False)
        world.compute_end[:] = held
        return after

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward, backward, optimizer on the shard, and the norm of the gradients."""
        self.fetch(world)
        self._pass(world, self.step_s * S * scale * 0.32, backward=False)
        if forward_only:
            world.sync()
            return
        self._pass(world, self.step_s * S * scale * 0.64, backward=True)
        world.collective(self.shards.whole, "AllReduce", 4)
        world.compute(self.step_s * S * 0.04, kernels=10)
        if world.step % self.sync_every == 0:
            world.sync()


@dataclass
class TensorData(Program):
    """Megatron: layers split over `tp` ranks, replicas over the rest."""

    tp: int = 4
    layers: int = 8
    layer_bytes: int = 64 * MB  # of activations
    grads_bytes: int = 800 * MB  # of a rank's gradients
    sequence: bool = False  # AllGather and ReduceScatter in place of AllReduce
    distributed: bool = False  # optimizer: its state is split over the replicas
    overlap: bool = False  # gradients are summed in buckets meanwhile

    def setup(self, world: World) -> None:
        """Make the world, tensor and data communicators."""
        self.world_group = world.make_group("default_pg", [list(range(world.n))])
        self.tensor = world.make_group("tp", across(self.machine, self.tp, 1))
        self.data = world.make_group("dp", across(self.machine, world.n // self.tp, self.tp))

    def replica_of(self) -> Ints:
        """Ranks of a tensor group work on the same input."""
        return np.arange(self.machine.ranks, dtype=np.intp) // self.tp

    def _half_layer(self, world: World, ns: float, nbytes: int) -> None:
        tensor = self.tensor.whole
        if self.sequence:
            world.collective(tensor, "AllGather", nbytes // self.tp)
            world.compute(ns, kernels=15)
            world.collective(tensor, "ReduceScatter", nbytes // self.tp)
        else:
            world.compute(ns, kernels=15)
            world.collective(tensor, "AllReduce", nbytes)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward and backward by layers, then gradients and optimizer."""
        self.fetch(world)
        nbytes = int(self.layer_bytes * scale)
        half = self.step_s * S * scale / self.layers / 2
        for _ in range(2 * self.layers):
            self._half_layer(world, half * 0.32, nbytes)
        if forward_only:
            world.sync()
            return
        waiting: list[Handle] = []
        buckets = max(1, self.layers // 4)
        for half_layer in range(2 * self.layers):
            self._half_layer(world, half * 0.62, nbytes)
            if self.overlap and half_layer % 8 == 7:
                waiting.append(self._reduce(world, buckets, wait=False))
        for handle in waiting:
            world.wait(handle)
        if not self.overlap:
            self._reduce(world, 1, wait=True)
        world.collective(self.world_group.whole, "AllReduce", 8)
        world.compute(self.step_s * S * 0.05, kernels=20)
        if self.distributed:
            world.collective(self.data.whole, "AllGather", self.grads_bytes // self.data.size)
        world.sync()

    def _reduce(self, world: World, shares: int, wait: bool) -> Handle:
        nbytes = self.grads_bytes // shares
        if self.distributed:
            share = nbytes // self.data.size
            return world.collective(self.data.whole, "ReduceScatter", share, wait=wait)
        return world.collective(self.data.whole, "AllReduce", nbytes, wait=wait)
