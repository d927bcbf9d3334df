# SPDX-License-Identifier: Apache-2.0
"""What trainings and inferences do in a step, as PyTorch and Megatron do it."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.simulator.engine import Group, Handle, Part, Posted, Transfer, World
from tests.simulator.machine import MS, US, Floats, Ints, Machine, S

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
    batches: int = 1  # whose gradients are added up before they are summed over the ranks

    def setup(self, world: World) -> None:
        """Make one communicator of all."""
        self.world_group = world.make_group(self.name, [list(range(world.n))])

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward, backward with its buckets, optimizer."""
        for _ in range(0 if forward_only else self.batches - 1):
            self.fetch(world)
            for _ in range(6):
                world.compute(self.step_s * S * scale * 0.93 / 6, kernels=60)
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


@dataclass
class Elastic(Ddp):
    """Data parallel; its communicators end and are made anew now and then."""

    renew_every: int = 200
    away_s: float = 5.0

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Do a step, at times after meeting again."""
        if not forward_only and world.step and world.step % self.renew_every == 0:
            world.sync()
            world.destroy(self.world_group)
            chance = np.random.default_rng((world.seed, 13, world.step))
            world.wait_on_host(self.away_s * S * (1 + 0.1 * chance.random(world.n)))
            self.setup(world)
        super().step(world, scale, forward_only)


@dataclass
class Experts(Program):
    """Layers whose experts are on `width` ranks: what is computed on is sent there and back."""

    width: int = 8
    layers: int = 6
    tokens_bytes: int = 4 * MB  # to each rank
    dense_bytes: int = 400 * MB
    expert_bytes: int = 200 * MB
    uneven: float = 0.06  # of the tokens that experts get
    by_sends: bool = False  # what NCCL had in place of AlltoAll: a Send to and a Recv from each

    def setup(self, world: World) -> None:
        """Make the world, the ranks with all experts, and those with the same."""
        self.world_group = world.make_group("default_pg", [list(range(world.n))])
        self.experts = world.make_group("ep", across(self.machine, self.width, 1))
        rest = world.n // self.width
        self.same: Group | None = None
        if rest > 1:
            self.same = world.make_group("edp", across(self.machine, rest, self.width))

    def _exchange(self, world: World) -> None:
        if not self.by_sends:
            world.collective(self.experts.whole, "AlltoAll", self.tokens_bytes)
            return
        first, place = world.every // self.width * self.width, world.every % self.width
        transfers = []
        for far in range(1, self.width):
            after, before = (place + far) % self.width, (place - far) % self.width
            transfers += [
                Transfer("Send", first + after, after, self.tokens_bytes),
                Transfer("Recv", first + before, before, self.tokens_bytes),
            ]
        posted = world.post(self.experts.whole, world.every, transfers)
        world.complete(posted, [posted.seen_from(one.peers) for one in transfers])

    def _layer(self, world: World, ns: float, uneven: Floats) -> None:
        world.compute(ns * 0.4, kernels=15)
        self._exchange(world)
        world.compute(ns * 0.6 * uneven * world.experts_busy, kernels=10)
        self._exchange(world)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Forward and backward through layers of experts, then gradients."""
        self.fetch(world)
        chance = np.random.default_rng((world.seed, 14, world.step))
        ns = self.step_s * S * scale / self.layers
        uneven = np.exp(self.uneven * chance.standard_normal((2 * self.layers, world.n)))
        for layer in range(self.layers):
            self._layer(world, ns * 0.32, uneven[layer])
        if forward_only:
            world.sync()
            return
        for layer in range(self.layers):
            self._layer(world, ns * 0.62, uneven[self.layers + layer])
        world.collective(self.world_group.whole, "AllReduce", self.dense_bytes)
        if self.same is not None:
            world.collective(self.same.whole, "AllReduce", self.expert_bytes)
        world.compute(self.step_s * S * 0.05, kernels=20)
        world.sync()


