# SPDX-License-Identifier: Apache-2.0
"""A job that stands still: programs of calls are run until nobody can go on, then boxes are made.

A rank's host calls ahead of its GPU until it must wait; a kernel begins when its stream is free and
what it needs is over; it ends when all that belong to it have begun.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.process import (
    COMM_LIVE,
    FUNCS,
    KILLED,
    Comm,
    Gpu,
    Histogram,
    Key,
    Operation,
    Peer,
    Process,
)
from tests.support.boxes import MS, NOW_NS
from tests.support.synthetic.jobs import FACTS, Group, Model

STOOD_NS = 20 * 60 * 10**9  # from the first round until the boxes were written last
ROUND_NS = 10**9
_TIME_NS = 2 * MS  # of every operation that ended


@dataclass(frozen=True)
class Call:
    """One call of a rank; `group` None: the host waits until all that it called is over.

    `kernel`: calls of a rank with the same number are between ncclGroupStart and ncclGroupEnd, so
    that none is over before all are.
    """

    group: Group | None
    func: str = ""
    size: int = 0
    peer: int = -1  # rank of the job
    stream: str = "compute"
    needs: tuple[int, ...] = ()  # calls of the same rank, by number
    kernel: int | None = None


SYNC = Call(None)


@dataclass
class _Rank:
    calls: Sequence[Call]
    stop_at: int | None = None  # this call is never made
    stuck_stream: int | None = None  # this call is made, and its kernel never begins
    called: int = 0
    begun: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)  # all that belong to it have begun
    over: set[int] = field(default_factory=set)
    round_of: dict[int, int] = field(default_factory=dict)


class Standstill:
    """Programs by rank, and what is wrong with some of them."""

    def __init__(self, programs: Sequence[Sequence[Call]], ranks_per_node: int = 4) -> None:
        """Take programs in which nothing is wrong."""
        self.ranks = [_Rank(calls) for calls in programs]
        self.ranks_per_node = ranks_per_node
        self.rounds = 0

    def run(self) -> None:
        """Go on until nobody can."""
        keys = [self._keys(rank) for rank in range(len(self.ranks))]
        waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
        moved = True
        while moved:
            moved = False
            self.rounds += 1
            for number, rank in enumerate(self.ranks):
                moved |= self._call(rank)
                for call in self._ready(rank):
                    rank.begun.add(call)
                    waiting[keys[number][call]].append((number, call))
                    moved = True
            for key in [key for key, who in waiting.items() if self._is_full(who)]:
                for number, call in waiting.pop(key):
                    self._end(self.ranks[number], call)

    def _end(self, rank: _Rank, call: int) -> None:
        rank.met.add(call)
        kernel = rank.calls[call].kernel
        if kernel is None:
            rank.over.add(call)
            return
        same = {number for number, one in enumerate(rank.calls) if one.kernel == kernel}
        if same <= rank.met:
            rank.over |= same

    def _is_full(self, who: Sequence[tuple[int, int]]) -> bool:
        call = self.ranks[who[0][0]].calls[who[0][1]]
        assert call.group
        return len(who) == (2 if call.peer >= 0 else len(call.group.members))

    def _keys(self, number: int) -> list[object]:
        """Return for each call of a rank what its partners' calls have in common with it."""
        counts: Counter[object] = Counter()
        found: list[object] = []
        for call in self.ranks[number].calls:
            if call.group is None:
                found.append(None)
                continue
            ends = (number, call.peer) if call.func == "Send" else (call.peer, number)
            what: object = (call.group.id, ends) if call.peer >= 0 else (call.group.id, None)
            counts[what] += 1
            found.append((what, counts[what], call.size if call.peer < 0 else 0,
                          call.func if call.peer < 0 else ""))  # fmt: skip
        return found

    def _call(self, rank: _Rank) -> bool:
        before = rank.called
        while rank.called < len(rank.calls) and rank.called != rank.stop_at:
            call = rank.calls[rank.called]
            mine = (n for n in range(rank.called) if rank.calls[n].group)
            if call.group is None and not rank.over.issuperset(mine):
                break
            rank.round_of[rank.called] = self.rounds
            rank.called += 1
        return rank.called > before

    def _ready(self, rank: _Rank) -> list[int]:
        """Return the calls whose kernels begin now: the first unfinished ones of their streams."""
        busy: set[str] = set()
        found = []
        for number in range(rank.called):
            call = rank.calls[number]
            if call.group is None or number in rank.over or call.stream in busy:
                continue
            busy.add(call.stream)
            free = rank.over.issuperset(call.needs) and number != rank.stuck_stream
            if number not in rank.begun and free:
                found.append(number)
        return found

    def process(self, number: int) -> Process:
        """Return what the box of a rank says, STOOD_NS after the first round."""
        rank = self.ranks[number]
        calls = [(n, one) for n, one in enumerate(rank.calls[: rank.called]) if one.group]
        groups = list({one.group.id: one.group for one in rank.calls if one.group}.values())
        index = {group.id: at for at, group in enumerate(groups)}
        in_order: Counter[int] = Counter()
        sequences: Counter[tuple[int, str]] = Counter()
        operations, over = [], defaultdict(list)
        for n, call in calls:
            assert call.group
            in_order[call.group.id] += 1
            sequences[call.group.id, call.func] += 1
            if n in rank.over:
                over[call.group.id, call.func, call.size, call.peer].append(in_order[call.group.id])
                continue
            age_ns = STOOD_NS - ROUND_NS * rank.round_of[n]
            operations.append(
                Operation(
                    index[call.group.id], FUNCS.index(call.func), 2, 3, in_order[call.group.id],
                    0 if call.peer >= 0 else sequences[call.group.id, call.func], call.size,
                    -1 if call.peer < 0 else call.group.members.index(call.peer), age_ns,
                    int(n in rank.begun),
                )
            )  # fmt: skip
        return Process(
            facts=replace(
                FACTS, name=f"0_{number}", pid=number + 1, procid=number, state=KILLED,
                node=f"n{number // self.ranks_per_node + 1}", beat_ns=NOW_NS,
            ),
            dropped=(0,) * 16,
            gpus=(Gpu(f"GPU-{number:08x}", "", number % 8, f"GPU{number % 8}"),),
            comms=tuple(
                self._comm(at, group, number, in_order[group.id],
                           sum(one.comm == at for one in operations),
                           max((n for key, found in over.items() if key[0] == group.id
                                for n in found), default=0))
                for at, group in enumerate(groups)
            ),
            keys=self._table(over, index),
            peers=tuple(
                Peer(index[comm], FUNCS.index(func),
                     groups[index[comm]].members.index(peer), len(found), size * len(found),
                     _TIME_NS * len(found), 0, 0)
                for (comm, func, size, peer), found in over.items()
                if peer >= 0
            ),
            lines=(), nets=(), operations=tuple(operations), flags=(),
        )  # fmt: skip

    def _comm(
        self, at: int, group: Group, rank: int, called: int, in_flight: int, last: int
    ) -> Comm:
        nnodes = len({member // self.ranks_per_node for member in group.members})
        over = called - in_flight
        return Comm(
            at, group.id, COMM_LIVE, len(group.members), nnodes, group.members.index(rank), 0,
            NOW_NS - STOOD_NS - ROUND_NS, 0, called, 0, 0, over, over, last, NOW_NS - STOOD_NS, 0,
            group.name,
        )  # fmt: skip

    @staticmethod
    def _table(
        over: Mapping[tuple[int, str, int, int], Sequence[int]], index: Mapping[int, int]
    ) -> tuple[Key, ...]:
        kinds: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        for (comm, func, size, _), found in over.items():
            kinds[comm, func, size] += found
        return tuple(
            Key(index[comm], FUNCS.index(func), size_class(size), 2, 3, len(found),
                size * len(found), _TIME_NS * len(found), _TIME_NS, _TIME_NS, 0, min(found),
                max(found), 0, 0, 0, 0, Histogram((bucket_of(_TIME_NS),), (len(found),)))
            for (comm, func, size), found in kinds.items()
        )  # fmt: skip

    def processes(self) -> list[Process]:
        """Return those of all ranks."""
        return [self.process(rank) for rank in range(len(self.ranks))]


class _Program:
    """The calls of one rank, as they are added."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def add(self, group: Group, func: str, size: int, **words: object) -> int:
        """Add a call and return its number."""
        self.calls.append(Call(group, func, size, **words))  # type: ignore[arg-type]
        return len(self.calls) - 1


def parallel_programs(
    model: Model, steps: int = 2, batches: int = 2, ahead: bool = False
) -> list[list[Call]]:
    """Return programs of training steps; `ahead`: Recvs are posted before they are due."""
    programs = [_Program() for _ in range(model.ranks)]
    number = iter(range(0x100, 0x10000))

    def groups(name: str, found: list[list[int]]) -> dict[int, Group]:
        made = [Group(next(number), name, tuple(one)) for one in found]
        return {rank: group for group in made for rank in group.members}

    tensor = groups("tp", model.tensor_groups())
    data = groups("dp", model.data_groups())
    pipes = groups("pp", model.pipelines())
    world = groups("world", [list(range(model.ranks))])
    for rank, program in enumerate(programs):
        pipe = pipes[rank].members
        stage = pipe.index(rank)
        before = pipe[stage - 1] if stage else None
        after = pipe[stage + 1] if stage + 1 < model.pp else None
        for _ in range(steps):
            for source, target in ((before, after), (after, before)):
                _pass(program, tensor[rank], pipes[rank], source, target, batches, ahead)
            gradients = program.add(data[rank], "ReduceScatter", 1 << 26)
            program.add(world[rank], "AllReduce", 8, needs=(gradients,))
            program.calls.append(SYNC)
    return [program.calls for program in programs]


def _pass(
    program: _Program, tensor: Group, pipe: Group, source: int | None, target: int | None,
    batches: int, ahead: bool,
) -> None:  # fmt: skip
    """Add the way of some batches through a stage, forward or back."""

    def receive() -> tuple[int, ...]:
        if source is None:
            return ()
        return (program.add(pipe, "Recv", 1 << 20, peer=source, stream=f"from {source}"),)

    posted = [receive() for _ in range(batches)] if ahead else []
    for batch in range(batches):
        needs = posted[batch] if ahead else receive()
        first = program.add(tensor, "AllReduce", 1 << 22, needs=needs)
        last = program.add(tensor, "AllReduce", 1 << 22, needs=(first,))
        if target is not None:
            program.add(pipe, "Send", 1 << 20, peer=target, stream=f"to {target}", needs=(last,))


def stood(
    programs: Sequence[Sequence[Call]], stops: dict[int, int], stuck: dict[int, int] | None = None
) -> list[Process]:
    """Return the boxes when ranks stop before a call, or have one whose kernel never begins."""
    still = Standstill(programs)
    for rank, call in stops.items():
        still.ranks[rank].stop_at = call
    for rank, call in (stuck or {}).items():
        still.ranks[rank].stuck_stream = call
    still.run()
    return still.processes()


def in_last_step(program: Sequence[Call], name: str, func: str, batch: int = 0) -> int:
    """Return the number of a call in the second of two steps."""
    found = [
        number
        for number, call in enumerate(program)
        if call.group and call.group.name == name and call.func == func
    ]
    return found[len(found) // 2 + batch]


def claiming(nranks: int) -> list[Process]:
    """Return the boxes of a job that stands still, whose communicators claim so many ranks."""
    programs = parallel_programs(Model(tp=2, dp=2, pp=1))
    processes = stood(programs, {1: in_last_step(programs[1], "dp", "ReduceScatter")})
    return [
        replace(one, comms=tuple(replace(comm, nranks=nranks) for comm in one.comms))
        for one in processes
    ]
