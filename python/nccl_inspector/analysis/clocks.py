# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of a job's nodes are apart, and its times by one clock.

A collective in which all ranks wait for all ends on all of them at about the same moment. So where
two nodes have seen the end of the same operation of a communicator, the difference of what their
clocks said then is the difference of the clocks. Boxes tell such moments roughly: the last
completion (`last_progress_ns`, within a round of the beat thread), the windows of time lines,
and the creation of communicators, which is a barrier too.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from math import inf, isfinite
from statistics import median

from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import COMM_FOLDED, FUNCS, P2P, Comm, Process

_SYNCHRONISING = frozenset(FUNCS.index(name) for name in SYNCHRONISING)
_P2P = frozenset(FUNCS.index(name) for name in P2P)
# The beat thread notes a completion within a round, and a killed process may lack its last one.
_NOTED_NS = 1.5e9
# From the creation of a communicator on one rank to that on another.
_CREATED_NS = 5e9
_DRIFT = 100e-6  # of the time since: two clocks without a common source go apart that fast
_WINDOWS = 3  # of each time line, the last ones
_FIRM_NS = 5e9  # a clock that is known so well needs no time lines

Processes = Sequence[tuple[str, Process]]  # each with its node


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock: so far ahead of the job's common time, give or take the error."""

    ahead_ns: float = 0.0
    error_ns: float = inf  # not known at all


@dataclass(frozen=True, slots=True)
class _Mark:
    """An operation of a communicator ended between these times of a node's clock."""

    index: int
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What kinds of operation a process had, by its communicators' indices."""

    p2p: frozenset[int]  # in these an index is not the same operation on all ranks
    last: Mapping[tuple[int, int], int]  # function of the last operation of a kind, by its index


def _kinds(process: Process) -> _Kinds:
    sends = {key.comm for key in process.keys if key.func in _P2P}
    return _Kinds(
        frozenset(sends | {peer.comm for peer in process.peers}),
        {(key.comm, key.last_index): key.func for key in process.keys},
    )


def _last_mark(process: Process, comm: Comm, kinds: _Kinds) -> _Mark | None:
    """Return when the last operation of a communicator ended here; None: not all wait in it."""
    func = kinds.last.get((comm.index, comm.last_sequence))
    if comm.index in kinds.p2p or not comm.last_progress_ns or func not in _SYNCHRONISING:
        return None
    at_ns = comm.last_progress_ns
    doubt_ns = _NOTED_NS + _DRIFT * max(0, process.facts.beat_ns - at_ns)
    return _Mark(comm.last_sequence, at_ns - doubt_ns, at_ns + doubt_ns)


def _first_mark(process: Process, comm: Comm) -> _Mark | None:
    """Return when a communicator was created here."""
    if not comm.created_ns:
        return None
    doubt_ns = _CREATED_NS + _DRIFT * max(0, process.facts.beat_ns - comm.created_ns)
    return _Mark(0, comm.created_ns - doubt_ns, comm.created_ns + doubt_ns)


def _window_marks(process: Process, wanted: Collection[int]) -> list[tuple[int, _Mark]]:
    """Return what the last windows of a process's time lines tell, each with its communicator."""
    found = []
    try:
        for line in process.lines:
            if line.comm_id not in wanted or line.func not in _SYNCHRONISING:
                continue
            for window in islice(reversed(line.windows), _WINDOWS):
                low = window.start_s * 1e9
                high = (window.start_s + line.window_s) * 1e9 + window.late_ms * 1e6
                if 0 < window.first_index <= window.last_index:
                    found.append((line.comm_id, _Mark(window.first_index, low, high)))
                    found.append((line.comm_id, _Mark(window.last_index, low, high)))
    except RefusedError:
        return []
    return found


@dataclass(slots=True)
class _Seen:
    """What a node saw of a communicator: its creation, and ends of its operations."""

    created: list[_Mark] = field(default_factory=list)
    ended: list[_Mark] = field(default_factory=list)


Marks = dict[int, dict[str, _Seen]]  # by communicator and node


def _marks(processes: Processes) -> Marks:
    """Return the marks of all communicators that lie on several nodes."""
    found: Marks = defaultdict(lambda: defaultdict(_Seen))
    for node, process in processes:
        kinds = _kinds(process)
        for comm in process.comms:
            if comm.state == COMM_FOLDED or comm.nranks < 2:
                continue
            seen = found[comm.id][node]
            created = _first_mark(process, comm)
            seen.created += [created] if created else []
            ended = _last_mark(process, comm, kinds)
            seen.ended += [ended] if ended else []
    return {comm: nodes for comm, nodes in found.items() if len(nodes) > 1}


def _bounds(one: Sequence[_Mark], other: Sequence[_Mark]) -> tuple[float, float]:
    """Return between what the other's clock is ahead of the one's.

    Operations end in order: one ended no earlier than those before it and no later than those
    after it.
    """

    def low(marks: Sequence[_Mark], index: int) -> float:
        return max((mark.low_ns for mark in marks if mark.index <= index), default=-inf)

    def high(marks: Sequence[_Mark], index: int) -> float:
        return min((mark.high_ns for mark in marks if mark.index >= index), default=inf)

    indices = {mark.index for mark in (*one, *other)}
    lowest = max((low(other, at) - high(one, at) for at in indices), default=-inf)
    highest = min((high(other, at) - low(one, at) for at in indices), default=inf)
    return lowest, highest


