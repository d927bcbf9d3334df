# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus has of parallel jobs of which a process calls nothing any more.

A job is a program for each of its ranks: what it calls in a step, in which communicator. Each rank
goes on as far as it can. So whoever waits for the absent one makes others wait in turn, in other
communicators, as in a real job. Each process writes its series at its own time, and the agent of a
node says how old its oldest operation is.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise, product
from random import Random

from tests.support.promtool import Labels, Series

WRITE_S = SCRAPE_S = 30
AGENT_S = 5
GPUS = 8  # of a node
SAVED_BYTES = 8e7  # a second, of a process that saves a checkpoint
_STEPS = 3  # that others may take without the absent one


@dataclass(frozen=True)
class Call:
    """What a rank calls. Of Sends and Recvs `peers` is with whom, once for each of them."""

    comm: str
    members: tuple[int, ...]  # that have to call it before it ends
    peers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.peers) or 1


Program = Sequence[Call]


@dataclass(frozen=True)
class Layout:
    """A job's communicators, by id, and what each rank calls in a step."""

    comms: Mapping[str, tuple[int, ...]]
    programs: Sequence[Program]

    @property
    def ranks(self) -> int:
        return len(self.programs)


def grid(sizes: Mapping[str, int], step: Callable[["Place"], Iterator[Call]]) -> Layout:
    """A job of a grid of ranks; the first of its axes changes fastest."""
    axes = list(sizes)
    spots = [dict(zip(reversed(axes), spot, strict=True))
             for spot in product(*(range(sizes[axis]) for axis in reversed(axes)))]  # fmt: skip
    comms: dict[str, tuple[int, ...]] = {}
    places = [Place(rank, spot, spots, comms) for rank, spot in enumerate(spots)]
    return Layout(comms, [list(step(place)) for place in places])


@dataclass(frozen=True)
class Place:
    """A rank in its grid."""

    rank: int
    spot: Mapping[str, int]
    spots: Sequence[Mapping[str, int]]
    comms: dict[str, tuple[int, ...]]

    def _comm(self, name: str, axes: Sequence[str]) -> str:
        """The id of the communicator of all ranks that differ from this one in these axes only."""
        rest = {axis: at for axis, at in self.spot.items() if axis not in axes}
        members = tuple(
            rank for rank, spot in enumerate(self.spots) if rest.items() <= spot.items()
        )
        known = (
            one for one, who in self.comms.items() if who == members and one.startswith(f"{name}-")
        )
        return next(known, None) or self._new(name, members)

    def _new(self, name: str, members: tuple[int, ...]) -> str:
        one = f"{name}-{len(self.comms)}"
        self.comms[one] = members
        return one

    def all(self, name: str, *axes: str) -> Iterator[Call]:
        """A collective of the ranks along these axes."""
        comm = self._comm(name, axes)
        if len(self.comms[comm]) > 1:
            yield Call(comm, self.comms[comm])

    def everybody(self, name: str, *axes: str) -> Iterator[Call]:
        """An all-to-all of grouped Sends and Recvs."""
        comm = self._comm(name, axes)
        members = self.comms[comm]
        yield Call(comm, members, (*members, *members))

    def beside(self, axis: str, by: int, *, ring: bool = False) -> Iterator[Call]:
        """A Send to, or a Recv from, the rank that is so much farther along an axis; or none."""
        comm = self._comm(axis, (axis,))
        members, at = self.comms[comm], self.spot[axis] + by
        if ring or 0 <= at < len(members):
            peer = members[at % len(members)]
            yield Call(comm, (self.rank, peer), (peer,))


class How(Enum):
    """What happens to a rank in front of an item of its step."""

    ABSENT = "it calls nothing any more"
    DIES = "its process is killed"
    GPU = "it calls it, but its GPU does not come to it"
    NETWORK = "it calls it, but the operation does not end"


@dataclass
class Fate:
    """Where a rank has come to: calls by communicator, and in what it waits."""

    called: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    waits: Call | None = None


