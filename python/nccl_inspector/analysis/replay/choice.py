# SPDX-License-Identifier: Apache-2.0
"""Whose records are read where a job has too many processes to read those of all.

How long a GPU was in operations is known of every process, for the whole job: who makes the others
wait is in them for a shorter time than they are. So the nodes of those who were in them least are
read, with the nodes that share a communicator with them, and others spread evenly as their peers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, medians_of_others
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import COMM_FOLDED, Process

PROCESSES_MAX = 384  # that are read
_SUSPECTS_MAX = 24  # nodes
_SUSPECTS_SHARE = 0.6  # of those that are read, with the nodes beside them
_NEAR_MAX = 16  # nodes of a communicator whose others are read, too
_BUSY_MIN = 0.5  # of the processes, of which it must be known how busy they were


@dataclass(frozen=True, slots=True)
class Choice:
    """The processes whose records are read. `left_out`: by communicator's id, how many are not."""

    members: tuple[int, ...]
    some: bool = False  # not of all that have records
    left_out: Mapping[int, int] = field(default_factory=dict)
    by_busy: bool = True  # the others were looked at, too: how busy their GPUs were


def choose(placed: Sequence[tuple[str, Process]]) -> Choice:
    """Return whose records are read, of processes with their nodes."""
    having = [member for member, (_, one) in enumerate(placed) if one.samples is not None]
    if len(having) <= PROCESSES_MAX:
        return Choice(tuple(having))
    comm, member, ids = _memberships(placed, having)
    busy = np.array([_busy(process) for _, process in placed])
    nodes = _NodeChoice(placed, having, comm, member)
    chosen = nodes.choose(_suspects(comm, member, busy))
    out = ~np.isin(member, list(chosen))
    left_out = np.bincount(comm[out], minlength=len(ids)).tolist()
    return Choice(
        tuple(sorted(chosen)),
        True,
        {one: count for one, count in zip(ids, left_out, strict=True) if count},
        float(np.mean(~np.isnan(busy[having]))) >= _BUSY_MIN,
    )


def _busy(process: Process) -> float:
    """Return the share of its life in which its busiest GPU was in operations; NaN: not known."""
    if process.busy_share is not None:
        return process.busy_share
    try:
        return max((union.busy_share for union in process.unions), default=np.nan)
    except RefusedError:
        return np.nan


def _memberships(
    placed: Sequence[tuple[str, Process]], having: Sequence[int]
) -> tuple[Ints, Ints, list[int]]:
    """Return communicator and process of each membership, and the communicators' ids."""
    numbers: dict[int, int] = {}
    comms, members = [], []
    for member in having:
        own = {one.id for one in placed[member][1].comms if one.state != COMM_FOLDED}
        comms += [numbers.setdefault(one, len(numbers)) for one in own]
        members += [member] * len(own)
    return np.array(comms, np.int64), np.array(members, np.int64), list(numbers)


def _suspects(comm: Ints, member: Ints, busy: Floats) -> Iterator[int]:
    """Give the processes that were least in operations beside the others of a communicator.

    Communicators of one size are asked together, and each size in turn: one may be of ranks that do
    different work.
    """
    known = np.flatnonzero(~np.isnan(busy[member]))
    if not len(known):
        return
    comm, member = comm[known], member[known]
    size = np.bincount(comm)[comm]
    less = medians_of_others(comm, busy[member]) - busy[member]
    ranked = []
    for one in np.unique(size[size > 1]).tolist():
        mine = np.flatnonzero((size == one) & (less > 0))
        ranked.append(member[mine[np.argsort(-less[mine], kind="stable")]].tolist())
    for place in range(max(map(len, ranked), default=0)):
        yield from (one[place] for one in ranked if place < len(one))


class _NodeChoice:
    """The nodes of a job: all processes of one are read, or none."""

    def __init__(
        self, placed: Sequence[tuple[str, Process]], having: Sequence[int], comm: Ints, member: Ints
    ) -> None:
        numbers: dict[str, int] = {}
        self._node_of = np.array(
            [numbers.setdefault(node, len(numbers)) for node, _ in placed], np.int64
        )
        self._members: list[list[int]] = [[] for _ in numbers]
        for one in having:
            self._members[self._node_of[one]].append(one)
        # By communicator its nodes, and by node its communicators that have few.
        keys = np.unique(comm * len(numbers) + self._node_of[member])
        self._comm, self._node = keys // len(numbers), keys % len(numbers)
        self._bounds = np.searchsorted(self._comm, np.arange(int(comm.max(initial=0)) + 2))
        self._few: list[list[int]] = [[] for _ in numbers]
        few = np.diff(self._bounds)[self._comm] <= _NEAR_MAX
        for which, node in zip(self._comm[few].tolist(), self._node[few].tolist(), strict=True):
            self._few[node].append(which)

    def _near(self, node: int) -> list[int]:
        """Return a node and those that share a small communicator with it."""
        beside = [self._node[self._bounds[one] : self._bounds[one + 1]] for one in self._few[node]]
        return [node, *sorted(set(np.concatenate(beside).tolist()) - {node})] if beside else [node]

    def choose(self, suspects: Iterator[int]) -> set[int]:
        """Return the processes to read."""
        chosen: dict[int, None] = {}  # nodes
        many = 0

        def add(nodes: Sequence[int], most: float) -> None:
            nonlocal many
            fresh = [one for one in nodes if one not in chosen]
            size = sum(len(self._members[one]) for one in fresh)
            if many + size > most and len(fresh) > 1:
                return add(nodes[:1], most)
            if fresh and many + size <= most:
                chosen.update(dict.fromkeys(fresh))
                many += size
            return None

        add(self._near(int(self._node_of[0])), PROCESSES_MAX)  # of rank 0, which logs and saves
        told: dict[int, None] = {}
        for one in suspects:
            told.setdefault(int(self._node_of[one]))
            if len(told) == _SUSPECTS_MAX:
                break
        for node in told:
            add(self._near(node), _SUSPECTS_SHARE * PROCESSES_MAX)
        count = len(self._members)
        steps = max(count.bit_length(), 1)
        # Evenly, however many fit: every 2^k-th, then those in the middle between.
        for node in sorted(range(count), key=lambda one: _turned(one, steps)):
            if many < PROCESSES_MAX:
                add(self._near(node), PROCESSES_MAX)
        return {one for node in chosen for one in self._members[node]}


def _turned(number: int, bits: int) -> int:
    """Return a number with its bits in the opposite order."""
    return int(f"{number:0{bits}b}"[::-1], 2)
