# SPDX-License-Identifier: Apache-2.0
"""Who holds up whom, over all process groups: the ranks at which all waiting ends.

A rank that is in an operation waits for the ranks that have not come to it. Those may wait in an
operation of another group. The paths end at a rank that waits for nobody, at an operation to which
all came, or in a circle.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from nccl_inspector.analysis.hang.wait_for import End, find_ends, successors
from nccl_inspector.flight.open_operations import Open, Place

_Node: TypeAlias = int | Place


class Cause(StrEnum):
    """Why an operation does not end."""

    NO_DUMP = "no dump"
    NOT_CALLED = "not called"
    MISMATCHED = "mismatched"
    DEADLOCK = "deadlock"
    NOT_STARTED = "not started"
    NOT_ENDED = "not ended"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Stuck:
    """An operation that does not end, and the ranks at which the waiting ends."""

    operation: Open
    cause: Cause
    roots: tuple[int, ...]  # empty: all came, or it is not known who did not
    # For ranks in a circle: the operation that each is in.
    circle: Mapping[int, Open]
    behind: int = 0  # how many other operations wait for the same


class _Graph:
    """Ranks and operations that do not end."""

    def __init__(self, operations: Sequence[Open], ranks: int) -> None:
        self.by_place = {one.place: one for one in operations}
        self.inside = _inside(operations)
        self._most_are_idle = len(self.inside) < ranks - len(self.inside) - 1
        edges: list[tuple[_Node, _Node]] = [
            (rank, one.place) for rank, found in self.inside.items() for one in found
        ]
        self.queued: dict[Place, list[int]] = defaultdict(list)
        for one in operations:
            edges.append((one.place, one.place))  # a place without other edges is a node, too
            if one.mismatched:
                continue
            for rank in one.waiting:
                if one not in self.inside[rank]:
                    self.queued[one.place].append(rank)
            late = (*one.absent, *one.no_dump, *self.queued[one.place])
            edges += [(one.place, rank) for rank in late]
        graph = successors(edges)
        for one in operations:
            graph[one.place].remove(one.place)
        self.ends = find_ends(graph)

    def stuck(self, one: Open) -> Stuck:
        ends = self.ends[one.place]
        circles = [end for end in ends if len(end) > 1]
        if circles:
            circle = {rank: self._in(rank, end) for end in circles for rank in end
                      if isinstance(rank, int)}  # fmt: skip
            return Stuck(one, Cause.DEADLOCK, tuple(sorted(circle)), circle)
        roots = self._roots(ends)
        cause = self._cause(one, ends, set(roots))
        if cause is Cause.NOT_CALLED and self._may_be_right(set(roots)):
            roots = ()
        return Stuck(one, cause, roots, {})

    def _may_be_right(self, roots: set[int]) -> bool:
        """Tell whether ranks that did not come may be right, and those that wait wrong.

        Who stops holds up the others sooner or later. If most ranks of the operation wait, the rest
        is wrong. Else, if most ranks are in no operation, somebody may have called one more.
        """
        late = (one for one in self.by_place.values() if roots.intersection(one.absent))
        return self._most_are_idle and not any(len(o.waiting) > len(o.absent) for o in late)

    def _in(self, rank: int, end: End[_Node]) -> Open:
        return next(one for one in self.inside[rank] if one.place in end)

    def _roots(self, ends: Iterable[End[_Node]]) -> tuple[int, ...]:
        found: set[int] = set()
        for (node,) in ends:
            found |= {node} if isinstance(node, int) else self.by_place[node].mismatched.keys()
        return tuple(sorted(found))

    def _cause(self, one: Open, ends: Iterable[End[_Node]], roots: set[int]) -> Cause:
        places = [self.by_place[node] for (node,) in ends if isinstance(node, Place)]
        if any(found.mismatched for found in places):
            return Cause.MISMATCHED
        waits = [one, *(found for rank in one.absent for found in self.inside.get(rank, ()))]
        if any(roots.intersection(found.no_dump) for found in self.by_place.values()):
            return Cause.NO_DUMP
        if any(roots.intersection(found.absent) for found in self.by_place.values()):
            return Cause.NOT_CALLED
        if roots:
            return Cause.NOT_STARTED
        if any(found.unknown or not found.members_known for found in (*places, *waits)):
            return Cause.NOT_KNOWN
        return Cause.NOT_ENDED


def _inside(operations: Iterable[Open]) -> dict[int, list[Open]]:
    """Return the operations that each rank is in.

    These are the ones that its GPU has started. If it has started none, or the backend does not
    tell, it is in the first that it called, unless others have started that one: then its GPU is
    busy with something that was not recorded, and the rank is in nothing.
    """
    waiting: dict[int, list[Open]] = defaultdict(list)
    for one in operations:
        for rank in one.waiting:
            waiting[rank].append(one)
    found = {}
    for rank, mine in waiting.items():
        started = [one for one in mine if one.waiting[rank].is_started]
        first = min(mine, key=lambda one: one.waiting[rank].last.record_id)
        others = any(call.is_started for call in first.waiting.values())
        found[rank] = started or ([] if others else [first])
    return found


def _is_direct(one: Stuck) -> bool:
    """Tell whether a root itself has not come to the operation, or came with another one."""
    operation = one.operation
    late = {*operation.absent, *operation.no_dump, *operation.mismatched}
    return bool(late.intersection(one.roots))


def find_stuck(operations: Sequence[Open], ranks: int) -> list[Stuck]:
    """Return what is stuck, once for each root, at the operation that the root itself holds up.

    `ranks`: how many have a dump that could be read.
    If there are several such operations, the one to which others came first is returned. Those
    whose roots are known come first.
    """
    graph = _Graph(operations, ranks)
    by_root: dict[tuple[str, tuple[int, ...], str], list[Stuck]] = defaultdict(list)
    for one in sorted(operations, key=lambda one: (one.since_ns, str(one.place))):
        found = graph.stuck(one)
        # Without a root, groups of the same name are one finding: often all of a kind are stuck.
        own = "" if found.roots else one.place.group.desc or one.place.group.name
        by_root[found.cause, found.roots, own].append(found)
    for rows in by_root.values():
        rows.sort(key=lambda one: not _is_direct(one))
    listed = sorted(by_root.values(), key=lambda rows: not rows[0].roots)
    return [
        Stuck(first.operation, first.cause, first.roots, first.circle, len(rest))
        for first, *rest in listed
    ]
