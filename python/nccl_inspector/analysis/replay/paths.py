# SPDX-License-Identifier: Apache-2.0
"""Slow transfers, compared with the same operation of sibling communicators.

Siblings have the same part in the program (for example the data-parallel groups of the ranks 0, 1,
2 ... of their nodes), so the same operation takes them the same time. The slow link is at what the
slow paths have in common and no other path has: a node, a GPU with its adapter, or a rail.
"""

from collections.abc import Sequence
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
from nccl_inspector.analysis.replay.late_sets import spread_of
from nccl_inspector.analysis.replay.order import Order, cost_of_bytes
from nccl_inspector.analysis.replay.records import SYNCHRONISING, Records
from nccl_inspector.analysis.replay.stages import comm_classes, parts_of_job
from nccl_inspector.model.process import FUNCS, PEER_NONE

SLOW = 1.15  # T / that of the siblings
_QUARTER = 1.05  # three quarters of the operations must exceed this ratio
# Less than SLOW is slow if it is so many spreads of the paths of a job above the middle one, and
# there are so many paths. (Trials: healthy paths differ by 0.5 to 2 %.)
_CLEARLY_SLOW, _SPREADS, _SPREAD_OF = 1.07, 8.0, 6
OPERATIONS_MIN = 12
_SIZE_CLASS_MIN = 16  # of what tells that a path is fine: below 64 KiB the time is mostly latency
_KIN_MIN = 4  # paths of one shape that are needed; their better quarter is usual
_MOST = 0.8  # share of the slow paths, and of a place's own paths, for the place to explain them
# The clocks of two processes are believed for times this much longer than what the ends of
# synchronising operations leave between them.
_CLOCKS_TIMES = 10.0
_CLOCKS_QUANTILE = 0.9  # of what they leave
# Of the most that a path became longer by: paths above the first are slow, those below the second
# are fine, and those between tell nothing (they share kernels with slow ones).
_SLOW_PART, _FINE_PART = 0.6, 0.4
NODE, RAIL, ADAPTER, PATHS = "node", "rail", "adapter", "paths"
BOTH, OUT, IN = "", "out", "in"  # the ways in which a place is slow
_SEND, _RECV = FUNCS.index("Send"), FUNCS.index("Recv")


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
    way: str = BOTH  # OUT: only what it sends is slow; IN: only what it receives


@dataclass(frozen=True, slots=True)
class Path:
    """The processes on a path; of a Send who sends and who receives, else -1."""

    members: frozenset[int]
    sender: int = -1
    receiver: int = -1


@dataclass(frozen=True, slots=True)
class SlowPaths:
    """Paths that were slow compared with their siblings all the time."""

    where: Where
    inside: bool  # within nodes
    ratio: float  # T / the siblings'
    paths: int
    siblings: int
    factor: Floats  # by row: the factor that makes T that of the siblings
    usual: Floats  # the same for each operation by itself, and of all paths


def path_numbers(records: Records) -> Ints:
    """Return for each row the number of its path: a communicator, or a pair in one direction."""
    return number_rows(records.comm, *_directions(records))


def _directions(records: Records) -> tuple[Ints, Ints]:
    """Return for each row who sends and who receives; -1: it is no Send or Recv, or not known."""
    ends = []
    for func in (_SEND, _RECV):
        rows = np.flatnonzero((records.peer != PEER_NONE) & (records.func == func))
        member = np.full(int(records.joined.max()) + 1, -1, np.int64)
        member[records.joined[rows]] = records.member[rows]
        ends.append(np.where(records.peer != PEER_NONE, member[records.joined], -1))
    return ends[0], ends[1]


def find_paths(records: Records, path: Ints) -> list[Path]:
    """Return all paths; `path`: by row (path_numbers)."""
    paths, members = distinct_pairs(path, records.member)
    cuts = np.searchsorted(paths, np.arange(1, int(path.max()) + 1))
    sender, receiver = (ends[first_rows(path)].tolist() for ends in _directions(records))
    return [
        Path(frozenset(own.tolist()), sender[at], receiver[at])
        for at, own in enumerate(np.split(members, cuts))
    ]


