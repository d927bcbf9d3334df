# SPDX-License-Identifier: Apache-2.0
"""Which time lines are unpacked: a large job has 65,000, and its series need far fewer.

The kinds of operation that took longest, some of each transport class, and of a large
communicator a spread of its ranks with the one whose median is least: T is the least time of
theirs, and one rank may always be the last.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.line_columns import Columns, columns_of, columns_of_packed
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import FUNCS, Process
from nccl_inspector.summary.lazy_lines import Kind, PackedLines

LINES_MAX = 2048
KINDS_MAX = 64
KINDS_OF_CLASS = 4
RANKS_MIN = 16  # of a kind, where it has so many

# A process by its node and its own name.
Where = tuple[str, str]


def _kinds(comm: JoinedComm) -> Iterator[tuple[Kind, int]]:
    """Yield the kinds of a communicator that is one, with what they took in all, ns."""
    busy: Counter[Kind] = Counter()
    for member in comm.members.values():
        for key in member.keys:
            if key.ops:
                busy[comm.id, key.func, key.size_class] += key.busy_ns
    yield from busy.items()


def _chosen(
    comms: Sequence[JoinedComm], transports: Mapping[int, str]
) -> list[tuple[Kind, JoinedComm]]:
    """Return kinds of operation, those of each class that took longest first."""
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
    """Return at most so many of them, evenly from first to last; those wanted are among them."""
    if len(ranks) <= most:
        return list(ranks)
    step = len(ranks) / most
    some = {ranks[int(number * step)] for number in range(most)}
    return sorted(some | (set(wanted) & set(ranks)))


def _fastest(comms: Sequence[JoinedComm]) -> dict[Kind, int]:
    """Return the rank with the least median by kind: its time has the least waiting in it."""
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
    """Return which lines of which processes to unpack."""
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
    """Return a process's lines of those kinds; what is none is counted by reason."""
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
