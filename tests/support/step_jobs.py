# SPDX-License-Identifier: Apache-2.0
"""Small jobs, step by step, as exact records of their operations: for tests of the replay.

The ranks compute, and their collectives begin and end by the rules of streams. What a fault costs
is known because the same job, with the same noise, can be made without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.replay.records import RecordSource
from nccl_inspector.model.process import FUNCS, PEER_NONE, GpuClock, SampleKind
from nccl_inspector.model.sample_columns import SampleColumns

Floats = NDArray[np.float64]
START_NS = 1_795_000_000 * 10**9
_ALL_REDUCE, _ALL_TO_ALL = FUNCS.index("AllReduce"), FUNCS.index("AlltoAll")
_LAUNCH_S = 5e-6
_CALL_S = 2e-3  # for which a host works before each call
_GPU_EPOCH_NS = 10**12  # a GPU's clock counts from somewhere else


@dataclass(frozen=True, slots=True)
class Recorded:
    """The samples of one process, all of a run kept."""

    kinds: tuple[SampleKind, ...]
    found: SampleColumns
    ahead_ns: int
    length_bits: int = 34
    period_bits: int = 34
    lost: int = 0

    @property
    def clocks(self) -> tuple[GpuClock, ...]:
        """How to put its times on the Unix time of its node."""
        return (GpuClock(0, (0,), (self.ahead_ns,)),)

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.found.kind)

    def columns(self) -> SampleColumns:
        """Return the records."""
        return self.found


@dataclass(frozen=True, slots=True)
class StepJob:
    """Operations by communicator: number, begins and ends of all ranks (s); and when it ended."""

    comms: Mapping[tuple[int, ...], Sequence[tuple[int, Floats, Floats]]]  # by members
    end_s: float
    ranks: int
    exchanging: frozenset[tuple[int, ...]] = frozenset()  # AlltoAll; all others: AllReduce
    # When each operation was called (s), as in `comms`; empty: not known.
    calls: Mapping[tuple[int, ...], Sequence[Floats]] = field(default_factory=dict)

    def sources(
        self, clocks_s: Sequence[float] = (), drifts_ppm: Sequence[float] = ()
    ) -> list[RecordSource]:
        """Return the records of all ranks.

        `clocks_s`: how far their nodes' clocks are ahead; `drifts_ppm`: how much too fast they are.
        """
        ahead_s, drifts = clocks_s or [0.0] * self.ranks, drifts_ppm or [0.0] * self.ranks
        return [
            RecordSource(rank, self._recorded(rank, ahead_s[rank], 1 + drifts[rank] * 1e-6))
            for rank in range(self.ranks)
        ]

    def _recorded(self, rank: int, ahead_s: float, speed: float) -> Recorded:
        kinds, rows = [], []
        for place, (members, operations) in enumerate(self.comms.items()):
            if rank not in members:
                continue
            at = members.index(rank)
            kinds.append(
                SampleKind(
                    1000 + place, len(members), 1, at, 0,
                    _ALL_TO_ALL if members in self.exchanging else _ALL_REDUCE, 22, 2, 3,
                    len(members), 0, f"comm{place}",
                )
            )  # fmt: skip
            called = self.calls.get(members) or [begins for _, begins, _ in operations]
            rows += [
                (float(begins[at]), float(ends[at]), len(kinds) - 1, number, float(call[at]))
                for (number, begins, ends), call in zip(operations, called, strict=True)
            ]
        rows.sort()
        begin, end = (
            np.array([round(row[side] * speed * 1e9) for row in rows], np.int64)
            + _GPU_EPOCH_NS * rank
            for side in (0, 1)
        )
        count = len(rows)
        columns = SampleColumns(
            kind=np.array([row[2] for row in rows], np.int32),
            index=np.array([row[3] for row in rows], np.int64),
            peer=np.full(count, PEER_NONE, np.int32),
            start_ns=begin,
            time_ns=end - begin,
            queued_ns=np.array([round((row[0] - row[4]) * 1e9) for row in rows], np.int64),
            bytes=np.full(count, 1 << 22, np.int64),
            flags=np.zeros(count, np.uint8),
        )
        ahead_ns = START_NS - _GPU_EPOCH_NS * rank + round(ahead_s * 1e9)
        return Recorded(tuple(kinds), columns, ahead_ns)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with some ranks: they compute slower, in one step of `every`.

    `steps`: the first, and the one after the last.
    """

    ranks: tuple[int, ...] = ()
    slower: float = 1.0
    every: int = 1
    steps: tuple[int, int] = (0, 1 << 30)