def inside_nodes(paths: Sequence[Path], spots: Sequence[Spot]) -> Mask:
    """Tell for each path whether all processes on it are on one node."""
    found: Mask = np.array([len({spots[one].node for one in path.members}) == 1 for path in paths])
    return found


def transfer_times(records: Records, order: Order) -> tuple[Floats, Mask]:
    """Return T by row, and for which rows it is only a bound; NaN: not known.

    T of a Send and its Recv is counted from when both have begun, if their clocks can be believed;
    else it is no more than what can be.
    It is over when the first of both kernels ends, or earlier: if that kernel has a transfer with
    another rank, and that one's kernel ends later still, then it may be what the kernel waited for.
    """
    pairs = np.flatnonzero((records.peer != PEER_NONE) & ~np.isnan(order.transfer))
    bound = np.zeros(len(records), dtype=bool)
    if not len(pairs):
        return order.transfer, bound
    count = int(records.joined.max()) + 1
    begun, ended = np.full(count, records.begin.min()), np.full(count, records.end.max())
    np.maximum.at(begun, records.joined[pairs], records.begin[pairs])
    np.minimum.at(ended, records.joined[pairs], records.end[pairs])
    common = (ended - begun)[records.joined[pairs]].astype(float)
    apart = _clocks_apart(records)
    timed = _in_common_time(records, pairs)
    pairs, common = pairs[timed], common[timed]
    if not len(pairs):
        return order.transfer, bound
    least = _CLOCKS_TIMES * apart
    sure = common >= least
    found = order.transfer.copy()
    found[pairs] = np.minimum(found[pairs], np.maximum(common, least))
    bound[pairs] = found[pairs] < order.transfer[pairs]  # a shorter one is not known any better
    bound[pairs[sure]] = _may_be_another(records, order.kernel, pairs, apart)[sure]
    return found, bound


