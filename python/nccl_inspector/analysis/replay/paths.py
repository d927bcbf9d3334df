# SPDX-License-Identifier: Apache-2.0
"""Slow transfers, compared with the same operation of sibling communicators.

Siblings have the same part in the program (for example the data-parallel groups of the ranks 0, 1,
2 ... of their nodes), so the same operation takes them the same time. The slow link is at what the
slow paths have in common and no other path has: a node, a GPU with its adapter, or a rail.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    distinct_pairs,
    first_rows,
    medians,
    medians_of_others,
    number_rows,
    order_within,
    quantiles,
)
from nccl_inspector.analysis.replay.order import Order, cost_of_bytes
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.analysis.replay.stages import comm_classes
from nccl_inspector.model.process import PEER_NONE

SLOW = 1.15  # T / that of the siblings
_QUARTER = 1.05  # three quarters of the operations must exceed this ratio
_OPERATIONS_MIN = 12
_KIN_MIN = 4  # paths of one shape that are needed; their better quarter is usual
_MOST = 0.8  # share of the slow paths, and of a place's own paths, for the place to explain them
NODE, RAIL, ADAPTER, PATHS = "node", "rail", "adapter", "paths"


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a process runs: its node, and its index there (which GPU, and so which adapter)."""

    node: str
    local: int


@dataclass(frozen=True, slots=True)
class Where:
    """What slow paths have in common; `kind`: node, rail, adapter, or paths (nothing in common)."""

    kind: str
    nodes: tuple[str, ...]
    local: int | None  # for a rail or an adapter
    members: tuple[int, ...]  # processes on the slow paths


@dataclass(frozen=True, slots=True)
class SlowPaths:
    """Paths that were slow compared with their siblings all the time."""

    where: Where
    inside: bool  # within nodes
    ratio: float  # T / the siblings'
    paths: int
    siblings: int
    factor: Floats  # by row: the factor that makes T that of the siblings


def path_numbers(records: Records) -> Ints:
    """Return for each row the number of its path: a communicator, or a pair of a Send and Recv."""
    paired = records.peer != PEER_NONE
    ends = np.full((2, int(records.joined.max()) + 1), -1, np.int64)
    ends[0] = records.members
    np.minimum.at(ends[0], records.joined, records.member)
    np.maximum.at(ends[1], records.joined, records.member)
    low = np.where(paired, ends[0][records.joined], -1)
    high = np.where(paired, ends[1][records.joined], -1)
    return number_rows(records.comm, low, high)


def members_of_paths(records: Records, path: Ints) -> list[frozenset[int]]:
    """Return for each path the processes on it."""
    paths, members = distinct_pairs(path, records.member)
    cuts = np.searchsorted(paths, np.arange(1, int(path.max()) + 1))
    return [frozenset(one.tolist()) for one in np.split(members, cuts)]


def inside_nodes(members: Sequence[frozenset[int]], spots: Sequence[Spot]) -> Mask:
    """Tell for each path whether all processes on it are on one node."""
    found: Mask = np.array([len({spots[one].node for one in own}) == 1 for own in members])
    return found


