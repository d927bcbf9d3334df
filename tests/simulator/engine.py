# SPDX-License-Identifier: Apache-2.0
"""Hosts, streams and kernels of all ranks of a job, in true time.

Every rank has a host thread that issues work and may run ahead of its GPU, a stream for computing,
and a stream for each communicator. A kernel begins when its stream is free, what it waits for has
ended, and it has been launched. A collective ends on all its members shortly after the latest of
them began and the transfer was done. Times are ns as floats; infinity: it never comes to that.

All ranks are advanced together, an item of the program at a time (max-plus arithmetic), so the
order of the calls below is the order of the program. Random numbers depend on seed, step, item and
rank alone: a fault does not change what chance does to everybody else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.simulator.job import FUNCS
from tests.simulator.machine import MS, US, Floats, Ints, Links, Machine, Paths

NEVER_NS = np.inf
LAUNCH_US = 7.0  # from a launch to the earliest begin of its kernel
GAP_US = 2.5  # between two kernels of a stream, or an event and what waits for it
CALL_US = 22.0  # of the host, for a collective
KERNEL_US = 4.5  # of the host, for a kernel
BUFFER_BYTES = 4 << 20  # of a channel between two neighbours (NCCL_BUFFSIZE)
MEETING_US = 40.0  # of hosts, by MPI or Gloo
EAGER_BYTES = 64 << 10
_ROWS = 128


@dataclass(frozen=True)
class Noise:
    """Everyday chance."""

    compute: float = 0.006  # of a piece of computing, log-normal
    tail_ms: float = 0.4  # what one piece in two thousand takes longer, about
    gpus: float = 0.003  # GPUs of one kind differ
    host: float = 0.05  # of what the host takes
    transfer: float = 0.015
    end_us: float = 1.5  # ranks of a collective end apart
    pause_share: float = 0.002  # steps with a pause of the host (garbage, the system), per rank
    pause_ms: float = 40.0
    weather: float = 0.02  # slow changes of the network
    bursts_per_hour: float = 6.0  # of other people's traffic
    burst_times: float = 1.5  # at most: how much longer transfers take in them
    batches: float = 0.0  # batches differ, per replica and step
    batch_tail: float = 0.0  # the same, with a tail: of the logarithm
    crowding: float = 0.0  # computing is slower while a communicator's kernel runs beside it


@dataclass(frozen=True)
class Handle:
    """An operation that somebody may wait for."""

    ranks: Ints
    end: Floats


@dataclass(frozen=True)
class Transfer:
    """A Send or Recv that several ranks do alike, each with its peer."""

    func: str
    peers: Ints
    place: int | Ints  # the peers' rank in the communicator
    nbytes: int


@dataclass(frozen=True)
class Posted:
    """A group of Sends and Recvs that was called."""

    group: "Group"
    ranks: Ints
    transfers: tuple[Transfer, ...]
    call: Floats
    begin: Floats
    z: Floats
    number: Any

    def seen_from(self, peers: Ints) -> "Posted":
        """Return what it is to ranks that have these ranks of it as their peers."""
        return replace(self, begin=self.begin[peers], z=self.z[peers])


@dataclass
class Part:
    """Some communicators of a kind, which operate at the same place of the program."""

    group: "Group"
    rows: Ints  # which communicators
    ranks: Ints = field(init=False)  # of their members, one after the other
    paths: Paths = field(init=False)
    shape: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Look up members and paths."""
        members = self.group.members[self.rows]
        self.ranks, self.shape = members.ravel(), members.shape
        self.paths = Paths(self.group.machine, members, self.group.rate)


