# SPDX-License-Identifier: Apache-2.0
"""What solvers and benchmarks do: ranks that also meet outside NCCL, and neighbours that exchange.

Their hosts meet by MPI, Gloo or a scheduler of their own (Horovod agrees on each collective before
it is called). Of that NCCL knows nothing.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.simulator.engine import Group, Transfer, World
from tests.simulator.machine import MS, Ints, S
from tests.simulator.programs import MB, Program, across

NOWHERE: Final = "nowhere"
EACH_OPERATION, EACH_PHASE, EACH_STEP = "each operation", "each phase", "each step"
EXCHANGE: Final = "exchange"  # Sends to and Recvs from both neighbours in a ring, in one call

# Iterations that nccl-tests makes of a size before it measures and while it measures.
_WARM_UPS, _MEASURED = 5, 20


def exchange(world: World, group: Group, nbytes: int) -> None:
    """Let each rank of a communicator of all exchange with the ranks before and after it."""
    ranks = world.every
    before, after = (ranks - 1) % world.n, (ranks + 1) % world.n
    transfers = [
        Transfer("Send", after, after, nbytes), Transfer("Recv", before, before, nbytes),
        Transfer("Send", before, before, nbytes), Transfer("Recv", after, after, nbytes),
    ]  # fmt: skip
    posted = world.post(group.whole, ranks, transfers)
    world.complete(posted, [posted.seen_from(one.peers) for one in transfers])


@dataclass
class Phased(Program):
    """A phase for each kind of communicator: some operations, each after some computing.

    A host that is late is late for each operation.
    """

    kinds: tuple[str, ...] = ("world", "node")  # also "pair": the same GPU of all nodes
    operations: tuple[tuple[str, int], ...] = (("AllReduce", 2 * MB), ("AllGather", MB))
    meets: str = EACH_PHASE
    on_gpu: bool = False  # what is computed
    waits: bool = True  # the host, for each operation

    def setup(self, world: World) -> None:
        """Make the communicators of the phases."""
        gpus = self.machine.gpus
        self.world_group = world.make_group("world", [list(range(world.n))])
        self.groups = []
        for kind in self.kinds:
            if kind == "world":
                self.groups.append(self.world_group)
            else:
                size, stride = (gpus, 1) if kind == "node" else (world.n // gpus, gpus)
                self.groups.append(world.make_group(kind, across(self.machine, size, stride)))

    def _work(self, world: World, scale: float) -> None:
        ns = self.step_s * S * scale / len(self.groups) / len(self.operations)
        world.wait_on_host(world.late)
        if self.on_gpu:
            world.compute(ns, kernels=10)
        else:
            world.compute_on_host(ns)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Do all phases; there are no gradients to leave out."""
        del forward_only
        for group in self.groups:
            for func, nbytes in self.operations:
                self._work(world, scale)
                if self.meets == EACH_OPERATION:
                    world.meet()
                if func == EXCHANGE:
                    exchange(world, self.world_group, nbytes)
                else:
                    world.collective(group.whole, func, nbytes)
                if self.waits:
                    world.sync()
            world.sync()
            if self.meets == EACH_PHASE:
                world.meet()
        if self.meets == EACH_STEP:
            world.meet()


