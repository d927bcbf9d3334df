# SPDX-License-Identifier: Apache-2.0
"""What goes wrong. Each fault acts on the world at the begin of a step, at a time of its own."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from tests.simulator.engine import World
from tests.simulator.machine import MS, Ints, S


@dataclass(frozen=True)
class When:
    """The share of the job's steps in which a fault acts: always, a part, or now and then."""

    start: float = 0.0
    end: float = 1.0
    every: int = 1  # only each so many steps
    on_share: float = 1.0  # else it comes and goes, in spells of `spell_s`
    spell_s: float = 40.0

    def now(self, world: World, place: float) -> bool:
        """Tell whether it acts in this step; `place`: share of the job's steps before it."""
        if not self.start <= place < self.end or (world.step + 3) % self.every:
            return False
        if self.on_share >= 1:
            return True
        spell = int(world.clean_begin / S / self.spell_s)
        return bool(np.random.default_rng((world.seed, 20, spell)).random() < self.on_share)


@dataclass(frozen=True)
class Fault(ABC):
    """`size`: how bad it is; the knob that sets the cost."""

    size: float = 0.05
    when: When = When()
    grows: bool = False  # from nothing at the job's begin to twice the size at its end
    late_by: ClassVar[str] = ""  # what makes ranks late: their host or their GPU

    @abstractmethod
    def act(self, world: World) -> None:
        """Change the world for the step that begins."""

    def begin_step(self, world: World, place: float) -> None:
        """Act if it is time."""
        if self.when.now(world, place):
            now = self.with_size(2 * place * self.size) if self.grows else self
            now.act(world)

    def with_size(self, size: float) -> Self:
        """Return the same fault, as bad as this."""
        return replace(self, size=size)


@dataclass(frozen=True)
class SlowGpu(Fault):
    """GPUs compute slower by `size`."""

    late_by = "gpu"
    ranks: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Slow them down."""
        world.gpu[list(self.ranks)] *= 1 + self.size


@dataclass(frozen=True)
class LateHost(Fault):
    """Hosts come late to a step, by `size` seconds; their input, or something in their way."""

    late_by = "host"
    ranks: tuple[int, ...] = (0,)
    spread: float = 0.1

    def act(self, world: World) -> None:
        """Make them late."""
        chance = np.random.default_rng((world.seed, 21, world.step))
        late = self.size * S * np.exp(self.spread * chance.standard_normal(len(self.ranks)))
        world.late[list(self.ranks)] += late


@dataclass(frozen=True)
class Pauses(Fault):
    """Hosts stand still for `size` seconds once in `period_s`, wherever they are in the step."""

    late_by = "host"
    ranks: tuple[int, ...] = (0,)
    period_s: float = 60.0

    def act(self, world: World) -> None:
        """Pause in the step in which a period begins."""
        before = getattr(world, "paused", -1)
        period = int(world.step_begin / S / self.period_s)
        if period == before:
            return
        world.paused = period  # type: ignore[attr-defined]  # its own memory of that
        chance = np.random.default_rng((world.seed, 22, period))
        item = int(chance.integers(1, 12))
        ranks: Ints = np.array(self.ranks, dtype=np.intp)
        world.pause(item, ranks, self.size * S * chance.uniform(0.8, 1.2, len(ranks)))


@dataclass(frozen=True)
class Stalls(Fault):
    """Hosts stand still together for about `size` seconds, at intervals; `most`: how often."""

    late_by = "host"
    ranks: tuple[int, ...] = (0,)
    period_s: float = 60.0
    most: int = 1_000_000
    item: int = 0  # of the step, before which they stand still; 0: anywhere

    def act(self, world: World) -> None:
        """Stall in the step in which a period begins, but not in the job's first."""
        before = getattr(world, "stalled", 0)
        period = int(world.clean_begin / S / self.period_s)
        if period == before or period > self.most:
            return
        world.stalled = period  # type: ignore[attr-defined]  # its own memory of that
        chance = np.random.default_rng((world.seed, 26, period))
        item = self.item or int(chance.integers(1, 12))
        long = self.size * S * float(chance.uniform(0.8, 1.2))
        ranks: Ints = np.array(self.ranks, dtype=np.intp)
        world.pause(item, ranks, long * chance.uniform(0.99, 1.01, len(ranks)))


