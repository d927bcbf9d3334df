# SPDX-License-Identifier: Apache-2.0
"""Which processes may be late together: those of a node, of a communicator, of the same place.

What is late together hides its members from the replay: the others of the set are as late, so
each member alone costs nothing. Therefore sets are asked like processes. Candidates come from the
communicators alone: a tensor group, a ring, a replica (what tensor and pipeline groups connect),
a rail (the same place of all groups), and nodes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints
from nccl_inspector.analysis.replay.records import RecordedComm, Records
from nccl_inspector.analysis.replay.stages import Sets, comm_classes
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA

# Kinds of communicator that are looked at, by their operations; a program has up to six.
_KINDS_MAX = 8
_JOINED_MAX = 3  # kinds of communicator that connect a set
_OF_A_SORT_MAX = 16  # sets of one sort that are asked, the most suspicious
SETS_MAX = 64
# A set is suspicious if this share of its members are late, by this much of the time and this many
# standard deviations of the others. By halving and doubling: the trials `set-*` and `one-of-node`.
_SUSPECTS, _LEAST_SHARE, _LEAST_Z = 0.6, 0.005, 3.0
# The members are alike if the median one is late by this share of the latest one's lateness. Of a
# slow rank whose set waits for it, the others are late by next to nothing.
_ALIKE = 0.5


class Sort(StrEnum):
    """What the members of a set have in common."""

    NODE = "node"
    NODES = "nodes"  # all ranks of several nodes
    GROUP = "group"  # a communicator, or what several kinds of communicators connect
    PLACE = "place"  # the same rank in each communicator of a kind
    STAGE = "stage"  # the stage of a pipeline (late_stages.py)


@dataclass(frozen=True, slots=True)
class LateSet:
    """Processes that may be late together.

    `name`: of NODE the node; of GROUP the communicators that connect them; of PLACE the
    communicators in which they have the same place.
    """

    members: tuple[int, ...]
    sort: Sort
    name: str
    place: int = -1  # of PLACE: the rank in the communicators
    count: int = 1  # of GROUP and PLACE: how many such sets these are


def spread_of(values: Floats) -> tuple[float, float]:
    """Return the median of values, and their deviation from it as a standard deviation."""
    middle = float(np.median(values))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))


def is_late_together(wall: Floats, present: Ints, members: Sequence[int]) -> bool:
    """Tell whether nearly all members have longer gaps than the others, and by as much.

    `wall`: by process, the share of its time by which its own gaps are longer than usual. This
    excludes processes that are late by chance and happen to share a node, and those that wait for
    the only slow one among them.
    """
    others = present[~np.isin(present, members)]
    if not len(others):
        return False
    middle, spread = spread_of(wall[others])
    late = wall[list(members)] - middle
    if np.mean(late >= max(_LEAST_Z * spread, _LEAST_SHARE)) < _SUSPECTS:
        return False
    return bool(np.median(late) >= _ALIKE * late.max())


def of_nodes(present: Ints, nodes: Sequence[str]) -> list[LateSet]:
    """Return the nodes with several processes; `nodes` is by process."""
    by_node: dict[str, list[int]] = defaultdict(list)
    for one in present.tolist():
        by_node[nodes[one]].append(one)
    found = [
        LateSet(tuple(members), Sort.NODE, node)
        for node, members in by_node.items()
        if len(members) > 1
    ]
    return found if len(found) > 1 else []


def together(late: Sequence[LateSet], present: Ints) -> LateSet | None:
    """Return several late sets of a sort as one, such as the nodes of a switch; None: no such set.

    Two sets that are late by the same hide each other, as the members of one set do.
    """
    members = tuple(sorted({member for one in late for member in one.members}))
    if len(late) < 2 or 2 * len(members) > len(present):
        return None
    if late[0].sort == Sort.NODE:
        return LateSet(members, Sort.NODES, ", ".join(sorted(one.name for one in late)))
    return replace(late[0], members=members, place=-1, count=len(late))


def of_communicators(records: Records, present: Ints) -> list[list[LateSet]]:
    """Return the sets that communicators make, by sort: each sort divides the processes."""
    kinds = _kinds(records)
    seen: set[frozenset[tuple[int, ...]]] = set()
    found: list[list[LateSet]] = []
    # What several kinds make has one name: the ranks of a data group are also those at one place
    # of all tensor groups, and a replica is what tensor and pipeline groups connect.
    places = [_at_places(kind) for kind in kinds]
    divisions = [_connected([kind], present) for kind in kinds]
    joined = _joined(kinds, present)
    for sets in (*divisions[:1], *places[:1], *divisions[1:], *joined, *places[1:]):
        some = [one for one in sets if 1 < len(one.members) <= len(present) / 2]
        division = frozenset(one.members for one in some)
        if some and division not in seen:
            seen.add(division)
            found.append(some)
    return found


def _kinds(records: Records) -> list[list[RecordedComm]]:
    """Return the communicators of each kind of which there are several, the busiest kind first."""
    classes = comm_classes(records)
    rows = np.bincount(records.comm, minlength=len(records.comms))
    by_class: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(records.comms):
        if len(one.members) > 1 and not one.hidden:
            by_class[int(classes[place])].append(place)
    several = [places for places in by_class.values() if len(places) > 1]
    several.sort(key=lambda places: -int(rows[places].sum()))
    kept: dict[frozenset[tuple[int, ...]], list[RecordedComm]] = {}
    for places in several:
        comms = [records.comms[place] for place in places]
        # Communicators that are made anew have the same members as before.
        kept.setdefault(frozenset(one.members for one in comms), comms)
    return list(kept.values())[:_KINDS_MAX]


def name_of(comms: Sequence[RecordedComm]) -> str:
    """Return the name of a kind of communicators, or its size if it has none."""
    return next((one.name for one in comms if one.name), "") or f"{comms[0].nranks} ranks"


def _connected(some: Sequence[Sequence[RecordedComm]], present: Ints) -> list[LateSet]:
    """Return the sets that communicators of some kinds connect."""
    place = {member: at for at, member in enumerate(present.tolist())}
    sets = Sets(len(present))
    for comm in (one for kind in some for one in kind):
        sets.join([place[one] for one in comm.members])
    number = sets.numbers()
    name = " and ".join(name_of(kind) for kind in some)
    return [
        LateSet(tuple(present[number == one].tolist()), Sort.GROUP, name)
        for one in np.unique(number).tolist()
    ]


def _at_places(kind: Sequence[RecordedComm]) -> list[LateSet]:
    """Return the processes that have the same place in all communicators of a kind."""
    if len({len(one.members) for one in kind}) > 1:
        return []
    return [
        LateSet(tuple(sorted(set(members))), Sort.PLACE, name_of(kind), place)
        for place, members in enumerate(zip(*(one.members for one in kind), strict=True))
    ]


def _joined(kinds: Sequence[Sequence[RecordedComm]], present: Ints) -> Iterator[list[LateSet]]:
    """Yield what communicators of some kinds connect together, such as the ranks of a replica."""
    for count in range(2, min(_JOINED_MAX, len(kinds)) + 1):
        for some in combinations(kinds, count):
            yield _connected(some, present)


@dataclass(frozen=True, slots=True)
class Suspicious:
    """The sets to ask, by sort, and which of them are late together.

    Of a sort with a late set others are asked, too: what they cost is what chance gives.
    """

    sorts: tuple[tuple[LateSet, ...], ...]
    late: tuple[LateSet, ...]  # the smallest first; also several of a sort as one


def suspicious(
    node_sets: Sequence[LateSet], records: Records, wall: Floats, present: Ints
) -> Suspicious:
    """Return which sets to ask; all of `node_sets` are asked. `wall`: as in is_late_together."""
    sorts = [tuple(node_sets)]
    late: dict[tuple[int, ...], LateSet] = {}
    several: list[LateSet] = []
    many = 0
    for sets in (node_sets, *of_communicators(records, present)):
        own = [one for one in sets if is_late_together(wall, present, one.members)]
        if not own or many >= SETS_MAX:
            continue
        if sets is not node_sets:
            ranked = sorted(sets, key=lambda one: -float(np.median(wall[list(one.members)])))
            sorts.append(tuple(ranked[: min(_OF_A_SORT_MAX, SETS_MAX - many)]))
            own = [one for one in own if one in sorts[-1]]
            many += len(sorts[-1])
        late = {**{one.members: one for one in own}, **late}
        several += [one for one in (together(own, present),) if one is not None]
    late = {**{one.members: one for one in reversed(several)}, **late}
    smallest_first = sorted(late.values(), key=lambda one: len(one.members))
    return Suspicious(tuple(sorts), tuple(smallest_first))