@dataclass
class Inference(Program):
    """Servers of `tp` GPUs that answer requests as they come."""

    tp: int = 4
    layers: int = 4
    tokens: int = 6
    idle_s: float = 1.5  # until the next batch of requests

    def setup(self, world: World) -> None:
        """Make a communicator for each server."""
        self.tensor = world.make_group("tp", across(self.machine, self.tp, 1))
        self.world_group = self.tensor

    def replica_of(self) -> Ints:
        """A server's GPUs work on the same requests."""
        return np.arange(self.machine.ranks, dtype=np.intp) // self.tp

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Wait for requests, read them, and answer token by token."""
        chance = np.random.default_rng((world.seed, 15, world.step))
        servers = world.n // self.tp
        idle = chance.exponential(self.idle_s * S, servers)
        world.wait_on_host(np.repeat(idle, self.tp) + world.late)
        world.wait_on_host(chance.exponential(60 * US, world.n) * world.host_slow)
        batch = np.repeat(chance.integers(1, 33, servers), self.tp)
        read = self.step_s * S * scale * 0.5 * batch / 16 / self.layers
        for _ in range(self.layers):
            world.compute(read, kernels=8)
            world.collective(self.tensor.whole, "AllReduce", 8 * MB)
        told = self.step_s * S * 0.5 / self.layers / self.tokens * (0.8 + batch / 80)
        for _ in range(0 if forward_only else self.tokens * self.layers):
            world.compute(told, kernels=8)
            world.collective(self.tensor.whole, "AllReduce", 256 << 10)
        world.sync()


FORWARD, BACKWARD, EXCHANGE = "forward", "backward", "exchange"
# What a stage does: its kind, the chunk of layers; of an exchange who sends what to whom.
Deed = tuple[str, int, tuple[tuple[str, int, str], ...]]


def _exchange(*transfers: tuple[str, int, str] | None) -> list[Deed]:
    real = tuple(one for one in transfers if one is not None)
    return [(EXCHANGE, 0, real)] if real else []


def one_forward_one_backward(stages: int, stage: int, batches: int) -> list[Deed]:
    """Return what a stage does in a step of Megatron's plain pipeline."""
    first, last = stage == 0, stage == stages - 1

    def send(what: str) -> tuple[str, int, str] | None:
        if what == FORWARD:
            return None if last else ("Send", stage + 1, what)
        return None if first else ("Send", stage - 1, what)

    def receive(what: str) -> tuple[str, int, str] | None:
        if what == FORWARD:
            return None if first else ("Recv", stage - 1, what)
        return None if last else ("Recv", stage + 1, what)

    deeds: list[Deed] = []
    warm = min(stages - stage - 1, batches)
    for _ in range(warm):
        deeds += _exchange(receive(FORWARD))
        deeds.append((FORWARD, 0, ()))
        deeds += _exchange(send(FORWARD))
    steady = batches - warm
    if steady:
        deeds += _exchange(receive(FORWARD))
    for at in range(steady):
        deeds.append((FORWARD, 0, ()))
        deeds += _exchange(send(FORWARD), receive(BACKWARD))
        deeds.append((BACKWARD, 0, ()))
        more = receive(FORWARD) if at < steady - 1 else None
        deeds += _exchange(send(BACKWARD), more)
    for _ in range(warm):
        deeds += _exchange(receive(BACKWARD))
        deeds.append((BACKWARD, 0, ()))
        deeds += _exchange(send(BACKWARD))
    return deeds