def _may_be_another(records: Records, kernel: Ints, pairs: Ints, apart: float) -> Mask:
    """Tell of which pairs another transfer of the kernel that ends first may have taken that long.

    `apart`: by how much ends differ by chance, in ns.
    """
    joined = records.joined
    # Parts that end at once have the end of their kernel; one that ends by itself has its own.
    end = records.end - int(records.end.min())
    shared = number_rows(kernel[pairs], end[pairs] // max(int(apart), 1))
    own_end = end[pairs]
    both = np.zeros(int(joined.max()) + 1, np.int64)
    np.add.at(both, joined[pairs], own_end)
    other_end = both[joined[pairs]] - own_end
    # The latest other side of each kernel, and the latest one that is another rank's.
    size = int(shared.max()) + 1
    latest = np.full(size, -1, np.int64)
    np.maximum.at(latest, shared, other_end)
    with_latest = np.full(size, PEER_NONE, np.int64)
    top = other_end == latest[shared]
    with_latest[shared[top]] = records.peer[pairs][top]
    rest = records.peer[pairs] != with_latest[shared]
    second = np.full(size, -1, np.int64)
    np.maximum.at(second, shared[rest], other_end[rest])
    another = np.where(rest, latest[shared], second[shared])
    hidden = (another >= own_end - apart) & (another >= 0)
    # What counts is the kernel that ends first; of two that end at once, the one that tells more.
    first = own_end <= other_end + apart
    told = np.zeros(len(both), dtype=bool)
    told[joined[pairs[first & ~hidden]]] = True
    found: Mask = ~told[joined[pairs]]
    return found


def _clocks_apart(records: Records) -> float:
    """Return how far apart the ends of synchronising operations are at most times, in ns."""
    rows = np.flatnonzero(np.isin(records.func, list(SYNCHRONISING)))
    if not len(rows):
        return float("inf")
    count = int(records.joined.max()) + 1
    first, last = np.full(count, records.end.max()), np.full(count, records.end.min())
    np.minimum.at(first, records.joined[rows], records.end[rows])
    np.maximum.at(last, records.joined[rows], records.end[rows])
    several = np.bincount(records.joined[rows], minlength=count) > 1
    apart = (last - first)[several]
    return float(np.quantile(apart, _CLOCKS_QUANTILE)) if len(apart) else float("inf")


def _in_common_time(records: Records, rows: Ints) -> Mask:
    """Tell which rows are of two processes that a communicator with such operations joins."""
    waits = np.zeros(len(records.comms), dtype=bool)
    waits[np.unique(records.comm[np.isin(records.func, list(SYNCHRONISING))])] = True
    part = parts_of_job(records, waits)
    count = int(records.joined.max()) + 1
    low, high = np.full(count, part.max()), np.full(count, -1, np.int64)
    np.minimum.at(low, records.joined[rows], part[records.member[rows]])
    np.maximum.at(high, records.joined[rows], part[records.member[rows]])
    found: Mask = (low == high)[records.joined[rows]]
    return found


def _ratios(
    records: Records, order: Order, path: Ints, inside: Mask
) -> tuple[Floats, Floats, Ints, Floats]:
    """Return for each path T / its siblings' (median, lower quartile), and how many operations.

    Also return for each row the factor that makes its T that of its siblings; 1: not known.

    `inside`: by path. Of Sends round a ring some stay within a node; these have other siblings.
    """
    count = int(path.max()) + 1
    times, bound = transfer_times(records, order)
    known = np.flatnonzero(~np.isnan(times) & (times > 0) & ~bound & _tell_of_operations(records))
    # One row for each operation.
    rows = known[first_rows(records.joined[known])]
    rate = cost_of_bytes(records, times)[rows]
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
    of_operation = np.ones(int(records.joined.max()) + 1)
    of_operation[records.joined[rows]] = 1 / ratio
    usual = np.minimum(of_operation[records.joined], 1.0)
    return middle, quarter, np.bincount(path[rows], minlength=count), usual


def _tell_of_operations(records: Records) -> Mask:
    """Tell which rows stand for their operation: any of a collective, the Send of a pair."""
    sent = np.zeros(int(records.joined.max()) + 1, dtype=bool)
    sent[records.joined[records.func == _SEND]] = True
    found: Mask = (records.func != _RECV) | ~sent[records.joined]
    return found


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


@dataclass(frozen=True, slots=True)
class _Fit:
    """A place that explains slow paths; `wrong`: paths that speak against it."""

    kind: str
    way: str
    own: frozenset[int]
    wrong: int


def _on_paths(paths: Sequence[Path], way: str) -> tuple[Ints, Ints]:
    """Return the numbers of paths, and the processes that a place slow in this way has on them."""
    pairs = [
        (number, one)
        for number, path in enumerate(paths)
        for one in (
            path.members if way == BOTH or path.sender < 0 or path.receiver < 0
            else (path.sender if way == OUT else path.receiver,)
        )
    ]  # fmt: skip
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _fits(slow: Sequence[Path], others: Sequence[Path], spots: Sequence[Spot]) -> list[_Fit]:
    """Return the places that are on most of the slow paths, and of which most paths are slow."""
    keys = {
        ADAPTER: [(spot.node, spot.local) for spot in spots],
        NODE: [(spot.node, 0) for spot in spots],
        RAIL: [("", spot.local) for spot in spots],
    }
    found = []
    paths = [*slow, *others]
    for way in (BOTH, OUT, IN):
        path, member = _on_paths(paths, way)
        for kind, key in keys.items():
            numbers = {one: at for at, one in enumerate(dict.fromkeys(key))}
            place = np.array([numbers[one] for one in key], np.int64)
            on, at = distinct_pairs(path, place[member])
            hit = np.bincount(at, on < len(slow), minlength=len(numbers))
            own = np.bincount(at, minlength=len(numbers))
            good = (hit >= _MOST * len(slow)) & (hit >= _MOST * own) & (hit > 0)
            for one in np.flatnonzero(good).tolist():
                members = frozenset(np.flatnonzero(place == one).tolist())
                wrong = len(slow) + int(own[one]) - 2 * int(hit[one])
                found.append(_Fit(kind, way, members, wrong))
    return found


def locate(slow: Sequence[Path], others: Sequence[Path], spots: Sequence[Spot]) -> Where:
    """Return what the slow paths have in common that the other paths do not have.

    Neighbours of a slow node may share most of its paths with it. Of several places that fit, it is
    the one that the fewest paths speak against, if there are twice as many against the others.
    """
    everybody = frozenset[int]().union(*(path.members for path in slow))
    fits = _fits(slow, others, spots)
    least = min((one.wrong for one in fits), default=0)
    fits = [one for one in fits if one.wrong <= 2 * least]
    for kind in (ADAPTER, NODE, RAIL):
        of_kind = [one for one in fits if one.kind == kind]
        if len({one.own for one in of_kind}) == 1:
            # A direction only if the place as a whole does not explain the paths as well.
            best = min(of_kind, key=lambda one: (one.wrong, (BOTH, OUT, IN).index(one.way)))
            return _where(best.kind, best.own, everybody, spots, best.way)
    # A communicator of all says less than the pairs do.
    pairs = [path.members for path in slow if path.sender >= 0]
    some = frozenset[int]().union(*pairs) if pairs else everybody
    return _where(PATHS, some, some, spots)


def _where(
    kind: str, own: frozenset[int], everybody: frozenset[int], spots: Sequence[Spot],
    way: str = BOTH,
) -> Where:  # fmt: skip
    nodes = tuple(sorted({spots[one].node for one in own & everybody}))
    local = {spots[one].local for one in own}
    return Where(
        kind,
        nodes,
        next(iter(local)) if kind in (RAIL, ADAPTER) else None,
        tuple(sorted(own & everybody)),
        way,
    )


def _least_slow(ratios: Floats) -> float:
    """Return the least T / the siblings' of a slow path; `ratios`: of all paths."""
    ratios = ratios[~np.isnan(ratios)]
    if len(ratios) < _SPREAD_OF:
        return SLOW
    middle, spread = spread_of(ratios)
    return min(SLOW, max(_CLEARLY_SLOW, middle + _SPREADS * spread))


def find_slow_paths(records: Records, order: Order, spots: Sequence[Spot]) -> tuple[SlowPaths, ...]:
    """Return the paths that were slow compared with their siblings; `spots` is by process.

    Paths within nodes and paths between nodes are judged separately.
    """
    path = path_numbers(records)
    paths = find_paths(records, path)
    inside_of = inside_nodes(paths, spots)
    middle, quarter, operations, usual = _ratios(records, order, path, inside_of)
    known = (operations >= OPERATIONS_MIN) & _has_transfers(records, path)
    found = []
    for inside in (False, True):
        side = known & (inside_of == inside)
        slow = side & (middle >= _least_slow(middle[side])) & (quarter >= _QUARTER)
        mine = np.flatnonzero(slow)
        rest = np.flatnonzero(side & ~slow)
        if not len(mine) or not len(rest):
            continue
        where = locate([paths[one] for one in mine], [paths[one] for one in rest], spots)
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
                usual,
            )
        )
    return tuple(found)


