# SPDX-License-Identifier: Apache-2.0
"""Choose whose records to read if a job has too many processes to read all.

How long a GPU was in operations is known for every process and the whole job. A process that makes
others wait is in operations for a shorter time than they are. So these are read: the nodes of the
processes that were in operations least, the nodes that share a communicator with them, and other
nodes evenly spread, as their peers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, medians_of_others
from nccl_inspector.analysis.replay.records import RecordSource
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import COMM_FOLDED, Process

PROCESSES_MAX = 384  # processes that are read
_SUSPECTS_MAX = 24  # nodes of suspects
_SUSPECTS_SHARE = 0.6  # share of the processes read that may be suspects and their neighbours
_NEAR_MAX = 16  # a communicator on at most this many nodes is read as a whole
_BUSY_MIN = 0.5  # share of the processes whose busy time must be known


@dataclass(frozen=True, slots=True)
class Choice:
    """The processes whose records are read.

    `left_out`: how many are not read, by communicator's id.
    """

    members: tuple[int, ...]
    some: bool = False  # True: not all processes with records are read
    left_out: Mapping[int, int] = field(default_factory=dict)
    by_busy: bool = True  # the others were compared by how busy their GPUs were

    def sources(self, placed: Sequence[tuple[str, Process]]) -> list[RecordSource]:
        """Return the records of the chosen processes."""
        return [
            RecordSource(member, samples)
            for member in self.members
            if (samples := placed[member][1].samples) is not None
        ]


def choose(placed: Sequence[tuple[str, Process]]) -> Choice:
    """Return whose records to read; `placed` are the job's processes with their nodes."""
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
    """Return the share of its life that its busiest GPU was in operations; NaN: not known."""
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
    """Yield the processes that were in operations least, compared with others of a communicator.

    Communicators of one size are ranked together, and the sizes take turns, because the ranks of
    one size may do different work.
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
    """The nodes of a job; of a node either all processes are read or none."""

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
        # The nodes of each communicator, and for each node its communicators with few nodes.
        keys = np.unique(comm * len(numbers) + self._node_of[member])
        self._comm, self._node = keys // len(numbers), keys % len(numbers)
        self._bounds = np.searchsorted(self._comm, np.arange(int(comm.max(initial=0)) + 2))
        self._few: list[list[int]] = [[] for _ in numbers]
        few = np.diff(self._bounds)[self._comm] <= _NEAR_MAX
        for which, node in zip(self._comm[few].tolist(), self._node[few].tolist(), strict=True):
            self._few[node].append(which)

    def _near(self, node: int) -> list[int]:
        """Return a node and the nodes that share a small communicator with it."""
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
        # Evenly spread, however many fit: every 2^k-th node, then those halfway between, and so on.
        for node in sorted(range(count), key=lambda one: _turned(one, steps)):
            if many < PROCESSES_MAX:
                add(self._near(node), PROCESSES_MAX)
        return {one for node in chosen for one in self._members[node]}


def _turned(number: int, bits: int) -> int:
    """Return the number with its bits in reverse order."""
    return int(f"{number:0{bits}b}"[::-1], 2)