class _Interleaved:
    """Megatron's schedule of a stage that has several chunks of layers."""

    def __init__(self, stages: int, stage: int, batches: int, chunks: int) -> None:
        self.stages, self.stage, self.chunks = stages, stage, chunks
        self.first, self.last = stage == 0, stage == stages - 1
        self.before, self.after = (stage - 1) % stages, (stage + 1) % stages
        self.total = batches * chunks
        self.warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, self.total)

    def chunk(self, at: int, forward: bool) -> int:
        """Return the chunk of the stage's forward or backward number `at`."""
        found = at % (self.stages * self.chunks) // self.stages
        return found if forward else self.chunks - 1 - found

    def _needs_forward(self, at: int) -> bool:
        """Tell whether forward number `at` of this stage begins with something received."""
        return at < self.total and not (self.first and self.chunk(at, True) == 0)

    def _next_forward_comes(self, at: int) -> bool:
        """Tell whether what the stage before does as its forward `at` comes here."""
        if not self.first:
            return self._needs_forward(at + 1)
        ahead = at - (self.stages - 1)
        return ahead >= 0 and self.chunk(ahead, True) != self.chunks - 1

    def _next_backward_comes(self, at: int) -> bool:
        if not self.last:
            return True
        ahead = at - (self.stages - 1)
        return ahead >= 0 and self.chunk(ahead, False) != 0

    def _sends_forward(self, at: int) -> bool:
        return not (self.last and self.chunk(at, True) == self.chunks - 1)

    def _sends_backward(self, at: int) -> bool:
        return not (self.first and self.chunk(at, False) == 0)

    def _move(self, sent: Sequence[str], received: Sequence[str]) -> list[Deed]:
        to = {FORWARD: self.after, BACKWARD: self.before}
        come = {FORWARD: self.before, BACKWARD: self.after}
        return _exchange(
            *(("Send", to[what], what) for what in sent),
            *(("Recv", come[what], what) for what in received),
        )

    def deeds(self) -> list[Deed]:
        """Return all that the stage does in a step."""
        found: list[Deed] = []
        if not self.first:
            found += self._move((), (FORWARD,))
        rest = self.total - self.warm
        for at in range(self.warm):
            found.append((FORWARD, self.chunk(at, True), ()))
            sent = [FORWARD] if self._sends_forward(at) else []
            come = [FORWARD] if self._needs_forward(at + 1) else []
            if at == self.warm - 1 and rest and not self.last:
                come.append(BACKWARD)
            found += self._move(sent, come)
        for at in range(rest):
            found += self._steady(at, at == rest - 1)
        if not rest and not self.last:
            found += self._move((), (BACKWARD,))
        for at in range(rest, self.total):
            found.append((BACKWARD, self.chunk(at, False), ()))
            sent = [BACKWARD] if self._sends_backward(at) else []
            more = at < self.total - 1
            last_chunk = self.last and self.chunk(at + 1, False) == self.chunks - 1
            found += self._move(sent, [BACKWARD] if more and not last_chunk else [])
        return found

    def _steady(self, at: int, done: bool) -> list[Deed]:
        ahead = at + self.warm
        sent = [FORWARD] if self._sends_forward(ahead) else []
        sent += [BACKWARD] if self._sends_backward(at) else []
        come = [] if done or not self._next_forward_comes(ahead) else [FORWARD]
        come += [BACKWARD] if self._next_backward_comes(at) else []
        return [
            (FORWARD, self.chunk(ahead, True), ()),
            (BACKWARD, self.chunk(at, False), ()),
            *self._move(sent, come),
        ]