def _has_transfers(records: Records, path: Ints) -> Mask:
    """Tell which paths have operations of NCCL; a barrier of something else transfers nothing."""
    hidden = np.array([comm.hidden for comm in records.comms])
    found: Mask = np.bincount(path, hidden[records.comm]) == 0
    return found


def locate_then(
    records: Records, factor: Floats, then: Mask, spots: Sequence[Spot]
) -> Where | None:
    """Return what paths that were slow in some time have in common; None: all were.

    `factor`: for T by row (changes.Changes.transfer). `then`: the rows of that time, and of paths
    between nodes or of those within, because a good link within a node says nothing about the
    node's adapters. A Send beside a slow one in the same kernel, or on a rank that such a kernel
    has delayed, also takes longer, but not by as much.
    """
    path = path_numbers(records)
    paths = find_paths(records, path)
    here = np.flatnonzero(then & (records.size_class >= _SIZE_CLASS_MIN))
    more = medians(path[here], 1 / np.maximum(factor[here], 1e-9) - 1, len(paths))
    seen = ~np.isnan(more) & _has_transfers(records, path)
    most = float(more[seen].max(initial=0.0))
    if most <= 0:
        return None
    slow = [paths[one] for one in np.flatnonzero(seen & (more >= _SLOW_PART * most))]
    rest = [paths[one] for one in np.flatnonzero(seen & (more < _FINE_PART * most))]
    return locate(slow, rest, spots) if slow and rest else None