def _stop(layout: Layout, absent: int, item: int, how: How) -> list[Fate]:
    """Return where each rank comes to in the step in which one stops before an item.

    The others begin the next step if they can. If it calls the item all the same, that does not
    end.
    """
    at = [0] * layout.ranks
    # How often each rank has called what it shares with whom.
    called: dict[tuple[int, Call | tuple[str, tuple[int, ...]]], int] = defaultdict(int)

    def key(call: Call) -> tuple[str, tuple[int, ...]]:
        return call.comm, tuple(sorted(call.members))

    fates = [Fate() for _ in range(layout.ranks)]
    needs: list[int] = [0] * layout.ranks
    calls = how in (How.GPU, How.NETWORK)
    endless: tuple[tuple[str, tuple[int, ...]], int] | None = None
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(layout.programs):
            end = item + calls if rank == absent else _STEPS * len(program)
            fate = fates[rank]
            if fate.waits is None and at[rank] < end:
                call = program[at[rank] % len(program)]
                fate.waits, moved = call, True
                fate.called[call.comm] += call.count
                called[rank, key(call)] += 1
                needs[rank] = called[rank, key(call)]
                if rank == absent and calls and at[rank] == item:
                    endless = key(call), needs[rank]
            waits = fate.waits
            if waits and endless == (key(waits), needs[rank]):
                continue
            if waits and all(called[one, key(waits)] >= needs[rank] for one in waits.members):
                fate.done[waits.comm] += waits.count
                fate.waits, moved = None, True
                at[rank] += 1
    return fates