class Group:
    """The communicators of one kind, as `dp`: every rank is in at most one of them."""

    def __init__(
        self, machine: Machine, number: int, name: str, members: Sequence[Sequence[int]],
        ids: Sequence[int], rate: float = 1.0, words: tuple[str, str] = ("RING", "SIMPLE"),
    ) -> None:  # fmt: skip
        """`rate`: by how much faster than plain rings; `words`: algorithm and protocol."""
        self.machine, self.number, self.name, self.rate = machine, number, name, rate
        self.words = words
        self.members: Ints = np.array(members, dtype=np.intp)
        self.ids = list(ids)
        self.size = self.members.shape[1]
        self.free = np.zeros(machine.ranks)  # when each rank's stream of it is free
        self.created = np.full(machine.ranks, -1.0)
        self.destroyed = np.full(machine.ranks, -1.0)
        self.whole = Part(self, np.arange(len(self.members)))
        self.channels = 8 if self.whole.paths.within else 16
        self.used = False

    def only(self, rows: Sequence[int]) -> Part:
        """Return some of its communicators."""
        return Part(self, np.array(rows, dtype=np.intp))

    def having(self, ranks: Ints) -> Part:
        """Return those communicators that some of the ranks are in."""
        return self.only(np.nonzero(np.isin(self.members, ranks).any(axis=1))[0].tolist())