def _ratios(
    records: Records, order: Order, path: Ints, inside: Mask
) -> tuple[Floats, Floats, Ints]:
    """Return for each path T / its siblings' (median, lower quartile), and how many operations.

    `inside`: by path. Of Sends round a ring some stay within a node; these have other siblings.
    """
    count = int(path.max()) + 1
    known = np.flatnonzero(~np.isnan(order.transfer) & (order.transfer > 0))
    # One row for each operation.
    rows = known[first_rows(records.joined[known])]
    rate = cost_of_bytes(records, order.transfer)[rows]
    # All ranks of an operation are in one stage, except for Sends; there the sender's stage counts.
    near = inside[path[rows]].astype(np.int64)
    usual = medians_of_others(number_rows(order.place[rows], near), rate)
    # If all ranks of one stage share a node or a link, they are equally slow; so others are
    # compared, too.
    usual = np.fmin(usual, _usual_of_kin(records, rows, path[rows], rate, near))
    fine = ~np.isnan(usual) & (usual > 0)
    rows, ratio = rows[fine], (rate[fine] / usual[fine])
    middle = medians(path[rows], ratio, count)
    quarter = np.full(count, np.nan)
    if len(rows):
        at = order_within(path[rows], ratio)
        numbers, first, size = np.unique(path[rows][at], return_index=True, return_counts=True)
        quarter[numbers] = ratio[at][first + size // 4]
    return middle, quarter, np.bincount(path[rows], minlength=count)


def _usual_of_kin(records: Records, rows: Ints, path: Ints, rate: Floats, inside: Ints) -> Floats:
    """Return what is usual on the better paths of one shape, in any stage; NaN: too few paths."""
    if not len(rows):
        return np.zeros(0)
    shapes = np.array([comm.nranks * (1 << 20) + comm.nnodes for comm in records.comms], np.int64)
    paired = (records.peer[rows] != PEER_NONE).astype(np.int64)
    kin = number_rows(
        shapes[records.comm[rows]], comm_classes(records)[records.comm[rows]],
        records.func[rows], records.size_class[rows], paired, inside,
    )  # fmt: skip
    cell = number_rows(kin, path)
    middle = medians(cell, rate, int(cell.max(initial=-1)) + 1)
    kin_of = kin[first_rows(cell)]
    count = int(kin.max(initial=-1)) + 1
    better = quantiles(kin_of, middle, count, 0.25)
    better[np.bincount(kin_of, minlength=count) < _KIN_MIN] = np.nan
    return better[kin]


def _candidates(spots: Sequence[Spot], members: Iterable[int]) -> list[tuple[str, frozenset[int]]]:
    """Return the places that members may have in common, with all processes of each place."""
    found: dict[tuple[str, str, int], set[int]] = {}
    for member, spot in enumerate(spots):
        found.setdefault((ADAPTER, spot.node, spot.local), set()).add(member)
        found.setdefault((RAIL, "", spot.local), set()).add(member)
        found.setdefault((NODE, spot.node, -1), set()).add(member)
    some = set(members)
    return [(key[0], frozenset(own)) for key, own in found.items() if own & some]


def locate(
    slow: Sequence[frozenset[int]], others: Sequence[frozenset[int]], spots: Sequence[Spot]
) -> Where:
    """Return what the slow paths have in common that the other paths do not have."""
    everybody = frozenset().union(*slow) if slow else frozenset()
    fits: list[tuple[str, frozenset[int]]] = []
    for kind, own in _candidates(spots, everybody):
        hit = sum(1 for path in slow if path & own)
        spared = sum(1 for path in others if path & own)
        if hit >= _MOST * len(slow) and hit >= _MOST * (hit + spared):
            fits.append((kind, own))
    for kind in (ADAPTER, NODE, RAIL):
        of_kind = [own for name, own in fits if name == kind]
        if len(of_kind) == 1 or (kind == NODE and of_kind and not others):
            return (
                _where(kind, of_kind[0], everybody, spots)
                if len(of_kind) == 1
                else _where(PATHS, everybody, everybody, spots)
            )
    return _where(PATHS, everybody, everybody, spots)


def _where(
    kind: str, own: frozenset[int], everybody: frozenset[int], spots: Sequence[Spot]
) -> Where:
    nodes = tuple(sorted({spots[one].node for one in own & everybody}))
    local = {spots[one].local for one in own}
    return Where(
        kind,
        nodes,
        next(iter(local)) if kind in (RAIL, ADAPTER) else None,
        tuple(sorted(own & everybody)),
    )


def find_slow_paths(records: Records, order: Order, spots: Sequence[Spot]) -> tuple[SlowPaths, ...]:
    """Return the paths that were slow compared with their siblings; `spots` is by process.

    Paths within nodes and paths between nodes are judged separately.
    """
    path = path_numbers(records)
    members = members_of_paths(records, path)
    inside_of = inside_nodes(members, spots)
    middle, quarter, operations = _ratios(records, order, path, inside_of)
    known = (operations >= _OPERATIONS_MIN) & _has_transfers(records, path)
    slow = known & (middle >= SLOW) & (quarter >= _QUARTER)
    found = []
    for inside in (False, True):
        mine = np.flatnonzero(slow & (inside_of == inside))
        rest = np.flatnonzero(known & ~slow & (inside_of == inside))
        if not len(mine) or not len(rest):
            continue
        where = locate([members[one] for one in mine], [members[one] for one in rest], spots)
        factor = np.ones(len(middle))
        factor[mine] = 1 / middle[mine]
        found.append(
            SlowPaths(
                where,
                inside,
                float(np.median(middle[mine])),
                len(mine),
                len(mine) + len(rest),
                factor[path],
            )
        )
    return tuple(found)


def _has_transfers(records: Records, path: Ints) -> Mask:
    """Tell which paths have operations of NCCL; a barrier of something else transfers nothing."""
    hidden = np.array([comm.hidden for comm in records.comms])
    found: Mask = np.bincount(path, hidden[records.comm]) == 0
    return found


def locate_then(
    records: Records,
    factor: Floats,
    pieces: Sequence[int],
    of_these: Mask,
    spots: Sequence[Spot],
) -> Where | None:
    """Return what paths that were slow in most of some pieces have in common; None: all were.

    `factor`: for T by row (changes.Changes.transfer). `of_these`: the rows of paths between nodes,
    or of those within, because a good link within a node says nothing about the node's adapters.
    How slow each path was does not count: a Send beside a slow one in the same kernel, or on a rank
    that such a kernel has delayed, also takes longer.
    """
    path = path_numbers(records)
    members = members_of_paths(records, path)
    here = of_these & np.isin(records.piece, list(pieces))
    count = np.bincount(path[here], minlength=len(members))
    slowed = np.bincount(path[here], factor[here] < 1, minlength=len(members))
    # A path with between 20 and 50 % slow operations counts neither as slow nor as fine.
    seen = (count > 0) & _has_transfers(records, path)
    slow = [members[one] for one in np.flatnonzero(seen & (slowed >= 0.5 * count))]
    rest = [members[one] for one in np.flatnonzero(seen & (slowed < 0.2 * count))]
    return locate(slow, rest, spots) if slow and rest else None
