# SPDX-License-Identifier: Apache-2.0
"""Jobs in which ranks stopped calling, as their boxes have them, and when which process ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.model.process import KILLED, NS_PER_S, Histogram, Process
from tests.support.boxes import NOW_NS, fixed_chance
from tests.support.synthetic.jobs import Group, Model
from tests.support.synthetic.standstill import (
    STOOD_NS,
    SYNC,
    Call,
    Standstill,
    parallel_programs,
    stood,
)

RANKS = 8
ONSET_NS = NOW_NS - 1000 * NS_PER_S  # when culprits called nothing more


def hung_processes(stops: int | None = 40, since_ns: int = NOW_NS - STOOD_NS) -> list[Process]:
    """Return all processes, killed; `stops`: after how many calls (None: never) rank 5 stopped."""
    group = Group(7, "dp", tuple(range(RANKS)))
    still = Standstill([[Call(group, "AllReduce", 8)] * 50] * RANKS)
    if stops is not None:
        still.ranks[5].stop_at = stops
    still.run()
    found = [replace(one, facts=replace(one.facts, state=KILLED)) for one in still.processes()]
    if stops is None:
        return found
    return [
        replace(
            one,
            comms=tuple(replace(comm, last_progress_ns=since_ns) for comm in one.comms),
            operations=tuple(replace(op, age_ns=NOW_NS - since_ns) for op in one.operations),
        )
        for one in found
    ]


Programs = list[list[Call]]


def data_parallel(ranks: int = 8) -> Programs:
    """Return a training with one AllReduce of gradients after another."""
    group = Group(7, "dp", tuple(range(ranks)))
    return [[Call(group, "AllReduce", 1 << 26), SYNC] * 20 for _ in range(ranks)]


def sharded(ranks: int = 8) -> Programs:
    """Return a training with sharded parameters: gathered twice, and reduced once, in a step."""
    group = Group(7, "fsdp", tuple(range(ranks)))
    step = [Call(group, func, 1 << 24) for func in ("AllGather", "AllGather", "ReduceScatter")]
    return [[*step, SYNC] * 8 for _ in range(ranks)]


def ring(ranks: int = 8, ahead: bool = False) -> Programs:
    """Return a ring of context: each rank sends to the next, then all reduce their gradients.

    `ahead`: the hosts run ahead of their GPUs for a whole step.
    """
    around, world = (Group(n, name, tuple(range(ranks))) for n, name in ((7, "cp"), (8, "dp")))
    found: Programs = []
    for rank in range(ranks):
        hop = [
            Call(around, "Send", 1 << 20, peer=(rank + 1) % ranks, stream="to"),
            Call(around, "Recv", 1 << 20, peer=(rank - 1) % ranks, stream="from"),
            *([] if ahead else [SYNC]),
        ]
        program: list[Call] = []
        for _ in range(4):
            program += hop * 3
            needs = tuple(n for n, call in enumerate(program) if call.group and ahead)
            program += [Call(world, "AllReduce", 1 << 26, needs=needs), SYNC]
        found.append(program)
    return found


def pipelined(tp: int = 2, dp: int = 2, pp: int = 2) -> Programs:
    """Return stages of a pipeline, with Sends and Recvs between them, and groups in each."""
    return parallel_programs(Model(tp, dp, pp), steps=4)


def grouped_ring(ranks: int = 8, width: int = 4) -> Programs:
    """Return rings of context, each hop a group of a Send and a Recv, and replicas of the rings."""
    world = Group(8, "dp", tuple(range(ranks)))
    found: Programs = []
    for rank in range(ranks):
        first = rank // width * width
        around = Group(100 + first, "cp", tuple(range(first, first + width)))
        after, before = (first + (rank - first + step) % width for step in (1, -1))
        program: list[Call] = []
        for _ in range(4):
            needs: tuple[int, ...] = ()
            for _ in range(width - 1):
                at = len(program)
                program += [
                    Call(around, "Send", 1 << 20, after, "to", needs, kernel=at),
                    Call(around, "Recv", 1 << 20, before, "from", needs, kernel=at),
                ]
                needs = (at, at + 1)
            program += [Call(world, "AllReduce", 1 << 26, needs=needs), SYNC]
        found.append(program)
    return found


def experts(ranks: int = 8, width: int = 4) -> Programs:
    """Return layers of experts: each rank of a few sends to all of them, in one group of calls."""
    world = Group(8, "dp", tuple(range(ranks)))
    found: Programs = []
    for rank in range(ranks):
        first = rank // width * width
        several = Group(100 + first, "ep", tuple(range(first, first + width)))
        others = [one for one in several.members if one != rank]
        program: list[Call] = []
        for _ in range(4):
            needs: tuple[int, ...] = ()
            for _ in range(4):
                at = len(program)
                program += [
                    Call(several, func, 1 << 18, peer, f"{func} {peer}", needs, kernel=at)
                    for peer in others
                    for func in ("Send", "Recv")
                ]
                needs = tuple(range(at, len(program)))
            program += [Call(world, "AllReduce", 1 << 26, needs=needs), SYNC]
        found.append(program)
    return found


PROGRAMS: Mapping[str, Callable[[], Programs]] = {
    "2 ranks": lambda: data_parallel(2),
    "data parallel": data_parallel,
    "64 ranks": lambda: data_parallel(64),
    "sharded": sharded,
    "ring": ring,
    "tensor and data parallel": lambda: pipelined(4, 2, 1),
    "pipeline": pipelined,
    "long pipeline": lambda: pipelined(1, 2, 4),
    "rings of groups": grouped_ring,
    "experts": experts,
}
LARGE: Mapping[str, Callable[[], Programs]] = {
    "256 ranks": lambda: data_parallel(256),
    "256 ranks in three dimensions": lambda: pipelined(8, 8, 4),
    "64 ranks of experts": lambda: experts(64, 8),
    "a ring of 32": lambda: grouped_ring(64, 32),
}


@dataclass(frozen=True)
class End:
    """When each process gave its last sign of life, in s after `culprits` called nothing more.

    `others_s`: of the others, at random between these. `own_s`: of the culprits. `life_s`: for how
    long the job ran before. `usual_s`: how long its operations took, mostly and sometimes.
    """

    others_s: tuple[float, float]
    own_s: float
    life_s: float = 120.0
    usual_s: tuple[float, float] = (0.002, 0.02)
    culprits: tuple[int, ...] = (1,)
    states: Mapping[int, str] = field(default_factory=dict)


def stops_of(programs: Programs, culprits: Sequence[int], seed: int) -> dict[int, int]:
    """Return at which call each of the culprits stops, in the second half of its program."""
    chance = fixed_chance(seed)
    found = {}
    for rank in culprits:
        program = programs[rank]
        calls = [
            n
            for n in range(len(program) // 2, len(program))
            if program[n].group and program[n].kernel in (None, n)  # a group as a whole, or not
        ]
        found[rank] = chance.choice(calls)
    return found


def ended(programs: Programs, end: End, seed: int = 0) -> list[Process]:
    """Return the boxes of a job in which culprits stopped, and all ended then or later."""
    chance = fixed_chance(seed + 1)
    found = []
    for rank, one in enumerate(stood(programs, stops_of(programs, end.culprits, seed))):
        after_s = end.own_s if rank in end.culprits else chance.uniform(*end.others_s)
        ages = [
            replace(op, age_ns=max(0, round((after_s - chance.uniform(0, 0.3)) * NS_PER_S)))
            for op in one.operations
        ]
        often, seldom = (round(each * NS_PER_S) for each in end.usual_s)
        keys = [
            key._replace(
                ops=1000, busy_ns=1000 * often, max_ns=seldom,
                histogram=Histogram.of({bucket_of(often): 990, bucket_of(seldom): 10}.items()),
            )
            for key in one.keys
        ]  # fmt: skip
        created_ns = ONSET_NS - round(end.life_s * NS_PER_S)
        found.append(
            replace(
                one,
                facts=replace(
                    one.facts,
                    beat_ns=ONSET_NS + round(after_s * NS_PER_S),
                    state=end.states.get(rank, KILLED),
                ),
                comms=tuple(
                    replace(comm, created_ns=created_ns, last_progress_ns=ONSET_NS)
                    for comm in one.comms
                ),
                keys=keys,
                operations=tuple(ages),
            )
        )
    return found