@dataclass(frozen=True)
class HangingJob:
    """A job in steps of a second, until something happens to a rank at an item of its step."""

    layout: Layout
    absent: int
    item: int
    onset_s: float
    end_s: int
    seed: int = 0
    how: How = How.ABSENT

    @property
    def dies(self) -> bool:
        return self.how is How.DIES

    def place(self, rank: int) -> Labels:
        return {"node": f"n{rank // GPUS + 1}", "gpu": f"GPU{rank % GPUS}"}

    def series(self, own: Labels) -> Iterator[Series]:
        """Every series of the job; `own` says which it is."""
        chance = Random(self.seed)  # noqa: S311
        fates = _stop(self.layout, self.absent, self.item, self.how)
        nodes: dict[str, list[Fate]] = defaultdict(list)
        scraped_s = {
            f"n{node + 1}": chance.random() * SCRAPE_S for node in range(self.layout.ranks)
        }
        for rank, fate in enumerate(fates):
            place = self.place(rank)
            dead = self.dies and rank == self.absent
            nodes[place["node"]] += [] if dead else [fate]
            phase_s = chance.random() * WRITE_S
            writes = []
            for at_s in range(0, self.end_s, SCRAPE_S):
                seen_s = at_s - scraped_s[place["node"]]
                writes.append((seen_s - phase_s) // WRITE_S * WRITE_S + phase_s)
            gone = [dead and at_s - scraped_s[place["node"]] > self.onset_s + AGENT_S
                    for at_s in range(0, self.end_s, SCRAPE_S)]  # fmt: skip
            yield from self._process(rank, fate, own | place, writes, gone)
        for node, there in nodes.items():
            yield from self._node(there, own | {"node": node}, scraped_s[node])

    def _process(
        self, rank: int, fate: Fate, place: Labels, writes: Sequence[float], gone: Sequence[bool]
    ) -> Iterator[Series]:
        def values(of: Callable[[float], float]) -> str:
            return " ".join("stale" if out else f"{of(at_s):.9g}"
                            for at_s, out in zip(writes, gone, strict=True))  # fmt: skip

        yield Series("nccl_inspector_last_write_timestamp_seconds",
                     place | {"process": f"0_{rank}"}, values(lambda at_s: at_s))  # fmt: skip
        step: Counter[str] = Counter()
        p2p = set()
        for call in self.layout.programs[rank]:
            step[call.comm] += call.count
            p2p |= {call.comm} if call.peers else set()
        for comm in step:
            yield from self._communicator(rank, fate, step, comm, place, values, comm in p2p)

    def _communicator(
        self, rank: int, fate: Fate, step: Counter[str], comm: str, place: Labels,
        values: Callable[[Callable[[float], float]], str], p2p: bool,
    ) -> Iterator[Series]:  # fmt: skip
        labels = place | {"rank": str(self.layout.comms[comm].index(rank)), "comm": f"0x{comm}",
                          "comm_name": comm.split("-")[0]}  # fmt: skip
        in_it = fate.waits if fate.waits and fate.waits.comm == comm else None

        def count(last: Counter[str]) -> Callable[[float], float]:
            def at(at_s: float) -> float:
                steps = int(max(0.0, min(at_s, self.onset_s)))
                return step[comm] * (100 + steps) + (last[comm] if at_s >= self.onset_s else 0)

            return at

        def age(wanted: bool) -> Callable[[float], float]:
            return lambda at_s: max(0.0, at_s - self.onset_s) if in_it and wanted else 0.0

        prefix = "nccl_communicator_operations"
        yield Series(f"{prefix}_enqueued_total", labels, values(count(fate.called)))
        idle = in_it and rank == self.absent and self.how is How.GPU
        started = fate.called - Counter({comm: int(bool(idle))})
        yield Series(f"{prefix}_started_total", labels, values(count(started)))
        yield Series(f"{prefix}_completed_total", labels, values(count(fate.done)))
        yield Series("nccl_communicator_last_progress_timestamp_seconds", labels,
                     values(lambda at_s: min(at_s, self.onset_s)))  # fmt: skip
        waits_p2p = bool(in_it and in_it.peers)
        yield Series("nccl_collective_inflight_seconds", labels, values(age(not waits_p2p)))
        yield Series("nccl_p2p_inflight_seconds", labels, values(age(waits_p2p)))
        if p2p:
            kind = {"p2p_operation": "Send", "message_size": "1-2MB"}
            yield Series("nccl_p2p_operations_total", labels | kind, values(count(fate.done)))

    def _node(self, fates: Sequence[Fate], own: Labels, scraped_s: float) -> Iterator[Series]:
        looks = [(at_s - scraped_s) // AGENT_S * AGENT_S for at_s in range(0, self.end_s, SCRAPE_S)]
        ages = [max(0.0, at_s - self.onset_s) for at_s in looks]
        for what, peers in (("", False), ("p2p_", True)):
            waits = any(fate.waits and bool(fate.waits.peers) == peers for fate in fates)
            values = " ".join(f"{age:.9g}" if waits else "0" for age in ages)
            yield Series(f"nccl_inspector_job_{what}inflight_seconds", own, values)
        dies_here = self.dies and own["node"] == self.place(self.absent)["node"]
        lost = [int(dies_here and at_s > self.onset_s) for at_s in looks]
        running = [str(len(fates) + dies_here - one) for one in lost]
        name = "nccl_inspector_job_processes"
        yield Series(name, own | {"state": "running"}, " ".join(running))
        yield Series(name, own | {"state": "lost"}, " ".join(map(str, lost)))
        yield Series(name, own | {"state": "stopped"}, " ".join("0" for _ in looks))


def data_parallel(ranks: int, operations: int = 3) -> Layout:
    """Replicas that share their gradients."""
    return grid(
        {"dp": ranks}, lambda place: (c for _ in range(operations) for c in place.all("dp", "dp"))
    )


def sharded(ranks: int, replicas: int = 1) -> Layout:
    """Shards of parameters, and replicas of all shards."""

    def step(place: Place) -> Iterator[Call]:
        for _ in range(4):
            yield from place.all("fsdp", "fsdp")
        yield from place.all("replicas", "dp")
        yield from place.all("world", "fsdp", "dp")

    return grid({"fsdp": ranks, "dp": replicas}, step)


def pipelined(tp: int = 1, cp: int = 1, pp: int = 1, dp: int = 1) -> Layout:
    """Tensor, context, pipeline and data parallel: rings of Sends and Recvs in each layer."""

    def layer(place: Place) -> Iterator[Call]:
        yield from place.all("tp", "tp")
        if cp > 1:
            # Of each pair of neighbours one sends first.
            first, second = (1, -1) if place.spot["cp"] % 2 else (-1, 1)
            yield from place.beside("cp", first, ring=True)
            yield from place.beside("cp", second, ring=True)
        yield from place.all("tp", "tp")

    def step(place: Place) -> Iterator[Call]:
        for way in (-1, -1, 1, 1):
            yield from place.beside("pp", way)
            yield from layer(place)
            yield from place.beside("pp", -way)
        yield from place.all("dp", "cp", "dp")
        if tp * dp * cp > 1:
            yield from place.all("grads", "tp", "cp", "pp", "dp")

    return grid({"tp": tp, "cp": cp, "pp": pp, "dp": dp}, step)


def experts(ep: int, dp: int = 1, tp: int = 1) -> Layout:
    """Mixture of experts: tokens go to all ranks of a group and back."""

    def step(place: Place) -> Iterator[Call]:
        for _ in range(2):
            yield from place.all("tp", "tp")
            yield from place.everybody("ep", "ep")
            yield from place.everybody("ep", "ep")
        yield from place.all("dp", "ep", "dp")

    return grid({"tp": tp, "ep": ep, "dp": dp}, step)


LAYOUTS: dict[str, Layout] = {
    "2 replicas": data_parallel(2),
    "8 replicas": data_parallel(8),
    "64 replicas": data_parallel(64),
    "256 replicas": data_parallel(256, 1),
    "16 shards": sharded(16),
    "4 x 8 shards": sharded(8, 4),
    "8 tensor parallel": pipelined(tp=8),
    "2 tensor x 2 data": pipelined(tp=2, dp=2),
    "8 tensor x 4 data": pipelined(tp=8, dp=4),
    "4 stages": pipelined(pp=4),
    "2 stages x 4 data": pipelined(pp=2, dp=4),
    "2 tensor x 8 stages": pipelined(tp=2, pp=8),
    "4 tensor x 2 stages x 2 data": pipelined(tp=4, pp=2, dp=2),
    "4 tensor x 4 stages x 4 data": pipelined(tp=4, pp=4, dp=4),
    "8 in a context ring": pipelined(cp=8),
    "2 tensor x 4 context x 4 data": pipelined(tp=2, cp=4, dp=4),
    "2 tensor x 2 context x 2 stages x 4 data": pipelined(tp=2, cp=2, pp=2, dp=4),
    "8 experts": experts(8),
    "8 experts x 4 data": experts(8, 4),
    "2 tensor x 4 experts x 2 data": experts(4, 2, 2),
}


Span = tuple[float, float]  # from, until (s)


@dataclass(frozen=True)
class PausingJob:
    """Eight replicas that wait for rank 0 at times, each of the spans in one operation."""

    end_s: int
    waits: Sequence[Span] = ()
    received_s: float | None = None  # since when a Recv is posted
    still: Sequence[Span] = ()  # nothing is called
    stopped: Sequence[Span] = ()  # all processes are stopped while they are in an operation
    restarts_s: Sequence[float] = ()  # new processes with new communicators
    saves: Sequence[Span] = ()  # rank 0 writes files, while the others wait for it
    gone_s: float = 1e9  # when the job ends

    def series(self, own: Labels) -> Iterator[Series]:
        """Every series of the job; `own` says which it is."""
        looks = range(0, self.end_s, SCRAPE_S)
        lives = [0.0, *self.restarts_s, min(self.gone_s, self.end_s + 1.0)]
        for number, (begin_s, until_s) in enumerate(pairwise(lives)):
            there = [begin_s <= at_s < until_s for at_s in looks]
            for rank in range(GPUS):
                yield from self._rank(rank, number, own, list(looks), there)
        there = [at_s < self.gone_s for at_s in looks]
        for state in ("running", "stopped"):
            running = [str(GPUS * (bool(_in(self.stopped, at_s)) == (state == "stopped")))
                       for at_s in looks]  # fmt: skip
            yield Series("nccl_inspector_job_processes", own | {"node": "n1", "state": state},
                         _there(running, there))  # fmt: skip
        for what, age in (("", self._age_s), ("p2p_", self._recv_s)):
            values = [f"{age(at_s):.9g}" for at_s in looks]
            name = f"nccl_inspector_job_{what}inflight_seconds"
            yield Series(name, own | {"node": "n1"}, _there(values, there))

    def _age_s(self, at_s: float) -> float:
        return _in((*self.waits, *self.stopped), at_s)

    def _recv_s(self, at_s: float) -> float:
        return 0.0 if self.received_s is None else max(0.0, at_s - self.received_s)

    def _rank(
        self, rank: int, life: int, own: Labels, looks: Sequence[int], there: Sequence[bool]
    ) -> Iterator[Series]:
        place = own | {"node": "n1", "gpu": f"GPU{rank}"}
        comm = place | {"rank": str(rank), "comm": f"0x{life}", "comm_name": "dp"}

        def series(name: str, labels: Labels, of: Callable[[float], float]) -> Series:
            # A process that is stopped writes nothing.
            wrote = [at_s - _in(self.stopped, at_s) for at_s in looks]
            return Series(name, labels, _there([f"{of(at_s):.9g}" for at_s in wrote], there))

        def waits_s(at_s: float) -> float:
            return _in(self.waits, at_s)

        def worked_s(at_s: float) -> float:
            spans = (*self.waits, *self.still, *self.stopped)
            return at_s - sum(min(end, at_s) - begin for begin, end in spans if begin < at_s)

        def done(at_s: float) -> int:
            return int(worked_s(at_s)) + sum(end <= at_s for _, end in self.waits)

        def latest_s(at_s: float) -> float:
            return at_s - _in((*self.waits, *self.still, *self.stopped), at_s)

        prefix = "nccl_communicator_operations"
        ahead = rank > 0
        yield series(f"{prefix}_enqueued_total", comm,
                     lambda at_s: done(at_s) + (ahead and waits_s(at_s) > 0))  # fmt: skip
        yield series(f"{prefix}_started_total", comm, done)
        yield series(f"{prefix}_completed_total", comm, done)
        yield series("nccl_communicator_last_progress_timestamp_seconds", comm, latest_s)
        yield series("nccl_collective_inflight_seconds", comm, lambda at_s: ahead * waits_s(at_s))
        yield series("nccl_p2p_inflight_seconds", comm,
                     lambda at_s: self._recv_s(at_s) if rank == 1 else 0.0)  # fmt: skip
        process = place | {"process": f"{life}_{rank}"}
        yield series("nccl_inspector_last_write_timestamp_seconds", process, lambda at_s: at_s)
        if self.saves and not ahead:
            # As late as it can be: of the write before the latest one, scraped half a minute later.
            quiet = [now and waits_s(at_s) >= 2 * WRITE_S
                     for at_s, now in zip(looks, there, strict=True)]  # fmt: skip
            rates = [f"{SAVED_BYTES * (_in(self.saves, at_s - WRITE_S) > 0):.9g}" for at_s in looks]
            yield Series("nccl_inspector_quiet_io_bytes_per_second", process, _there(rates, quiet))


def _in(spans: Sequence[Span], at_s: float) -> float:
    """For how long one of the spans has lasted; 0: none does."""
    return next((at_s - begin for begin, end in spans if begin <= at_s < end), 0.0)


def _there(values: Sequence[str], there: Sequence[bool]) -> str:
    """The values where there are some; the series ends with a mark of Prometheus."""
    words, before = [], False
    for value, now in zip(values, there, strict=True):
        words.append(value if now else "stale" if before else "_")
        before = now
    return " ".join(words)
