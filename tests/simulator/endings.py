# SPDX-License-Identifier: Apache-2.0
"""How jobs end that do not end by themselves: hangs, deaths, and the time limit."""

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tests.simulator.engine import LAUNCH_US, NEVER_NS, World
from tests.simulator.job import FUNCS
from tests.simulator.machine import US, Floats, S
from tests.simulator.programs import Program

if TYPE_CHECKING:
    from tests.simulator.running import Run


class Scene(NamedTuple):
    """Where it begins."""

    world: World
    program: Program


# What ends a process that nobody else ends, as wait(2) tells it; the last one is an exception.
_DEATHS = signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, 1 << 8


@dataclass(frozen=True)
class Ending(ABC):
    """`place`: in which share of the steps it begins. `after_s`: until the job is ended then.

    `state`: Slurm's word. `aborts`: NCCL's watchdog ends the processes by themselves. `spread_s`:
    from the first of them to the last, which is one that stopped calling.
    """

    place: float = 0.6
    after_s: float = 900.0
    state: str = "CANCELLED"
    aborts: bool = False
    spread_s: float = 0.0

    def begin_step(self, world: World, program: Program, step: int, steps: int) -> None:
        """Begin if it is time."""
        if step == int(self.place * steps):
            self.begin(Scene(world, program))

    @abstractmethod
    def begin(self, scene: Scene) -> None:
        """Change the world in the step in which it begins."""

    def finish(self, world: World, done: "Run") -> None:
        """Tell when each process ended, and how."""
        chance = np.random.default_rng((world.seed, 40))
        stuck = _last_sign(world)
        gone = stuck + self.after_s * S + chance.uniform(0, 1.5 + self.spread_s, world.n) * S
        dead = np.isfinite(world.death)
        done.killed = np.where(dead, world.death, gone)
        word = "exited" if self.aborts else "killed"
        done.states = ["killed" if one else word for one in dead]
        # NCCL's watchdog aborts; Slurm, or srun after a failure, sends SIGTERM.
        end = signal.SIGABRT if self.aborts else signal.SIGTERM
        done.statuses = [int(end)] * world.n
        done.wall_ns = float(done.killed.max()) + S
        if self.state in ("CANCELLED", "TIMEOUT"):
            done.slurm_end_ns = stuck + self.after_s * S
        done.stuck_ns = stuck


def _last_sign(world: World) -> float:
    """Return when the last thing happened."""
    last = 0.0
    for row in world.log[-400:]:
        for times in row[6:9]:
            finite = times[np.isfinite(times)]
            last = max(last, float(finite.max()) if len(finite) else 0.0)
    return last


@dataclass(frozen=True)
class StopsCalling(Ending):
    """Ranks call nothing any more: an endless loop, a lock, input that never comes."""

    ranks: tuple[int, ...] = (0,)
    item: int = 12

    def begin(self, scene: Scene) -> None:
        """Let their hosts stand still for good from an item of the step on."""

        def stop(world: World) -> None:
            world.host[list(self.ranks)] = NEVER_NS

        scene.world.tampers[self.item] = stop

    def finish(self, world: World, done: "Run") -> None:
        """End those that stopped as the last."""
        super().finish(world, done)
        if self.spread_s and done.killed is not None:
            done.killed[list(self.ranks)] = done.killed.max()


@dataclass(frozen=True)
class Lost(Ending):
    """All are in a collective of the job's world, and nothing moves: a path is gone."""

    def begin(self, scene: Scene) -> None:
        """Let the next transfer take for ever."""
        number = scene.program.world_group.number

        def cut(world: World) -> None:
            world.links.network = NEVER_NS
            world.links.nvlink[:] = NEVER_NS
            world.links.settle()

        scene.world.before[number] = cut


@dataclass(frozen=True)
class Dies(Ending):
    """A process is killed, or crashes; the others wait until somebody ends them."""

    rank: int = 0
    state: str = "FAILED"
    after_s: float = 40.0

    def begin(self, scene: Scene) -> None:
        """Let it die a little after the step's begin."""
        world = scene.world
        chance = np.random.default_rng((world.seed, 41))
        world.mortal = True
        world.death[self.rank] = world.step_begin + chance.uniform(0.05, 0.6) * S

    def finish(self, world: World, done: "Run") -> None:
        """Say how it died."""
        super().finish(world, done)
        chance = np.random.default_rng((world.seed, 43))
        done.statuses[self.rank] = int(chance.choice(_DEATHS))


@dataclass(frozen=True)
class Mismatched(Ending):
    """A rank calls another operation than the others of its communicator."""

    rank: int = 0
    func: str = "Broadcast"

    def begin(self, scene: Scene) -> None:
        """Call it in place of the first collective that the program's world has."""
        number = scene.program.world_group.number

        def call(world: World) -> None:
            _stuck_call(world, number, self.rank, self.func, 1 << 20)
            world.host[self.rank] = NEVER_NS

        scene.world.before[number] = call


@dataclass(frozen=True)
class Deadlock(Ending):
    """A few ranks call two collectives in another order than all others."""

    ranks: tuple[int, ...] = (0, 1)

    def begin(self, scene: Scene) -> None:
        """Call the world's collective where the others call that of the replicas."""
        first = getattr(scene.program, "data", None)
        assert first is not None, "the program needs communicators of replicas"
        numbers = scene.program.world_group.number, first.number
        nbytes = getattr(scene.program, "grads_bytes", 1 << 20)

        def call(world: World) -> None:
            for rank in self.ranks:
                _stuck_call(world, numbers[0], rank, "AllReduce", 8)
                _stuck_call(world, numbers[1], rank, "AllReduce", nbytes)
                world.host[rank] = NEVER_NS

        scene.world.before[first.number] = call


def _stuck_call(world: World, number: int, rank: int, func: str, nbytes: int) -> None:
    """Let a rank call an operation that never ends; what it calls behind it never begins."""
    ranks = np.array([rank], dtype=np.intp)
    group = world.groups[number]
    call = world.host[ranks].copy()
    ready = np.maximum(group.free[ranks], world.compute_end[ranks])
    begin = np.maximum(ready, call + LAUNCH_US * US)
    end: Floats = np.array([NEVER_NS])
    world.log.append((ranks, number, FUNCS.index(func), nbytes, None, -1, call, begin, end))
    world.host[ranks] = call + 30 * US
    world.compute_end[ranks] = NEVER_NS
    group.free[ranks] = NEVER_NS


@dataclass(frozen=True)
class TimeLimit(Ending):
    """Slurm ends a healthy job; `slow_ranks` take KillWait, as they handle the signal."""

    at_ns: float = 0.0
    kill_wait_s: float = 25.0
    slow_ranks: tuple[int, ...] = ()
    place: float = 0.0
    state: str = "TIMEOUT"

    def begin(self, scene: Scene) -> None:
        """Set when each process dies."""
        world = scene.world
        chance = np.random.default_rng((world.seed, 42))
        world.mortal = True
        world.death = self.at_ns + chance.uniform(0.0, 0.4, world.n) * S
        slow = list(self.slow_ranks)
        world.death[slow] += (self.kill_wait_s + chance.uniform(0, 3, len(slow))) * S

    def finish(self, world: World, done: "Run") -> None:
        """Tell when Slurm began to end it."""
        super().finish(world, done)
        done.slurm_end_ns = self.at_ns