@dataclass
class Pipeline(Program):
    """Megatron: stages of layers, each split over `tp` ranks; replicas over the rest."""

    stages: int = 4
    tp: int = 2
    chunks: int = 1  # more than one: interleaved
    batches: int = 8
    layers: int = 2  # of a stage
    layer_bytes: int = 32 * MB
    grads_bytes: int = 400 * MB
    weights: tuple[float, ...] = ()  # how much longer each stage computes
    host_sync: bool = False  # the host waits for each exchange, as older releases do

    def setup(self, world: World) -> None:
        """Make all communicators."""
        n, inner = world.n, world.n // self.stages
        self.world_group = world.make_group("default_pg", [list(range(n))])
        self.pipes = world.make_group("pp", across(self.machine, self.stages, inner))
        self.tensor = None
        if self.tp > 1:
            self.tensor = world.make_group("tp", across(self.machine, self.tp, 1))
        replicas = inner // self.tp
        self.data = None
        if replicas > 1:
            self.data = world.make_group("dp", across(self.machine, replicas, self.tp))
        ends = [[rank, rank + n - inner] for rank in range(inner)]
        self.embedding = world.make_group("embd", ends)
        self.grid = np.arange(n, dtype=np.intp).reshape(self.stages, inner)
        if self.tensor is not None:
            self.tensor_of = [self.tensor.having(row) for row in self.grid]
        self.plan = [self._deeds(stage) for stage in range(self.stages)]

    def _deeds(self, stage: int) -> list[Deed]:
        if self.chunks == 1:
            return one_forward_one_backward(self.stages, stage, self.batches)
        return _Interleaved(self.stages, stage, self.batches, self.chunks).deeds()

    def replica_of(self) -> Ints:
        """Ranks of one pipeline and tensor group work on the same input."""
        rank = np.arange(self.machine.ranks, dtype=np.intp)
        return rank % (self.machine.ranks // self.stages) // self.tp

    def _work(self, world: World, stage: int, ns: float) -> None:
        weight = self.weights[stage] if self.weights else 1.0
        layers = max(1, self.layers // self.chunks)
        for _ in range(layers):
            world.compute(ns * weight / layers, self.grid[stage], kernels=15)
            if self.tensor is not None:
                world.collective(self.tensor_of[stage], "AllReduce", self.layer_bytes)

    def step(self, world: World, scale: float, forward_only: bool = False) -> None:
        """Run all micro-batches through the pipeline, then gradients and optimizer."""
        self.fetch(world)
        if forward_only:
            for stage in range(self.stages):
                self._work(world, stage, self.step_s * S * 0.3 / self.batches)
            world.sync()
            return
        ns = self.step_s * S * scale / self.batches / self.chunks
        _Schedule(self, world, ns).run()
        if self.data is not None:
            world.collective(self.data.whole, "AllReduce", self.grads_bytes)
        world.collective(self.embedding.whole, "AllReduce", 64 * MB)
        world.collective(self.world_group.whole, "AllReduce", 8)
        world.compute(self.step_s * S * 0.04, kernels=20)
        world.sync()


class _Schedule:
    """Carries the stages of a pipeline through a step, each in its own order."""

    def __init__(self, program: Pipeline, world: World, ns: float) -> None:
        self.program, self.world, self.ns = program, world, ns
        self.at = [0] * program.stages
        self.posted: list[Posted | None] = [None] * program.stages
        self.wanted: list[list[tuple[tuple[int, int, str, str], int]]] = [
            [] for _ in range(program.stages)
        ]
        self.calls: dict[tuple[int, int, str, str], list[Posted]] = {}

    def run(self) -> None:
        """Go on until all are done."""
        while any(at < len(plan) for at, plan in zip(self.at, self.program.plan, strict=True)):
            went = [self._advance(stage) for stage in range(self.program.stages)]
            if not any(went):
                raise AssertionError("the schedule of the pipeline does not fit together")

    def _advance(self, stage: int) -> bool:
        """Do all that this stage can do by now; tell whether there was anything."""
        went = False
        plan = self.program.plan[stage]
        while self.at[stage] < len(plan):
            kind, _, transfers = plan[self.at[stage]]
            if kind == EXCHANGE:
                went = self._post(stage, transfers) or went
                if not self._complete(stage):
                    return went
            else:
                share = 0.32 if kind == FORWARD else 0.64
                self.program._work(self.world, stage, self.ns * share)
            self.at[stage] += 1
            went = True
        return went

    def _post(self, stage: int, transfers: tuple[tuple[str, int, str], ...]) -> bool:
        if self.posted[stage] is not None:
            return False
        grid, nbytes = self.program.grid, self.program.layer_bytes
        sends = [Transfer(func, grid[peer], peer, nbytes) for func, peer, _ in transfers]
        posted = self.world.post(self.program.pipes.whole, grid[stage], sends)
        self.posted[stage], self.wanted[stage] = posted, []
        for func, peer, what in transfers:
            pair = (stage, peer) if func == "Send" else (peer, stage)
            mine, other = (*pair, what, func), (*pair, what, "Recv" if func == "Send" else "Send")
            known = self.calls.setdefault(mine, [])
            known.append(posted)
            self.wanted[stage].append((other, len(known) - 1))
        return True

    def _complete(self, stage: int) -> bool:
        posted = self.posted[stage]
        assert posted is not None
        peers = []
        for key, number in self.wanted[stage]:
            known = self.calls.get(key, [])
            if len(known) <= number:
                return False
            peers.append(known[number])
        self.world.complete(posted, peers)
        if self.program.host_sync:
            self.world.sync(posted.ranks)
        self.posted[stage] = None
        return True