@dataclass(frozen=True)
class BusyCpus(Fault):
    """The CPUs of nodes are busy with something else: all that hosts do takes longer."""

    late_by = "host"
    nodes: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Slow hosts down by a factor, and let them lose the CPU at times."""
        ranks = np.nonzero(np.isin(world.node, self.nodes))[0]
        world.host_slow[ranks] *= 1 + 20 * self.size
        chance = np.random.default_rng((world.seed, 23, world.step))
        lost = chance.exponential(self.size * S, len(ranks))
        world.late[ranks] += 0.3 * lost
        world.pause(int(chance.integers(1, 12)), ranks, 0.7 * lost)


@dataclass(frozen=True)
class SlowHost(Fault):
    """Hosts take longer by `size` for all that they do: their clock is low, or they are shared."""

    late_by = "host"
    ranks: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Slow them down."""
        world.host_slow[list(self.ranks)] *= 1 + self.size


@dataclass(frozen=True)
class HotExperts(Fault):
    """The experts of some ranks get more than the others' by `size`: no fault, but uneven work."""

    ranks: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Give them more to do."""
        world.experts_busy[list(self.ranks)] *= 1 + self.size


@dataclass(frozen=True)
class LateTogether(Fault):
    """Hosts come late to a step together, by about `size` seconds: they share an input."""

    ranks: tuple[int, ...] = (0,)
    spread: float = 0.1

    def act(self, world: World) -> None:
        """Make them late."""
        chance = np.random.default_rng((world.seed, 27, world.step))
        late = self.size * S * np.exp(self.spread * chance.standard_normal())
        world.late[list(self.ranks)] += late * chance.uniform(0.98, 1.02, len(self.ranks))


@dataclass(frozen=True)
class SlowNic(Fault):
    """Adapters of nodes carry `1 / (1 + size)` of what they should; None: all of the node."""

    nodes: tuple[int, ...] = (0,)
    nic: int | None = None
    ways: tuple[str, ...] = ("out", "in")

    def act(self, world: World) -> None:
        """Slow them down."""
        for node in self.nodes:
            where = slice(None) if self.nic is None else self.nic
            for way in self.ways:
                links = world.links.nic_out if way == "out" else world.links.nic_in
                links[node, where] *= 1 + self.size


@dataclass(frozen=True)
class SlowNvlink(Fault):
    """GPUs' NVLinks carry less."""

    ranks: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Slow them down."""
        world.links.nvlink[list(self.ranks)] *= 1 + self.size


@dataclass(frozen=True)
class SlowNetwork(Fault):
    """All paths are slow; `rough`: more so at one time than at another."""

    rough: float = 0.0

    def act(self, world: World) -> None:
        """Slow them down."""
        chance = np.random.default_rng((world.seed, 24, world.step))
        times = self.size * (np.exp(self.rough * chance.standard_normal()) if self.rough else 1)
        world.links.network *= 1 + float(times)


@dataclass(frozen=True)
class Congestion(Fault):
    """All paths are slow for some seconds in each period, at any moment of a step."""

    period_s: float = 60.0
    length_s: float = 6.0

    def act(self, world: World) -> None:
        """Draw all its times when the job begins."""
        if not getattr(world, "congested", False):
            world.congested = True  # type: ignore[attr-defined]  # its own memory of that
            world.worsen_weather(1 + self.size, self.period_s, self.length_s)


@dataclass(frozen=True)
class SlowStorage(Fault):
    """All ranks wait `size` seconds a step for their input."""

    spread: float = 0.05

    def act(self, world: World) -> None:
        """Make everybody late."""
        chance = np.random.default_rng((world.seed, 25, world.step))
        all_of_them = self.size * S * np.exp(0.3 * chance.standard_normal())
        world.late += all_of_them * np.exp(self.spread * chance.standard_normal(world.n))


@dataclass(frozen=True)
class SlowCopies(Fault):
    """A GPU's PCIe link has fewer lanes: its input takes longer, and its adapter carries less."""

    rank: int = 0

    def act(self, world: World) -> None:
        """Slow both down."""
        world.late[self.rank] += self.size * 0.1 * S
        node, adapter = world.node[self.rank], world.adapter[self.rank]
        world.links.nic_out[node, adapter] *= 1 + self.size
        world.links.nic_in[node, adapter] *= 1 + self.size


@dataclass(frozen=True)
class Logging(Fault):
    """Rank 0 writes its log for `size` seconds: everyday life."""

    ranks: tuple[int, ...] = (0,)

    def act(self, world: World) -> None:
        """Make it late."""
        world.late[list(self.ranks)] += self.size * S


__all__ = [
    "MS", "BusyCpus", "Congestion", "Fault", "HotExperts", "LateHost", "LateTogether", "Logging",
    "Pauses", "SlowCopies", "SlowGpu", "SlowHost", "SlowNetwork", "SlowNic", "SlowNvlink",
    "SlowStorage", "Stalls", "When",
]  # fmt: skip