Edges = dict[str, list[tuple[str, Clock]]]


def _edges(marks: Marks) -> Edges:
    """Return for each node others whose clocks can be compared with its own."""
    found: Edges = defaultdict(list)
    for nodes in marks.values():
        first, *rest = nodes
        for node in rest:
            # A clock may have been set meanwhile: the latest that is known goes before the first.
            low, high = _bounds(nodes[first].ended, nodes[node].ended)
            if not (isfinite(low) and isfinite(high)):
                low, high = _bounds(nodes[first].created, nodes[node].created)
            if isfinite(low) and isfinite(high):
                # Where the bounds contradict each other they are as wrong as they are apart.
                apart = Clock((low + high) / 2, max(abs(high - low) / 2, _NOTED_NS))
                found[first].append((node, apart))
                found[node].append((first, Clock(-apart.ahead_ns, apart.error_ns)))
    return found


def _solve(nodes: Sequence[str], edges: Edges) -> dict[str, Clock]:
    """Return the clocks beside that of the node that can be compared with most others."""
    start = max(nodes, key=lambda node: len(edges.get(node, ())))
    found: dict[str, Clock] = {}
    heap = [(0.0, start, 0.0)]
    while heap:
        error_ns, node, ahead_ns = heappop(heap)
        if node in found:
            continue
        found[node] = Clock(ahead_ns, error_ns)
        for other, apart in edges.get(node, ()):
            if other not in found:
                heappush(heap, (error_ns + apart.error_ns, other, ahead_ns + apart.ahead_ns))
    usual_ns = median(clock.ahead_ns for clock in found.values())
    return {
        node: replace(clock, ahead_ns=clock.ahead_ns - usual_ns)
        if (clock := found.get(node))
        else Clock()
        for node in nodes
    }


def read_clocks(processes: Processes) -> dict[str, Clock]:
    """Return the clock of each node, as far as the operations that nodes have in common tell it.

    The common time is that of the middle one of the clocks. A node that has no operation in common
    with the others has a clock of which nothing is known.
    """
    nodes = list(dict.fromkeys(node for node, _ in processes))
    if len(nodes) < 2:
        return dict.fromkeys(nodes, Clock(0.0, 0.0))
    marks = _marks(processes)
    found = _solve(nodes, _edges(marks))
    vague = {node for node, clock in found.items() if clock.error_ns > _FIRM_NS}
    if not vague:
        return found
    for node, process in processes:
        p2p = _kinds(process).p2p
        plain = {one.id for one in process.comms if one.id in marks and one.index not in p2p}
        for comm_id, mark in _window_marks(process, plain):
            marks[comm_id][node].ended.append(mark)
    return _solve(nodes, _edges(marks))


def in_common_time(processes: Processes, clocks: Mapping[str, Clock]) -> list[Process]:
    """Return the processes with all their single times by one clock; time lines stay as they are.

    A node of which nothing is known keeps its own.
    """

    def moved(at_ns: int, clock: Clock) -> int:
        return max(0, at_ns - round(clock.ahead_ns)) if at_ns else 0

    found = []
    for node, process in processes:
        clock = clocks.get(node, Clock())
        if not clock.ahead_ns:
            found.append(process)
            continue
        comms = tuple(
            replace(
                comm,
                created_ns=moved(comm.created_ns, clock),
                destroyed_ns=moved(comm.destroyed_ns, clock),
                last_progress_ns=moved(comm.last_progress_ns, clock),
            )
            for comm in process.comms
        )
        facts = replace(process.facts, beat_ns=moved(process.facts.beat_ns, clock))
        found.append(replace(process, facts=facts, comms=comms))
    return found


def silences_ns(
    processes: Processes, clocks: Mapping[str, Clock], until_ns: float = inf
) -> list[float]:
    """Return for how long at least each process gave no sign of life while another still did.

    `processes` are in common time (`in_common_time`). Beats of one node are by one clock. Those of
    others are compared as well as their clocks are known, and not at all where nothing is known.
    `until_ns`: what came after does not count, because Slurm was ending the job.
    """
    of_node: dict[str, float] = defaultdict(float)
    last_ns, last_error_ns = 0.0, 0.0
    for node, process in processes:
        beat_ns, error_ns = float(process.facts.beat_ns), clocks.get(node, Clock()).error_ns
        of_node[node] = max(of_node[node], beat_ns)
        if beat_ns - error_ns > last_ns - last_error_ns:
            last_ns, last_error_ns = beat_ns, error_ns
    found = []
    for node, process in processes:
        own_ns = min(of_node[node], until_ns) - process.facts.beat_ns
        error_ns = clocks.get(node, Clock()).error_ns
        others_ns = min(last_ns - last_error_ns, until_ns) - process.facts.beat_ns - error_ns
        found.append(max(0.0, own_ns, others_ns))
    return found
