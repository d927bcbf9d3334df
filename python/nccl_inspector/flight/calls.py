# SPDX-License-Identifier: Apache-2.0
"""The calls of all ranks, by process group: collectives by their number, Sends and Recvs by pair.

Two dumps are joined by the group and by PyTorch's own number of the collective in it. Ranks do not
record the same number of operations, so `record_id` compares only within a rank.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_inspector.flight.dump import COMPLETED, STARTED, Dump, Group, Record

# Their dumps do not tell states: `retired` is all there is, and an operation that was given up has
# it, too.
_BLIND = frozenset({"gloo", "mpi", "ucc"})
DEFAULT_GROUP = "default_pg"
_COALESCED = "coalesced"
# Collectives whose tensors have the same size on all ranks.
_EQUAL = frozenset(
    {
        "all_reduce", "allreduce", "allreduce_coalesced", "broadcast", "reduce", "all_gather",
        "_all_gather_base", "all_gather_into_tensor_coalesced", "reduce_scatter",
        "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    }
)  # fmt: skip


class What(NamedTuple):
    """What a rank called, as far as it must be the same on all ranks of a collective."""

    op: str
    dtypes: str = ""
    input_elements: int = -1
    output_elements: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part in an operation; of several records of a coalesced one the last counts."""

    rank: int
    records: tuple[Record, ...]

    @property
    def last(self) -> Record:
        """The record that tells the state."""
        return self.records[-1]

    @property
    def is_blind(self) -> bool:
        """Whether the backend does not tell whether the operation was started or completed."""
        return self.last.backend in _BLIND

    @property
    def is_finished(self) -> bool:
        """Whether the operation ended, or was given up if the backend does not tell."""
        return self.last.state == COMPLETED or (self.is_blind and self.last.retired)

    @property
    def is_started(self) -> bool:
        """Whether the GPU is in the operation."""
        return self.last.state == STARTED

    @property
    def what(self) -> tuple[What, ...]:
        """What must be the same on all ranks."""
        return tuple(_what(one) for one in self.records)


def _what(record: Record) -> What:
    if record.op not in _EQUAL:
        return What(record.op)
    return What(record.op, record.dtypes, record.input_elements, record.output_elements)


@dataclass(frozen=True, slots=True)
class RankDump:
    """The dump of one rank; `written_ns` is when its file was written, 0: not known."""

    rank: int
    dump: Dump
    written_ns: int = 0

    @property
    def has_wrapped(self) -> bool:
        """Whether the oldest records were overwritten."""
        return bool(self.dump.records) and self.dump.records[0].record_id > 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """All dumps, the ranks whose dump cannot be read, and all ranks of the job."""

    dumps: Mapping[int, RankDump]
    unreadable: frozenset[int]
    world: frozenset[int]

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that left no dump."""
        return tuple(sorted(self.world - self.unreadable - self.dumps.keys()))


@dataclass(slots=True)
class Pair:
    """What one rank sends to another: the Sends and the Recvs, each in the order of the calls."""

    sends: list[Call] = field(default_factory=list)
    recvs: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class GroupCalls:
    """The calls in one process group, by global rank."""

    group: Group
    members: frozenset[int]
    is_known: bool  # False: the dumps do not say who is a member
    calls: dict[int, dict[int, Call]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], Pair] = field(default_factory=lambda: defaultdict(Pair))

    def last_number(self, rank: int) -> int:
        """Return the number of a rank's last collective; 0: it has none in its dump."""
        return max(self.calls.get(rank, ()), default=0)


def _closed(records: Iterable[Record]) -> list[tuple[Record, ...]]:
    """Return the operations of one rank in one group; a coalesced one ends with its own record."""
    found: dict[tuple[bool, int, int], list[Record]] = {}
    batches = {one.p2p_seq for one in records if one.is_p2p and one.op == _COALESCED}
    for at, one in enumerate(records):
        alone = one.is_p2p and one.p2p_seq not in batches
        number = one.p2p_seq if one.is_p2p else one.seq
        found.setdefault((one.is_p2p, number, at if alone else -1), []).append(one)
    return [tuple(rows) for rows in found.values()]


class _Groups:
    """All groups, found by what a dump says of them."""

    def __init__(self, world: frozenset[int]) -> None:
        self._world = world
        self._default = ""  # the name of the group of all ranks; there is only one
        self.found: dict[Group, GroupCalls] = {}

    def find(self, name: str, desc: str, ranks: tuple[int, ...], rank: int) -> GroupCalls:
        key = Group(name, desc, ranks)
        if key not in self.found:
            if ranks:
                members, known = frozenset(ranks), True
            else:
                known = desc == DEFAULT_GROUP and self._default in ("", name)
                self._default = name if known else self._default
                members = self._world if known else frozenset()
            self.found[key] = GroupCalls(key, members, known)
        group = self.found[key]
        if not group.is_known and rank not in group.members:
            group.members |= {rank}
        return group


def _add_pairs(group: GroupCalls, rank: int, rows: tuple[Record, ...]) -> None:
    ranks = group.group.ranks
    for one in rows:
        if one.source < 0:
            continue
        # The numbers in the name are those in the group; its members may not be known.
        inside = max(one.source, one.target) < len(ranks)
        ends = (ranks[one.source], ranks[one.target]) if inside else (one.source, one.target)
        pair = group.pairs[ends]
        is_send = one.op.startswith("send")
        last = one if one is rows[-1] else rows[-1]._replace(
            op=one.op, inputs=one.inputs, outputs=one.outputs, record_id=one.record_id
        )  # fmt: skip
        (pair.sends if is_send else pair.recvs).append(Call(rank, (last,)))


def find_groups(evidence: Evidence) -> list[GroupCalls]:
    """Return the calls in all groups that have any."""
    groups = _Groups(evidence.world)
    for rank, one in evidence.dumps.items():
        known = {(group.name, group.desc): group.ranks for group in one.dump.groups}
        by_group: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in one.dump.records:
            by_group[record.group, record.desc].append(record)
        for (name, desc), records in by_group.items():
            group = groups.find(name, desc, known.get((name, desc), ()), rank)
            calls = group.calls.setdefault(rank, {})
            for rows in _closed(records):
                if rows[-1].is_p2p:
                    _add_pairs(group, rank, rows)
                else:
                    calls[rows[-1].seq] = Call(rank, rows)
    return list(groups.found.values())


def world_of(
    dumps: Mapping[int, RankDump], others: Iterable[int], count: int | None
) -> frozenset[int]:
    """Return all ranks of the job.

    These are the ranks of the dumps and groups, and those in between. `others` are ranks that are
    known for another reason; `count` is the number of ranks, if somebody said it.
    """
    found = {*dumps, *others, *_members(dumps.values())}
    last = max(found, default=-1)
    return frozenset(range(max(last + 1, count or 0)))


def _members(dumps: Iterable[RankDump]) -> Iterator[int]:
    for one in dumps:
        for group in one.dump.groups:
            yield from group.ranks
