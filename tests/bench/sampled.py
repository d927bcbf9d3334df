# SPDX-License-Identifier: Apache-2.0
"""Samples and unions of a job of tensor parallel nodes, 8 ranks each, for the report's figures.

A step is ten blocks forward and ten backward, each with an AllReduce inside of the node, two
ReduceScatters over all nodes meanwhile and an AllGather at its end. One rank takes 5 % longer than
the others. Only the bursts are played, all ranks at once.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.box.layout import UNION_WINDOWS
from nccl_inspector.box.sample_table import SampleTable, samples_of_each, thin
from nccl_inspector.model.process import FUNCS, SampleKind, Union, UnionWindow, clocks_of
from nccl_inspector.model.sample_columns import MANTISSA_BITS

LOCAL = 8
WINDOW_S = 10
LATE_SHARE = 0.05
_MS = 1_000_000
_BLOCKS = 10
_FORWARD_NS, _BACKWARD_NS, _UPDATE_NS = 10 * _MS, 20 * _MS, 5 * _MS
_NOISE = 0.01
_STEP_NS = _BLOCKS * (_FORWARD_NS + _BACKWARD_NS) + 60 * _MS  # about
_SKEW_NS = 2000  # between the ends of ranks
# Communicator (0: in the node, 1: over nodes), function, bytes, T in ns.
_REDUCE = (0, "AllReduce", 1 << 25, 600_000)
_SCATTER = (1, "ReduceScatter", 1 << 27, 12 * _MS)
_GATHER = (1, "AllGather", 1 << 27, 15 * _MS)
_KINDS = (_REDUCE, _SCATTER, _GATHER)
_NUMBERS = (2 * _BLOCKS, 2, 1)  # of each kind in a step

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Played:
    """Operations by row: the kind and number of each, begin and end by node and local rank."""

    kind: Ints
    number: Ints
    begin: Ints  # rows x nodes x LOCAL, true Unix time in ns
    end: Ints


class _Step:
    """The streams of all ranks, and what was played of a burst."""

    def __init__(self, nodes: int, start_ns: float, late: tuple[int, int], seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self.ready = np.full((nodes, LOCAL), start_ns)
        self._free = np.full((nodes, LOCAL), start_ns)
        self._pace = np.exp(self._chance.normal(0, 0.002, (nodes, LOCAL)))
        self._pace[late] = 1 + LATE_SHARE
        self.rows: list[tuple[int, int, Floats, Floats]] = []

    def compute(self, gap_ns: float) -> None:
        noise = np.exp(self._chance.normal(0, _NOISE, self.ready.shape))
        self.ready = self.ready + gap_ns * self._pace * noise

    def run(self, place: int, number: int, *, waited_for: bool = True) -> None:
        inside, _, _, took_ns = _KINDS[place]
        begin = np.maximum(self.ready, self._free) if inside else self.ready
        latest = begin.max(axis=0 if inside else 1, keepdims=True)
        took = took_ns * (1 + self._chance.exponential(0.01, latest.shape))
        end = latest + took + self._chance.uniform(0, _SKEW_NS, begin.shape)
        if inside:
            self._free = end + 3000
        if waited_for:
            self.ready = end
        self.rows.append((place, number, begin, end))


def _play_step(step: _Step, number: int) -> None:
    counts = [number * many for many in _NUMBERS]

    def run(place: int, *, waited_for: bool = True) -> None:
        counts[place] += 1
        step.run(place, counts[place], waited_for=waited_for)

    for _ in range(_BLOCKS):
        step.compute(_FORWARD_NS)
        run(0)
    for block in range(_BLOCKS):
        step.compute(_BACKWARD_NS)
        run(0)
        if block in (_BLOCKS // 2, _BLOCKS - 1):
            run(1, waited_for=False)
    step.compute(_UPDATE_NS)
    run(2)


@dataclass(frozen=True, slots=True)
class Bursts:
    """How long a job runs, and which times of it are sampled: see model.Samples."""

    start_s: int
    wall_s: int
    length_bits: int
    period_bits: int

    def starts_ns(self) -> Iterator[int]:
        """Give the begin of each burst."""
        first, last = self.start_s * 10**9, (self.start_s + self.wall_s) * 10**9
        period = 1 << self.period_bits
        yield from range(-(-first // period) * period, last, period)


def play(nodes: int, bursts: Bursts, late: tuple[int, int]) -> Played:
    """Play the bursts of all ranks; `late`: node and local rank of who takes longer."""
    rows: list[tuple[int, int, Floats, Floats]] = []
    zero = bursts.start_s * 10**9
    for start_ns in bursts.starts_ns():
        # Floats are of less than an hour or two: nanoseconds remain.
        number = max((start_ns - zero) // _STEP_NS - 1, 0)
        step = _Step(nodes, float(number * _STEP_NS), late, number + 1)
        until = start_ns - zero + (1 << bursts.length_bits)
        while float(step.ready.min()) < until:
            _play_step(step, number)
            number += 1
        rows += [
            row for row in step.rows
            if row[3].max() > start_ns - zero - _MS and row[3].min() < until + _MS
        ]  # fmt: skip
    kinds, numbers, begins, ends = zip(*rows, strict=True)
    return Played(
        np.array(kinds), np.array(numbers),
        np.stack(begins).astype(np.int64) + zero, np.stack(ends).astype(np.int64) + zero,
    )  # fmt: skip


def _unions(busy: float, bursts: Bursts, node: int, local: int) -> tuple[Union, ...]:
    """Return how long the GPU of a process was in operations, window by window."""
    chance = np.random.default_rng((node, local))
    shares = np.clip(busy * chance.normal(1, 0.02, UNION_WINDOWS), 0, 1)
    ahead_ns = (1_743_164_062_500 + node * 7919 + local) << 10  # its clock began at boot
    drift = np.cumsum(chance.integers(-2, 8, UNION_WINDOWS)) * 1024
    first = bursts.start_s // WINDOW_S * WINDOW_S
    operations = chance.integers(620, 660, UNION_WINDOWS).tolist()
    busy_ns = (shares * WINDOW_S * 1e9).astype(np.int64).tolist()
    windows = [
        UnionWindow(first + WINDOW_S * at, operations[at], 0, busy_ns[at], ahead_ns + more)
        for at, more in enumerate(drift.tolist())
    ]
    return (Union(0, WINDOW_S, tuple(windows)),)


def _kinds(node: int, local: int, nodes: int, ids: tuple[int, int]) -> tuple[SampleKind, ...]:
    found = []
    for inside, func, size, _ in _KINDS:
        nranks, nnodes, rank = (nodes, nodes, node) if inside else (LOCAL, 1, local)
        found.append(
            SampleKind(
                ids[inside], nranks, nnodes, rank, 0, FUNCS.index(func), size.bit_length() - 1,
                2, 3, 1_785_679_200_000_000_000 + inside, 0, "dp" if inside else "tp",
            )
        )  # fmt: skip
    return tuple(found)


def samples_of(
    played: Played, bursts: Bursts, node: int, local: int, ids: tuple[int, int]
) -> tuple[SampleTable, tuple[Union, ...]]:
    """Return the samples that the collection keeps of a process, and its unions.

    `ids`: of its communicator inside of the node, and of that over nodes.
    """
    nodes = played.begin.shape[1]
    begin, end = played.begin[:, node, local], played.end[:, node, local]
    # The ReduceScatters are beside others.
    busy_ns = int((end - begin)[played.kind != _KINDS.index(_SCATTER)].sum())
    sampled_ns = len(list(bursts.starts_ns())) * (1 << bursts.length_bits)
    unions = _unions(busy_ns / sampled_ns, bursts, node, local)
    clocks = clocks_of(unions)
    error_ns = int(np.random.default_rng(node).normal(0, 200_000))  # of the node's clock
    begin, end = begin + error_ns, end + error_ns
    mask = (1 << bursts.period_bits) - 1
    here = np.flatnonzero((end & mask) < (1 << bursts.length_bits))
    here = here[np.argsort(begin[here], kind="stable")]
    windows = np.array([window.ahead_ns for window in unions[0].windows])
    since = np.array([window.start_s * 10**9 for window in unions[0].windows])
    ahead = windows[np.searchsorted(since[1:], begin[here], side="right")]
    kind = played.kind[here]
    mantissa = [size >> size.bit_length() - 1 - MANTISSA_BITS for _, _, size, _ in _KINDS]
    table = SampleTable(
        kinds=_kinds(node, local, nodes, ids),
        clocks=clocks,
        length_bits=bursts.length_bits,
        period_bits=bursts.period_bits,
        lost=0,
        kind=array("H", kind.tolist()),
        index=array("I", played.number[here].tolist()),
        peer=array("H", [0] * len(here)),
        start_ns=array("q", (begin[here] - ahead).tolist()),
        time_ns=array("q", (end[here] - begin[here]).tolist()),
        queued_us=array("I", [40 + at % 50 for at in range(len(here))]),
        mantissa=array("H", [mantissa[one] for one in kind.tolist()]),
        flags=array("B", [0] * len(here)),
    )
    return thin(table, samples_of_each(nodes * LOCAL)), unions
