# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of a job's nodes are apart, and the job's times by one clock.

A collective in which all ranks wait for all ends on all of them at about the same moment. If two
nodes saw the end of the same operation, the difference of their clocks' times for it is the
difference of the clocks. Boxes tell such moments only roughly: the last completion
(`last_progress_ns`, exact to a round of the beat thread), the windows of time lines, and the
creation of communicators, in which all ranks also wait for all.
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
from nccl_inspector.model.process import COMM_FOLDED, FUNCS, P2P_FUNCS, Comm, Process

_SYNCHRONISING = frozenset(FUNCS.index(name) for name in SYNCHRONISING)
# The beat thread notes a completion within one round; a killed process may lack its last one.
_NOTED_NS = 1.5e9
# The most time between the creation of a communicator on one rank and on another.
_CREATED_NS = 5e9
_DRIFT = 100e-6  # of the elapsed time: how fast two clocks without a common source drift apart
_WINDOWS = 3  # the last windows of each time line that are used
_FIRM_NS = 5e9  # a clock known to this error needs no time lines

Processes = Sequence[tuple[str, Process]]  # (node, process)


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a node's clock is ahead of the job's common time, and the error of that."""

    ahead_ns: float = 0.0
    error_ns: float = inf  # not known at all


@dataclass(frozen=True, slots=True)
class _Mark:
    """The time of a node's clock at which an operation ended lies between these two."""

    index: int
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class _KindsOfProcess:
    """The kinds of operation that a process had, by its communicators' indices."""

    p2p: frozenset[int]  # here, ranks number their operations differently
    last: Mapping[tuple[int, int], int]  # function, by communicator and last index of a kind


def _kinds(process: Process) -> _KindsOfProcess:
    sends = {key.comm for key in process.keys if key.func in P2P_FUNCS}
    return _KindsOfProcess(
        frozenset(sends | {peer.comm for peer in process.peers}),
        {(key.comm, key.last_index): key.func for key in process.keys},
    )


def _last_mark(process: Process, comm: Comm, kinds: _KindsOfProcess) -> _Mark | None:
    """Return when the last operation of a communicator ended; None if not all wait in it."""
    func = kinds.last.get((comm.index, comm.last_sequence))
    if comm.index in kinds.p2p or not comm.last_progress_ns or func not in _SYNCHRONISING:
        return None
    at_ns = comm.last_progress_ns
    doubt_ns = _NOTED_NS + _DRIFT * max(0, process.facts.beat_ns - at_ns)
    return _Mark(comm.last_sequence, at_ns - doubt_ns, at_ns + doubt_ns)


def _first_mark(process: Process, comm: Comm) -> _Mark | None:
    """Return when a communicator was created; None if that is not known."""
    if not comm.created_ns:
        return None
    doubt_ns = _CREATED_NS + _DRIFT * max(0, process.facts.beat_ns - comm.created_ns)
    return _Mark(0, comm.created_ns - doubt_ns, comm.created_ns + doubt_ns)


def _window_marks(process: Process, wanted: Collection[int]) -> list[tuple[int, _Mark]]:
    """Return marks from the last windows of a process's time lines, each with its communicator."""
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
class _CommTimes:
    """What a node saw of a communicator: its creation, and ends of its operations."""

    created: list[_Mark] = field(default_factory=list)
    ended: list[_Mark] = field(default_factory=list)


Marks = dict[int, dict[str, _CommTimes]]  # by communicator and node


def _marks(processes: Processes) -> Marks:
    """Return the marks of all communicators that span several nodes."""
    found: Marks = defaultdict(lambda: defaultdict(_CommTimes))
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
    """Return the least and the most that the other's clock can be ahead of this one's.

    Operations end in order: each ended no earlier than those before it and no later than those
    after.
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
    """Return for each node the other nodes whose clocks can be compared with its own."""
    found: Edges = defaultdict(list)
    for nodes in marks.values():
        first, *rest = nodes
        for node in rest:
            # Ends of operations go before creations: a clock may have been set in between.
            low, high = _bounds(nodes[first].ended, nodes[node].ended)
            if not (isfinite(low) and isfinite(high)):
                low, high = _bounds(nodes[first].created, nodes[node].created)
            if isfinite(low) and isfinite(high):
                # If the bounds contradict each other, the error is as large as the contradiction.
                apart = Clock((low + high) / 2, max(abs(high - low) / 2, _NOTED_NS))
                found[first].append((node, apart))
                found[node].append((first, Clock(-apart.ahead_ns, apart.error_ns)))
    return found


def _solve(nodes: Sequence[str], edges: Edges) -> dict[str, Clock]:
    """Return the clock of each node, compared along the chain of nodes with the least error.

    The chains begin at the node that can be compared with most others. A node that no chain reaches
    has an unknown clock.
    """
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
    """Return the clock of each node, as far as operations that nodes have in common tell it.

    The common time is the median of the clocks. The clock of a node that has no operation in common
    with others is unknown.
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
    """Return the processes with all single times in common time; time lines stay as they are.

    A node whose clock is unknown keeps its own times.
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
    """Return for how long, at least, each process gave no sign of life while another still did.

    `processes` are in common time (`in_common_time`). Beats on one node have the same clock. Beats
    of different nodes are compared as well as their clocks are known, or not at all if a clock is
    unknown. `until_ns`: later beats do not count, because Slurm was ending the job.
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