class World:
    """All ranks of a training, and what they did."""

    def __init__(self, machine: Machine, noise: Noise, seed: int) -> None:
        """Begin at 0 with everybody idle."""
        self.machine, self.noise, self.seed = machine, noise, seed
        n = machine.ranks
        self.n = n
        self.every: Ints = np.arange(n, dtype=np.intp)
        self.node: Ints = self.every // machine.gpus
        nics = [machine.nic_of(int(local)) for local in self.every % machine.gpus]
        self.adapter: Ints = np.array(nics, dtype=np.intp)
        self.links = Links(machine)
        self.host, self.compute_end = np.zeros(n), np.zeros(n)
        rng = np.random.default_rng((seed, 1))
        self.gpu_usual = np.exp(np.clip(rng.normal(0, noise.gpus, n), -0.005, 0.005))
        self.gpu = self.gpu_usual.copy()  # times slower than the model, at this moment
        self.host_slow = np.ones(n)
        self.late = np.zeros(n)  # what a step's input keeps each host waiting, ns
        self.experts_busy = np.ones(n)  # how many times more than usual each rank's experts get
        self.death = np.full(n, NEVER_NS)
        self.mortal = False
        self.groups: list[Group] = []
        self.log: list[tuple[Any, ...]] = []
        self.transfers: dict[tuple[int, int, int], list[tuple[Ints, Floats]]] = {}
        self.group_calls = np.zeros(n, dtype=np.int64)
        self.step = -1
        self.step_begin = 0.0
        self.clean_begin = 0.0  # when this step begins in the job without a fault
        self.batch = np.ones(n)
        self.pauses: dict[int, tuple[Ints, Floats]] = {}
        self.tampers: dict[int, Callable[[World], None]] = {}  # before items of this step
        self.before: dict[int, Callable[[World], None]] = {}  # before the next call in a group
        self._item = 0
        self._rng = np.random.default_rng((seed, 2))
        self._rows: Floats = np.zeros((0, n))
        self._weather = _weather(noise, seed)

    # What chance does.

    def begin_step(self, step: int) -> None:
        """Draw anew; everything random until the next call is of this step."""
        self.step, self._item = step, 0
        self._rng = np.random.default_rng((self.seed, 3, step))
        self._rows = self._rng.standard_normal((_ROWS, self.n))
        self.links.reset()
        self.gpu = self.gpu_usual.copy()
        self.host_slow = np.ones(self.n)
        self.late = np.zeros(self.n)
        self.experts_busy = np.ones(self.n)
        self.step_begin = max(float(self.host.max()), float(self.compute_end.max()))
        self.pauses = self._draw_pauses()
        self.tampers = {}

    def _draw_pauses(self) -> dict[int, tuple[Ints, Floats]]:
        chance = np.random.default_rng((self.seed, 4, self.step))
        hit = np.nonzero(chance.random(self.n) < self.noise.pause_share)[0]
        long = self.noise.pause_ms * MS * np.exp(chance.normal(0, 0.7, self.n))
        at = chance.integers(0, 40, self.n)
        return {
            int(item): (hit[at[hit] == item], long[hit[at[hit] == item]])
            for item in np.unique(at[hit])
        }

    def pause(self, item: int, ranks: Ints, ns: Floats) -> None:
        """Let hosts stand still before an item of this step, beside what chance does."""
        if item in self.pauses:
            known, before = self.pauses[item]
            ranks, ns = np.concatenate([known, ranks]), np.concatenate([before, ns])
        self.pauses[item] = ranks, ns

    def _row(self) -> Floats:
        at = self._item
        self._item += 1
        if at in self.pauses:
            ranks, ns = self.pauses[at]
            np.add.at(self.host, ranks, ns)
        if at in self.tampers:
            self.tampers[at](self)
        if at >= len(self._rows):
            more = self._rng.standard_normal((_ROWS, self.n))
            self._rows = np.concatenate([self._rows, more])
        row: Floats = self._rows[at]
        return row

    def weather(self, now: float) -> float:
        """Return how many times slower the network is than at its best, at this moment."""
        at = self.clean_begin + now - self.step_begin
        if not np.isfinite(at):
            return 1.0
        return float(self._weather[int(at / (0.25 * 1e9)) % len(self._weather)])

    def worsen_weather(self, times: float, period_s: float, length_s: float) -> None:
        """Make the network this many times slower for some seconds in each period."""
        chance = np.random.default_rng((self.seed, 27))
        weather = self._weather.copy()
        period, length = round(4 * period_s), max(round(4 * length_s), 1)
        for start in range(0, len(weather), period):
            at = start + int(chance.integers(max(period - length, 1)))
            weather[at : at + length] *= times
        self._weather = weather

    # What ranks do.

    def make_group(
        self, name: str, members: Sequence[Sequence[int]], rate: float = 1.0,
        words: tuple[str, str] = ("RING", "SIMPLE"),
    ) -> Group:  # fmt: skip
        """Return communicators, to be created when they are first used."""
        chance = np.random.default_rng((self.seed, 5, len(self.groups)))
        ids = [int(one) for one in chance.integers(1 << 32, 1 << 62, len(members))]
        group = Group(self.machine, len(self.groups), name, members, ids, rate, words)
        self.groups.append(group)
        return group

    def _create(self, group: Group) -> None:
        """Let all members meet, on their hosts, to make the communicators."""
        group.used = True
        chance = np.random.default_rng((self.seed, 6, group.number))
        took = chance.uniform(0.15, 0.6) + 0.002 * group.size
        ranks = group.members.ravel()
        met = self.host[ranks].reshape(group.members.shape).max(axis=1)
        group.created[ranks] = np.repeat(met, group.size)
        self.host[ranks] = np.repeat(met + took * 1e9, group.size)
        group.free[ranks] = self.host[ranks]

    def destroy(self, group: Group) -> None:
        """End communicators when everything in them has ended."""
        ranks = group.members.ravel()
        self.host[ranks] = np.maximum(self.host[ranks], group.free[ranks]) + 30 * MS
        group.destroyed[ranks] = self.host[ranks]

    def wait_on_host(self, ns: float | Floats, ranks: Ints | None = None) -> None:
        """Let hosts do something else for some time."""
        where = self.every if ranks is None else ranks
        self.host[where] += ns

    def compute_on_host(self, ns: float) -> None:
        """Let all hosts compute something themselves."""
        noise = np.exp(self.noise.compute * self._row())
        self.host += ns * self.batch * self.host_slow * noise

    def sync(self, ranks: Ints | None = None) -> None:
        """Let hosts wait for what they gave their computing stream."""
        where = self.every if ranks is None else ranks
        self.host[where] = np.maximum(self.host[where], self.compute_end[where] + 8 * US)

    def compute(self, ns: float | Floats, ranks: Ints | None = None, kernels: int = 12) -> None:
        """Launch a piece of computing of so many kernels."""
        row = self._row()
        where = self.every if ranks is None else ranks
        z = row[where]
        began = self.host[where]
        jitter = 1 + self.noise.host * np.abs(row[::-1][where])
        issued = began + kernels * KERNEL_US * US * self.host_slow[where] * jitter
        self.host[where] = issued
        start = np.maximum(self.compute_end[where] + GAP_US * US, began + LAUNCH_US * US)
        noise = self.noise
        took = ns * self.gpu[where] * self.batch[where] * np.exp(noise.compute * z)
        if noise.crowding:
            took = took * (1 + noise.crowding * (self.busy_until(where) > start))
        if noise.tail_ms:
            took = took + noise.tail_ms * MS * 4 * np.maximum(z - 3.3, 0)
        self.compute_end[where] = np.maximum(start + took, issued + LAUNCH_US * US)

    def busy_until(self, ranks: Ints) -> Floats:
        """Return until when any communicator's stream of each rank is busy."""
        found = np.zeros(len(ranks))
        for group in self.groups:
            found = np.maximum(found, group.free[ranks])
        return found

    def collective(
        self, part: Part, func: str, nbytes: float, after: bool = True, wait: bool = True,
        times: float = 1.0,
    ) -> Handle:  # fmt: skip
        """Call a collective; `after`: it needs what was computed, `wait`: computing needs it."""
        group, ranks = part.group, part.ranks
        if not group.used:
            self._create(group)
        if group.number in self.before:
            self.before.pop(group.number)(self)
        z = self._row()[ranks]
        noise = self.noise
        call = self.host[ranks]
        self.host[ranks] = call + CALL_US * US * self.host_slow[ranks]
        begin = np.maximum(group.free[ranks] + GAP_US * US, call + LAUNCH_US * US)
        if after:
            begin = np.maximum(begin, self.compute_end[ranks] + GAP_US * US)
        latest = begin.reshape(part.shape).max(axis=1)
        size = int(nbytes)
        took = part.paths.times(func, size, self.links, self.weather(float(latest[0])))
        first = z.reshape(part.shape)[:, 0]
        took = took * (times * np.exp(noise.transfer * first)) + 1.5 * US * np.abs(first)
        done = latest + took
        if self.mortal:
            dead = self.death[ranks].reshape(part.shape).min(axis=1)
            done = np.where(done > dead, NEVER_NS, done)
        held = np.repeat(done, part.shape[1])
        if func == "Broadcast" and size <= BUFFER_BYTES * group.channels:
            # It goes round from the first rank. A rank is done when its part is in the buffers of
            # the next one.
            after_last = begin.reshape(part.shape) - latest[:, None]
            held = held + np.maximum.accumulate(after_last, axis=1).ravel()
        end = held + noise.end_us * US * np.abs(z[::-1])
        if func == "AlltoAll":  # each ends when what it gets is there: not at once
            end += 0.05 * np.repeat(took, part.shape[1]) * np.abs(z)
        group.free[ranks] = end
        if wait:
            self.compute_end[ranks] = np.maximum(self.compute_end[ranks], end + GAP_US * US)
        code = FUNCS.index(func)
        self.log.append((ranks, group.number, code, size, None, -1, call, begin, end))
        self.transfers.setdefault((group.number, code, size), []).append((part.rows, took))
        return Handle(ranks, end)

    def wait(self, handle: Handle) -> None:
        """Let the computing stream wait for an operation."""
        ranks = handle.ranks
        self.compute_end[ranks] = np.maximum(self.compute_end[ranks], handle.end + GAP_US * US)

    def barrier(self, part: Part) -> None:
        """Let hosts meet, by a small AllReduce as PyTorch does."""
        handle = self.collective(part, "AllReduce", 4, after=False)
        self.host[handle.ranks] = np.maximum(self.host[handle.ranks], handle.end + 10 * US)

    def meet(self) -> None:
        """Let all hosts meet by another library, of which NCCL knows nothing: MPI, Gloo."""
        left = self.host.max() + MEETING_US * US
        self.host[:] = left + 3 * US * np.abs(self._row())

    def post(self, part: Part, ranks: Ints, sends: Sequence[Transfer]) -> Posted:
        """Call Sends and Recvs of these ranks as one group; `complete` makes them end."""
        group = part.group
        if not group.used:
            self._create(group)
        z = self._row()[ranks]
        call = self.host[ranks]
        calls = CALL_US * US * (0.6 + 0.4 * len(sends))
        self.host[ranks] = call + calls * self.host_slow[ranks]
        begin = np.maximum(group.free[ranks], self.compute_end[ranks]) + GAP_US * US
        begin = np.maximum(begin, self.host[ranks] + LAUNCH_US * US)
        number: Any = None
        if len(sends) > 1:
            self.group_calls[ranks] += 1
            number = self.group_calls[ranks].copy()
        return Posted(group, ranks, tuple(sends), call, begin, z, number)

    def complete(self, posted: Posted, peers: Sequence[Posted]) -> None:
        """End a group of Sends and Recvs; `peers`: where the other side of each was posted."""
        ranks, noise = posted.ranks, self.noise
        ends = np.zeros(len(ranks))
        for transfer, other in zip(posted.transfers, peers, strict=True):
            both = np.maximum(posted.begin, other.begin)
            from_to = ranks, transfer.peers
            slow = self.links_between(*(from_to if transfer.func == "Send" else from_to[::-1]))
            took = slow(transfer.nbytes, self.weather(float(both[0])))
            sender = posted if transfer.func == "Send" else other
            took = took * np.exp(noise.transfer * sender.z)
            if transfer.func == "Send" and transfer.nbytes <= EAGER_BYTES:
                both = posted.begin  # it lies in a buffer then
            ends = np.maximum(ends, both + took)
        ends = ends + noise.end_us * US * np.abs(posted.z)
        if self.mortal:
            gone = self.death[ranks]
            for transfer in posted.transfers:
                gone = np.minimum(gone, self.death[transfer.peers])
            ends = np.where(ends > gone, NEVER_NS, ends)
        posted.group.free[ranks] = ends
        self.compute_end[ranks] = np.maximum(self.compute_end[ranks], ends + GAP_US * US)
        for transfer in posted.transfers:
            code = FUNCS.index(transfer.func)
            self.log.append((
                ranks, posted.group.number, code, transfer.nbytes, posted.number,
                transfer.place, posted.call, posted.begin, ends,
            ))  # fmt: skip

    def links_between(self, ranks: Ints, peers: Ints) -> Callable[[int, float], Floats]:
        """Return what tells the ns of a transfer from ranks to peers, from bytes and weather."""
        machine, links = self.machine, self.links
        here, there = self.node[ranks], self.node[peers]
        near = np.maximum(links.nvlink[ranks], links.nvlink[peers]) / machine.nvlink_gbs
        adapters = self.adapter
        out, into = links.nic_out[here, adapters[ranks]], links.nic_in[there, adapters[peers]]
        slow = np.maximum(out, into)
        share = machine.nic_gbs * min(1.0, machine.nics / machine.gpus)
        far = slow * links.network / share
        away = here != there

        def took(nbytes: int, weather: float) -> Floats:
            wide = nbytes * far * weather + machine.net_us * US
            found: Floats = np.where(away, wide, nbytes * near + machine.nvlink_us * US)
            return found

        return took


def _weather(noise: Noise, seed: int) -> Floats:
    """Return the network's slowness by quarters of a second: slow changes, and bursts."""
    rng = np.random.default_rng((seed, 7))
    quarters = 4 * 3600 * 2
    knots = rng.normal(0, noise.weather, quarters // 240 + 2)  # one a minute
    slow = np.interp(np.arange(quarters) / 240, np.arange(len(knots)), knots)
    found: Floats = np.exp(slow)
    for at in rng.integers(0, quarters, rng.poisson(noise.bursts_per_hour * quarters / 14400)):
        long = int(rng.exponential(16)) + 1
        found[at : at + long] *= 1 + rng.uniform(0, 1) * (noise.burst_times - 1)
    return found
