# SPDX-License-Identifier: Apache-2.0
"""Choose which time lines to unpack: a large job has 65,000, and its series need far fewer.

These are chosen: the kinds of operation that took longest, and some of each transport class. Of a
large communicator, an even choice of ranks is taken, together with the rank whose median is lowest,
because T is the lowest time of the ranks, and the same rank may always be the last.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.line_columns import Columns, columns_of, columns_of_packed
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import FUNCS, Process
from nccl_inspector.summary.packed_tables import Kind, PackedLines

LINES_MAX = 2048
KINDS_MAX = 64
KINDS_OF_CLASS = 4
RANKS_MIN = 16  # for a kind, if it has so many

# A process by its node and its own name.
Where = tuple[str, str]


def _kinds(comm: JoinedComm) -> Iterator[tuple[Kind, int]]:
    """Yield the kinds of a communicator, each with the total time in it (ns)."""
    busy: Counter[Kind] = Counter()
    for member in comm.members.values():
        for key in member.keys:
            if key.ops:
                busy[comm.id, key.func, key.size_class] += key.busy_ns
    yield from busy.items()


def _chosen(
    comms: Sequence[JoinedComm], transports: Mapping[int, str]
) -> list[tuple[Kind, JoinedComm]]:
    """Return kinds of operation; first those of each class that took longest."""
    found = sorted(
        ((busy, kind, comm) for comm in comms if comm.id for kind, busy in _kinds(comm)),
        key=lambda one: (-one[0], one[1]),
    )
    of_class: Counter[str] = Counter()
    first: list[tuple[Kind, JoinedComm]] = []
    rest: list[tuple[Kind, JoinedComm]] = []
    for _, kind, comm in found:
        transport = transports.get(comm.id, "")
        of_class[transport] += 1
        (first if of_class[transport] <= KINDS_OF_CLASS else rest).append((kind, comm))
    return (first + rest)[:KINDS_MAX]


def _spread(ranks: Sequence[int], most: int, wanted: Sequence[int]) -> list[int]:
    """Return about `most` of the ranks, evenly chosen; those in `wanted` are always included."""
    if len(ranks) <= most:
        return list(ranks)
    step = len(ranks) / most
    some = {ranks[int(number * step)] for number in range(most)}
    return sorted(some | (set(wanted) & set(ranks)))


def _fastest(comms: Sequence[JoinedComm]) -> dict[Kind, int]:
    """Return by kind the rank with the lowest median, whose time has the least waiting in it."""
    return {
        (comm.id, FUNCS.index(one.func), one.size_class): min(
            one.medians, key=lambda rank: (one.medians[rank], rank)
        )
        for comm in comms
        if comm.id
        for one in comm.figures
        if one.waits
    }


def choose_lines(
    comms: Sequence[JoinedComm], transports: Mapping[int, str]
) -> dict[Where, set[Kind]]:
    """Return which lines to unpack, by process."""
    chosen = _chosen(comms, transports)
    fastest = _fastest(comms)
    wanted: dict[Where, set[Kind]] = defaultdict(set)
    each = max(RANKS_MIN, LINES_MAX // max(len(chosen), 1))
    for kind, comm in chosen:
        must = [fastest[kind]] if kind in fastest else []
        for rank in _spread(sorted(comm.members), each, must):
            place = comm.members[rank].place
            wanted[place.node, place.process].add(kind)
    return wanted


def unpack_columns(
    process: Process, member: int, kinds: set[Kind], refused: Counter[str]
) -> list[Columns]:
    """Return a process's lines of these kinds; invalid lines are counted by reason in `refused`."""
    lines = process.lines
    if not isinstance(lines, PackedLines):
        return [
            columns_of(one, member)
            for one in lines
            if (one.comm_id, one.func, one.size_class) in kinds
        ]
    try:
        return [columns_of_packed(data, member) for data in lines.packed_of_kinds(kinds)]
    except RefusedError as err:
        refused[f"time lines: {err}"] += 1
        return []