@dataclass
class Halo(Program):
    """A solver on a grid: inner cells while borders are exchanged, and a norm now and then."""

    border_bytes: int = 4 * MB
    norm_every: int = 1  # steps
    meets: str = NOWHERE

    def setup(self, world: World) -> None:
        """Make one communicator of all."""
        self.world_group = world.make_group("world", [list(range(world.n))])

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Compute, exchange borders, compute what needs them, and sum the norm."""
        del forward_only
        self.fetch(world)
        world.compute(self.step_s * S * scale * 0.8, kernels=20)
        exchange(world, self.world_group, self.border_bytes)
        world.compute(self.step_s * S * scale * 0.2, kernels=10)
        if world.step % self.norm_every == 0:
            world.collective(self.world_group.whole, "AllReduce", 16)
            world.sync()
        if self.meets == EACH_STEP:
            world.sync()
            world.meet()


@dataclass
class RingAttention(Program):
    """Context parallel: keys go round a ring while they are computed on, then gradients."""

    layers: int = 4
    keys_bytes: int = 16 * MB
    grads_bytes: int = 400 * MB
    width: int = 0  # ranks of a ring; 0: all

    def setup(self, world: World) -> None:
        """Make the communicators of the rings, and one of all for the gradients."""
        self.world_group = world.make_group("default_pg", [list(range(world.n))])
        self.ring = world.make_group("cp", across(self.machine, self.width or world.n, 1))

    def replica_of(self) -> Ints:
        """Ranks of a ring work on the same input."""
        ranks = self.machine.ranks
        return np.arange(ranks, dtype=np.intp) // (self.width or ranks)

    def _layer(self, world: World, ns: float) -> None:
        """Let keys go once round rings of consecutive ranks while they are computed on."""
        width = self.ring.size
        first = world.every // width * width
        after = first + (world.every - first + 1) % width
        before = first + (world.every - first - 1) % width
        transfers = [
            Transfer("Send", after, after - first, self.keys_bytes),
            Transfer("Recv", before, before - first, self.keys_bytes),
        ]
        for _ in range(width - 1):
            posted = world.post(self.ring.whole, world.every, transfers)
            world.compute(ns / width, kernels=4)
            world.complete(posted, [posted.seen_from(one.peers) for one in transfers])
        world.compute(ns / width, kernels=4)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward and backward by layers, then gradients and optimizer."""
        self.fetch(world)
        ns = self.step_s * S * scale / self.layers
        for _ in range(self.layers):
            self._layer(world, ns * 0.32)
        for _ in range(0 if forward_only else self.layers):
            self._layer(world, ns * 0.62)
        if not forward_only:
            world.collective(self.world_group.whole, "AllReduce", self.grads_bytes)
            world.compute(self.step_s * S * 0.06, kernels=20)
        world.sync()


@dataclass
class Rollout(Program):
    """Reinforcement learning: each rank writes answers, then all learn from them.

    `served`: so many ranks write together, with a layer's result summed up again and again.
    """

    learning: Program = None  # type: ignore[assignment]  # always given
    write_s: float = 8.0
    steps_each: int = 6
    uneven: float = 0.15
    served: int = 1
    tokens: int = 40  # that are written together

    def setup(self, world: World) -> None:
        """Make what learning and writing need."""
        self.learning.setup(world)
        self.world_group = self.learning.world_group
        if self.served > 1:
            self.servers = world.make_group("serve", across(self.machine, self.served, 1))

    def _write(self, world: World) -> None:
        chance = np.random.default_rng((world.seed, 16, world.step))
        some = np.exp(self.uneven * chance.standard_normal(world.n // self.served))
        took = self.write_s * S * np.repeat(some, self.served)
        if self.served == 1:
            for _ in range(4):
                world.compute(took / 4, kernels=400)
            return
        for _ in range(self.tokens):
            world.compute(took / self.tokens, kernels=40)
            world.collective(self.servers.whole, "AllReduce", MB)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Write, gather rewards, learn."""
        self._write(world)
        world.collective(self.world_group.whole, "AllGather", MB)
        world.sync()
        for _ in range(1 if forward_only else self.steps_each):
            self.learning.step(world, scale, forward_only)


@dataclass
class Benchmark(Program):
    """nccl-tests: a step is one size, between two meetings of the hosts by MPI."""

    func: str = "AllReduce"
    sizes: tuple[int, ...] = tuple(1 << exponent for exponent in range(3, 31))

    def setup(self, world: World) -> None:
        """Make one communicator of all."""
        self.world_group = world.make_group("", [list(range(world.n))])

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Run a size, twice: out of place and in place."""
        del scale, forward_only
        nbytes = self.sizes[world.step % len(self.sizes)]
        world.wait_on_host(2 * MS * world.host_slow + world.late)  # data for the check
        for times in (_WARM_UPS, _MEASURED, _MEASURED):
            world.meet()
            for _ in range(times):
                world.collective(self.world_group.whole, self.func, nbytes)
            world.sync()