def _paces(rng: np.random.Generator, ranks: int, fault: Fault, step: int, uneven: float) -> Floats:
    paces = 1 + uneven * rng.standard_normal(ranks)
    if step % fault.every == 0 and fault.steps[0] <= step < fault.steps[1]:
        paces[list(fault.ranks)] *= fault.slower
    return paces


def data_parallel(
    ranks: int = 16, steps: int = 80, fault: Fault = Fault(), uneven: float = 0.0, seed: int = 0,
    transfer_s: float = 0.02, node_uneven: float = 0.0, of_node: int = 4, pauses: int = 0,
    pauses_of: Sequence[int] = (), input_s: float = 0.0, work: float = 1.0,
    late: tuple[int, float] = (0, 0.0), called: bool = False,
) -> StepJob:  # fmt: skip
    """Eight buckets are reduced while the backward pass goes on; all wait for the last one.

    `uneven`: by how much the ranks' work differs by chance, `node_uneven`: that of whole nodes.
    `pauses`: of a second, each of one of some ranks. `input_s`: for which all wait at the begin of
    a step; `work`: how much more there is of it. `late`: a rank, and how many seconds its host
    comes late to each step. `called`: calls are known; hosts are far ahead of their GPUs, and wait
    for them at the end of each step.
    """
    rng = np.random.default_rng(seed)
    other = np.random.default_rng((seed, 1))  # the same noise with pauses and without
    who = other.choice(pauses_of, pauses) if pauses else ()
    paused = dict(zip(other.choice(steps, pauses, replace=False), who, strict=True))
    now, found = np.zeros(ranks), []
    calls: list[Floats] = []
    for step in range(steps):
        paces = _paces(rng, ranks, fault, step, uneven)
        paces *= (
            work
            * np.repeat(1 + node_uneven * rng.standard_normal(-(-ranks // of_node)), of_node)[
                :ranks
            ]
        )
        noise = 1 + 0.01 * rng.standard_normal((9, ranks))
        host = now + input_s
        host[late[0]] += late[1]
        ready, free = host + 0.2 * paces * noise[8], now.copy()
        if step in paused:
            ready[paused[step]] += 1.0
        for bucket in range(8):
            ready = ready + 0.05 * paces * noise[bucket]
            begin = np.maximum(ready, free) + _LAUNCH_S
            free = np.full(ranks, begin.max() + transfer_s * (1 + 0.02 * rng.random()))
            found.append((step * 8 + bucket + 1, begin, free))
            calls.append(host + _CALL_S * (bucket + 1))
        now = np.maximum(ready, free) + 0.01 * paces
    all_ranks = tuple(range(ranks))
    return StepJob(
        {all_ranks: found}, float(now.max()), ranks, calls={all_ranks: calls} if called else {}
    )


def _meet(
    rng: np.random.Generator,
    comms: Mapping[tuple[int, ...], list[tuple[int, Floats, Floats]]],
    number: int,
    begin: Floats,
    transfer_s: float,
    over: Floats,
) -> None:
    """Let the ranks of each communicator wait for the last one, then transfer; `over`: by rank."""
    for members, operations in comms.items():
        some = list(members)
        end = begin[some].max() + transfer_s * (1 + 0.02 * rng.random())
        operations.append((number, begin[some], np.full(len(some), end)))
        over[some] = end


def tensor_and_data_parallel(
    size: int = 4, groups: int = 4, steps: int = 24, fault: Fault = Fault(), seed: int = 0,
    layer_s: float = 0.01,
) -> StepJob:  # fmt: skip
    """Each layer ends with an operation of its tensor group; gradients go over the data group."""
    rng = np.random.default_rng(seed)
    ranks = size * groups
    inner = {tuple(range(g * size, (g + 1) * size)): [] for g in range(groups)}  # type: ignore[var-annotated]
    outer = {tuple(range(t, ranks, size)): [] for t in range(size)}  # type: ignore[var-annotated]
    now, layer, bucket = np.zeros(ranks), 0, 0
    free = np.zeros(ranks)
    for step in range(steps):
        paces = _paces(rng, ranks, fault, step, 0.0)
        for place in range(36):
            begin = now + layer_s * paces * (1 + 0.01 * rng.standard_normal(ranks)) + _LAUNCH_S
            layer += 1
            _meet(rng, inner, layer, begin, 0.0008, now)
            if place % 9 == 8 and place > 9:
                bucket += 1
                begin = np.maximum(now, free) + _LAUNCH_S
                _meet(rng, outer, bucket, begin, 0.02, free)
        now = np.maximum(now, free) + 0.005 * paces
    return StepJob({**inner, **outer}, float(now.max()), ranks)


def expert_parallel(
    size: int = 4, groups: int = 4, steps: int = 24, fault: Fault = Fault(), seed: int = 0,
    hot: Fault = Fault(), late: tuple[int, float] = (0, 0.0),
) -> StepJob:  # fmt: skip
    """Each layer computes, sends all to all, computes with experts, and sends back.

    `hot`: ranks whose experts have more to do. `late`: a rank, and how many seconds its host comes
    late to each step.
    """
    rng = np.random.default_rng(seed)
    ranks = size * groups
    inner = {tuple(range(g * size, (g + 1) * size)): [] for g in range(groups)}  # type: ignore[var-annotated]
    world: list[tuple[int, Floats, Floats]] = []
    now, number = np.zeros(ranks), 0
    for step in range(steps):
        paces = _paces(rng, ranks, fault, step, 0.0)
        busy = _paces(rng, ranks, hot, step, 0.0)
        now[late[0]] += late[1]
        for place in range(24):
            work = 0.012 * paces * busy if place % 2 else 0.008 * paces
            begin = now + work * (1 + 0.01 * rng.standard_normal(ranks)) + _LAUNCH_S
            number += 1
            _meet(rng, inner, number, begin, 0.0008, now)
        begin = now + 0.004 * paces + _LAUNCH_S
        now = np.full(ranks, begin.max() + 0.02 * (1 + 0.02 * rng.random()))
        world.append((step + 1, begin, now.copy()))
    # One group of all is not the same communicator as the world.
    everybody = tuple(range(ranks)) if groups > 1 else tuple(reversed(range(ranks)))
    comms = {**inner, everybody: world}
    return StepJob(comms, float(now.max()), ranks, frozenset(inner))


def computed_beside(
    ranks: int = 8, turns: int = 12, steps: int = 40, fault: Fault = Fault(), seed: int = 0,
    transfer_s: float = 0.006,
) -> StepJob:  # fmt: skip
    """All exchange keys again and again while they compute on those of the turn before.

    A rank begins a turn when it has computed, and has what the last turn brought. Then all reduce.
    """
    rng = np.random.default_rng(seed)
    turned: list[tuple[int, Floats, Floats]] = []
    summed: list[tuple[int, Floats, Floats]] = []
    now = np.zeros(ranks)
    for step in range(steps):
        paces = _paces(rng, ranks, fault, step, 0.0)
        begin = now + 0.02 * paces * (1 + 0.01 * rng.standard_normal(ranks)) + _LAUNCH_S
        for turn in range(turns):
            # Now and then others use the network.
            took = transfer_s * (1 + 0.02 * rng.random()) * (3 if rng.random() < 0.1 else 1)
            end = np.full(ranks, begin.max() + took)
            turned.append((step * turns + turn + 1, begin, end))
            computed = begin + 0.01 * paces * (1 + 0.01 * rng.standard_normal(ranks))
            begin = np.maximum(computed, end) + _LAUNCH_S
        now = np.full(ranks, begin.max() + 0.005)
        summed.append((step + 1, begin[::-1], now.copy()))
    members = tuple(range(ranks))
    return StepJob({members: turned, members[::-1]: summed}, float(now.max()), ranks)
