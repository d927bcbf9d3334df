# SPDX-License-Identifier: Apache-2.0
"""What the begin of an operation depends on, and how long its rank itself took before it.

An operation *blocks* what follows if the program waits for its end: then the next begin keeps its
distance from that end, however long the operation had to wait for its last rank. If it does not
block (the next one is only queued behind it, or runs beside it), the next begin comes as much
closer as it waited. Which of the two holds is asked of the data, for each pair of kinds.

The *own gap* of an operation is its begin minus the end of the last blocking operation before it.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    distinct_pairs,
    first_rows,
    last_before,
    medians,
    medians_of_others,
    number_rows,
    order_groups,
    order_rows,
)
from nccl_inspector.analysis.replay.records import SYNCHRONISING, Records
from nccl_inspector.model import FUNCS, PEER_NONE

_SEND, _RECV = FUNCS.index("Send"), FUNCS.index("Recv")
# A begin this soon after the end before it on the same stream came as soon as the stream was free:
# when its rank was ready is not known. Kernels follow each other within some microseconds.
QUEUED_NS = 25_000
_OVERLAP_NS = 1_000  # by which two operations of a stream overlap that are one kernel
_PERIOD_MAX, _PERIOD_ROWS, _PERIOD_SLACK = 160, 2000, 1.25
_PAIR_ROWS_MIN = 8  # fewer observations of a pair of kinds tell nothing
_WAIT_NS_MIN = 10_000.0  # variation of the waiting that is too small to test anything by
_CLEARLY = 0.35  # difference of two logarithms of spreads that is none by chance
_EXCHANGE_SHARE = 0.98  # of the kernels with Sends or Recvs, those with both
_HANDED_SHARE = 0.8  # of the operations of a kind that are not queued, and of their numbers
_SLOPE_ERROR_MAX = 0.2
_BLOCKS_SLOPE = 0.5  # of the next begin against the waiting: 0 blocks, 1 does not


@dataclass(frozen=True, slots=True)
class Order:
    """Of each row of `Records`: what it depends on. Times are ns, -1 means no such row."""

    stage: Ints  # by process: those that do the same work share one
    place: Ints  # rows at the same place of the program, over all ranks of a stage
    waited: Floats  # for the last rank of the operation; NaN: not known
    transfer: Floats  # T of its operation; NaN: not known
    before: Ints  # row before it on the same stream (communicator)
    cause: Ints  # latest blocking row that ended before it began
    gap: Floats  # begin minus the end of `cause`; NaN without one
    queued: Mask  # it began when its stream was free: the gap is at most that
    blocks: Mask  # it blocks what follows
    spot: Ints  # rows at the same place of the repeated pattern, over ranks and time
    kernel: Ints  # rows of one kernel share it: the Sends and Recvs of one call
    sure: float  # share of the pairs of kinds, by rows, for which the data told


class _Sets:
    """Numbers that belong together."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, at: int) -> int:
        """Return what all numbers of a set have in common."""
        while self._parent[at] != at:
            self._parent[at] = self._parent[self._parent[at]]
            at = self._parent[at]
        return at

    def join(self, one: int, other: int) -> None:
        """Make one set of two."""
        self._parent[self.root(other)] = self.root(one)


def _stages(records: Records, kernel: Ints) -> Ints:
    """Return by process the number of its stage.

    Ranks between which Sends and Recvs go, over others or not, are stages of one pipeline. All
    others that share a communicator do the same work, unless it has two stages of a pipeline.
    """
    pipelines, stages = _Sets(records.members), _Sets(records.members)
    for one, others in _partners(records, kernel).items():
        for other in others:
            pipelines.join(one, other)
    for comm in records.comms:
        if len({pipelines.root(one) for one in comm.members}) == len(comm.members):
            for member in comm.members[1:]:
                stages.join(comm.members[0], member)
    return number_rows(np.array([stages.root(at) for at in range(records.members)], np.int64))


def _partners(records: Records, kernel: Ints) -> dict[int, set[int]]:
    """Return for each process those with which it works in a pipeline.

    Ranks that always send and receive in one call, round a ring or to and fro, are no stages: all
    do the same. A pipeline fills and empties, one way at a time.
    """
    paired = (records.peer != PEER_NONE) & np.isin(records.func, (_SEND, _RECV))
    size = int(kernel.max()) + 1
    sends = np.bincount(kernel[paired & (records.func == _SEND)], minlength=size) > 0
    gets = np.bincount(kernel[paired & (records.func == _RECV)], minlength=size) > 0
    comm_of = records.comm[first_rows(kernel)]
    count = len(records.comms)
    some = np.bincount(comm_of[sends | gets], minlength=count)
    both = np.bincount(comm_of[sends & gets], minlength=count)
    in_line = (some > 0) & (both < _EXCHANGE_SHARE * some)
    rows = np.flatnonzero(paired & in_line[records.comm])
    found: dict[int, set[int]] = {}
    order = rows[np.argsort(records.joined[rows], kind="stable")]
    same = records.joined[order][1:] == records.joined[order][:-1]
    pairs = distinct_pairs(records.member[order[:-1]][same], records.member[order[1:]][same])
    for one, other in zip(*(side.tolist() for side in pairs), strict=True):
        if one != other:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def comm_classes(records: Records) -> Ints:
    """Return by communicator its class: those of the same part in the program share one."""
    sizes = np.array([comm.nranks for comm in records.comms], np.int64)
    ordinals = np.array([comm.ordinal for comm in records.comms], np.int64)
    return number_rows(sizes, ordinals)


def _waits(records: Records) -> tuple[Floats, Floats]:
    """Return T of each row's operation, and how long the row waited in it; NaN: not known."""
    count = int(records.joined.max()) + 1
    times = (records.end - records.begin).astype(float)
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, records.joined, times)
    have = np.bincount(records.joined, minlength=count)
    nranks = np.array([comm.looked for comm in records.comms], np.int64)[records.comm]
    whole = have[records.joined] >= np.where(records.peer != PEER_NONE, 2, nranks)
    waits = np.isin(records.func, list(SYNCHRONISING)) | (records.peer != PEER_NONE)
    transfer = np.where(whole, shortest[records.joined], np.nan)
    return transfer, np.where(waits, times - transfer, np.nan)


def _followers(records: Records) -> Ints:
    """Return for each row the first row of its process that began after its end; -1: none."""
    count = len(records)
    rows = np.arange(count)
    # The first begin that is not before an end is the last one of time turned round.
    turned = int(records.end.max()) - records.begin
    until = int(records.end.max()) - records.end
    found = last_before(records.member, turned, records.member, until)
    same = (found >= 0) & (records.piece[np.maximum(found, 0)] == records.piece[rows])
    return np.where(same, found, -1)


def find_period(logs: Floats) -> int:
    """Return after how many operations their pattern of intervals (logarithms) comes again.

    1 where none does. The shortest period that explains about as much as the best one.
    """
    most = min(_PERIOD_MAX, len(logs) // 3)
    if most < 2:
        return 1
    left = np.empty(most)
    for period in range(1, most + 1):
        whole = len(logs) // period * period
        table = logs[:whole].reshape(-1, period)
        left[period - 1] = np.mean(np.abs(table - np.median(table, axis=0)))
    good = left <= _PERIOD_SLACK * left.min() + 0.005
    return int(np.argmax(good)) + 1


def _phase(pattern: Floats, logs: Floats, period: int) -> int:
    """Return by how much a series of intervals is shifted against a pattern."""
    shifted = np.stack([np.roll(pattern, -shift) for shift in range(period)])
    wide = np.tile(shifted, -(-len(logs) // period))[:, : len(logs)]
    return int(np.abs(wide - logs).mean(axis=1).argmin())


def positions(records: Records, classes: Ints) -> Ints:
    """Return for each row its place in the pattern of its class of operations.

    One process and communicator speak for all; where the pattern is found in the piece of time with
    most operations, the others are held against it: an evaluation shifts all that follow.
    """
    found = np.zeros(len(records), np.int64)
    for one in np.unique(classes):
        of_class = np.flatnonzero(classes == one)
        first = of_class[0]
        rows = of_class[
            (records.member[of_class] == records.member[first])
            & (records.comm[of_class] == records.comm[first])
        ]
        pieces = np.bincount(records.piece[rows])
        template = rows[records.piece[rows] == int(pieces.argmax())][:_PERIOD_ROWS]
        logs = np.log(np.maximum(np.diff(records.begin[template]).astype(float), 1e3))
        period = find_period(logs)
        number = records.number[of_class]
        if period == 1:
            continue
        place = records.number[template[:-1]] % period
        pattern = medians(place, logs, period)
        pattern = np.nan_to_num(pattern, nan=float(np.median(logs)))
        shift = np.zeros(len(pieces), np.int64)
        for piece in np.flatnonzero(pieces > period).tolist():
            own = rows[records.piece[rows] == piece][: 4 * period + 1]
            own_logs = np.log(np.maximum(np.diff(records.begin[own]).astype(float), 1e3))
            start = int(records.number[own[0]]) % period
            shift[piece] = (_phase(pattern, own_logs, period) - start) % period
        known = np.minimum(records.piece[of_class], len(pieces) - 1)
        found[of_class] = (number + shift[known]) % period
    return found


def _pair_classes(follower: Ints, kind: Ints, position: Ints) -> Ints:
    """Return the class of (row, its follower): both kinds, and where in the pattern it is.

    A program's buckets are of one kind, and only the last one of a step is waited for.
    """
    after = np.where(follower >= 0, kind[np.maximum(follower, 0)], -1)
    return number_rows(kind, after, position)


def _elsewhere(records: Records, follower: Ints) -> Ints:
    """Return for each row the latest row of another stream that ended before its follower began."""
    rows = np.flatnonzero(follower >= 0)
    found = np.full(len(records), -1, np.int64)
    owner = number_rows(records.piece, records.member)
    classes = comm_classes(records)[records.comm]
    latest = np.full(len(rows), -(1 << 62), np.int64)
    for one in np.unique(classes):
        of_class = np.flatnonzero(classes == one)
        at = last_before(
            owner[of_class], records.end[of_class], owner[rows], records.begin[follower[rows]]
        )
        row = np.where(at >= 0, of_class[np.maximum(at, 0)], -1)
        better = (row >= 0) & (classes[rows] != one) & (records.end[np.maximum(row, 0)] > latest)
        found[rows[better]] = row[better]
        latest[better] = records.end[row[better]]
    return found


def _residual(values: Floats, *groups: Ints) -> Floats:
    """Return what is left of values when the middle of each of their groups is taken out."""
    for one in groups:
        values = values - medians(one, values, int(one.max()) + 1)[one]
    return values


@dataclass(frozen=True, slots=True)
class _Evidence:
    """By class of (row, follower): what is known of its blocking."""

    seen: Ints
    told: Mask
    blocks: Mask


def _slopes(classes: Ints, moved: Floats, delayed: Floats, count: int) -> tuple[Floats, Floats]:
    """Return by class the slope of one against the other, and its standard error."""
    moved, delayed = _residual(moved, classes), _residual(delayed, classes)
    # A few long pauses must not decide it.
    scale = medians(classes, np.abs(moved), count)[classes] * 8 + 1e3
    wide = medians(classes, np.abs(delayed), count)[classes] * 8 + 1e3
    moved, delayed = np.clip(moved, -scale, scale), np.clip(delayed, -wide, wide)
    seen = np.bincount(classes, minlength=count)
    both = np.bincount(classes, moved * delayed, minlength=count)
    square = np.bincount(classes, delayed * delayed, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = both / square
        left = moved - slope[classes] * delayed
        noise = np.bincount(classes, left * left, minlength=count) / np.maximum(seen - 2, 1)
        error = np.sqrt(noise / square)
    error[(seen < _PAIR_ROWS_MIN) | (np.sqrt(square / np.maximum(seen, 1)) < _WAIT_NS_MIN)] = np.nan
    return slope, error


def _by_slope(place: Ints, classes: Ints, pairs: Ints, rows: Ints, far: Floats, waited: Floats,
              count: int) -> _Evidence:  # fmt: skip
    """Ask whether what follows comes as much closer as the ranks had to wait.

    That is asked of the middle of the ranks that waited, from one time to the next: how long they
    wait is the last rank's doing. (One rank's own pace would change its waiting and its next begin
    by the same, whether it is blocked or not.) `pairs`: classes without the place in the pattern,
    asked where there is too little of a class.
    """
    least = np.full(int(place.max()) + 1, np.inf)
    np.minimum.at(least, place[rows], waited[rows])
    held = rows[waited[rows] > least[place[rows]]]
    seen = np.bincount(classes[rows], minlength=count)
    if not len(held):
        return _Evidence(seen, np.zeros(count, bool), np.ones(count, bool))
    here = number_rows(classes[held], place[held])
    size = int(here.max()) + 1
    moved, delayed = medians(here, far[held], size), medians(here, waited[held], size)
    one = first_rows(here)
    fine, coarse = classes[held][one], pairs[held][one]
    slope, error = _slopes(fine, moved, delayed, count)
    of_pair = np.zeros(count, np.int64)
    of_pair[classes[rows]] = pairs[rows]
    many = int(pairs.max()) + 1
    middle = medians(fine, moved, count), medians(fine, delayed, count)
    slope2, error2 = _slopes(coarse, moved - middle[0][fine], delayed - middle[1][fine], many)
    poor = ~(error < _SLOPE_ERROR_MAX)
    slope = np.where(poor, slope2[of_pair], slope)
    error = np.where(poor, error2[of_pair], error)
    return _Evidence(seen, error < _SLOPE_ERROR_MAX, ~(slope < -_BLOCKS_SLOPE))


def _by_constancy(records: Records, classes: Ints, rows: Ints, far: Floats, count: int,
                  follower: Ints) -> _Evidence:  # fmt: skip
    """Ask which end the next begin keeps its distance from: this one, or one of another stream."""
    other = _elsewhere(records, follower)
    rows = rows[other[rows] >= 0]
    seen = np.bincount(classes[rows], minlength=count)
    if not len(rows):
        return _Evidence(seen, np.zeros(count, bool), np.ones(count, bool))
    farther = (records.begin[follower[rows]] - records.end[other[rows]]).astype(float)
    own = number_rows(classes[rows], records.member[rows])
    here = medians(classes[rows], np.abs(_residual(far[rows], own)), count)
    there = medians(classes[rows], np.abs(_residual(farther, own)), count)
    told = (seen >= _PAIR_ROWS_MIN) & (np.abs(np.log((here + 500) / (there + 500))) > _CLEARLY)
    return _Evidence(seen, told, here < there)


def _blocking(
    records: Records, place: Ints, kind: Ints, position: Ints, waited: Floats
) -> tuple[Mask, float]:
    """Return which rows block what follows, and the share of rows of which that is known."""
    follower = _followers(records)
    classes = _pair_classes(follower, kind, position)
    count = int(classes.max()) + 1
    has = (follower >= 0) & ~np.isnan(waited)
    after = np.maximum(follower, 0)
    far = np.where(has, records.begin[after] - records.end, np.nan).astype(float)
    at_once = has & (records.comm[after] == records.comm) & (far < QUEUED_NS)
    rows = np.flatnonzero(has & ~at_once)
    every = np.bincount(classes[has], minlength=count)
    queued = np.bincount(classes[at_once], minlength=count) > 0.5 * np.maximum(every, 1)
    if not len(rows):
        return ~queued[classes] & (follower >= 0), 0.0
    slope = _by_slope(place, classes, number_rows(kind, kind[after]), rows, far, waited, count)
    constant = _by_constancy(records, classes, rows, far, count, follower)
    blocks = np.where(constant.told, constant.blocks, np.where(slope.told, slope.blocks, True))
    told = constant.told | slope.told | queued
    known = float(every[told].sum()) / max(float(every.sum()), 1.0)
    return (blocks & ~queued)[classes] & (follower >= 0), known


def _kernels(records: Records, stream: Ints, in_stream: Ints) -> Ints:
    """Return the number of each row's kernel.

    A stream runs one kernel at a time, so Sends and Recvs that overlap on it are one: its end is
    that of the last of them.
    """
    paired = (records.peer != PEER_NONE)[in_stream]
    same = (stream[in_stream][1:] == stream[in_stream][:-1]) & paired[1:] & paired[:-1]
    same &= records.begin[in_stream][1:] < records.end[in_stream][:-1] - _OVERLAP_NS
    found = np.zeros(len(records), np.int64)
    found[in_stream] = np.append(0, np.cumsum(~same))
    return found


def _before(kernel: Ints, stream: Ints, in_stream: Ints) -> Ints:
    """Return for each row the last row of the kernel before its own on its stream; -1: none."""
    ordered = kernel[in_stream]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    size = np.diff(np.append(first, len(ordered)))
    start = np.repeat(first, size)
    earlier = in_stream[np.maximum(start - 1, 0)]
    same = (start > 0) & (stream[earlier] == stream[in_stream])
    found = np.full(len(ordered), -1, np.int64)
    found[in_stream] = np.where(same, earlier, -1)
    return found


def _delays(in_stream: Ints, queued: Mask, waited: Floats) -> Floats:
    """Return by how much each end came later because ranks waited: here, or before in the queue.

    `in_stream`: all rows, stream by stream in the order of time. NaN where a waiting is not known.
    """
    waits = waited[in_stream]
    total = np.cumsum(np.nan_to_num(waits))
    heads = np.flatnonzero(~queued[in_stream])
    first = np.maximum.accumulate(np.where(~queued[in_stream], np.arange(len(in_stream)), 0))
    earlier = np.where(first > 0, total[np.maximum(first - 1, 0)], 0.0)
    found = np.empty(len(waits))
    found[in_stream] = np.where(np.isnan(waits), np.nan, total - earlier)
    return found if len(heads) else waited


def _handed_on(records: Records, kind: Ints, owner: Ints, before: Ints) -> Ints:
    """Return for each row the row of another stream whose result it takes; -1: none is known.

    A reduction within the node and then one between nodes, say: where the second is not queued, it
    begins when the first has ended. Each operation of the one kind has its own of the other.
    """
    found = np.full(len(records), -1, np.int64)
    latest = last_before(owner, records.end, owner, records.begin)
    there = np.maximum(latest, 0)
    free = (before < 0) | (records.begin - records.end[np.maximum(before, 0)] >= QUEUED_NS)
    other = (latest >= 0) & (records.comm[there] != records.comm)
    near = free & other & (records.begin - records.end[there] < QUEUED_NS)
    pairs = number_rows(kind, np.where(near, kind[there], -1))
    for pair in np.unique(pairs[near]).tolist():
        rows = np.flatnonzero(near & (pairs == pair))
        of_kind = kind == kind[rows[0]]
        if len(rows) < max(_HANDED_SHARE * np.count_nonzero(of_kind & free), _PAIR_ROWS_MIN):
            continue
        apart = records.number[rows] - records.number[there[rows]]
        usual = int(np.median(apart))
        if np.mean(apart == usual) < _HANDED_SHARE:
            continue
        taken = np.flatnonzero(of_kind)
        source = np.flatnonzero(kind == kind[there[rows[0]]])
        row = _rows_of(records, owner, source, taken, records.number[taken] - usual)
        good = (row >= 0) & (records.end[np.maximum(row, 0)] <= records.begin[taken] + QUEUED_NS)
        found[taken[good]] = row[good]
    return found


def _rows_of(records: Records, owner: Ints, source: Ints, asking: Ints, numbers: Ints) -> Ints:
    """Return of each asking row's process the row among `source` that has a number; -1: none."""
    both = number_rows(
        np.concatenate((owner[source], owner[asking])),
        np.concatenate((records.number[source], numbers)),
    )
    table = np.full(int(both.max()) + 1, -1, np.int64)
    table[both[: len(source)]] = source
    return table[both[len(source) :]]


def find_order(records: Records) -> Order:
    """Return what each row depends on."""
    stream = number_rows(records.piece, records.member, records.comm)
    in_stream = order_rows(stream, records.begin, records.end)
    kernel = _kernels(records, stream, in_stream)
    stage = _stages(records, kernel)
    classes = comm_classes(records)[records.comm]
    kind = number_rows(
        classes, records.func, records.size_class, (records.peer != PEER_NONE).astype(np.int64)
    )
    place = number_rows(
        stage[records.member], records.piece, classes, records.func, records.number,
        (records.peer != PEER_NONE).astype(np.int64),
    )  # fmt: skip
    transfer, waited = _waits(records)
    position = positions(records, number_rows(classes, records.func))
    before = _before(kernel, stream, in_stream)
    queued = (before >= 0) & (records.begin - records.end[np.maximum(before, 0)] < QUEUED_NS)
    delayed = _delays(in_stream, queued, waited)
    blocks, sure = _blocking(records, place, kind, position, delayed)
    # What follows differs by rank where streams run beside each other; the program does not.
    agree = np.bincount(place, blocks, minlength=int(place.max()) + 1) > 0.5 * np.bincount(place)
    blocks = agree[place]
    spot = number_rows(stage[records.member], kind, position)
    owner = number_rows(records.piece, records.member)
    held = np.flatnonzero(blocks)
    cause = last_before(owner[held], records.end[held], owner, records.begin)
    cause = np.where(cause >= 0, held[np.maximum(cause, 0)] if len(held) else -1, -1)
    handed = _handed_on(records, kind, owner, before)
    cause = np.where(handed >= 0, handed, cause)
    gap = np.where(cause >= 0, records.begin - records.end[np.maximum(cause, 0)], np.nan)
    queued &= before != cause
    return Order(
        stage, place, waited, transfer, before, cause, gap.astype(float), queued, blocks, spot,
        kernel, sure,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gaps:
    """Own gaps by row, ns. NaN: not known.

    `own`: what the rank itself took, also where it had to queue; `usual`: at its peers' pace.
    """

    own: Floats
    usual: Floats


def find_gaps(records: Records, order: Order) -> Gaps:
    """Return the gaps that ranks had, and would have had at their peers' pace.

    The latter is the middle of its peers' at the same place. Where most of them began as soon as
    their stream was free, nobody knows when they were ready: there it is what is usual at that
    place of the pattern, else the row's own gap is taken from the place before it, with what came
    between at the pace that the rank has elsewhere.
    """
    known = ~np.isnan(order.gap)
    usual = np.full(len(records), np.nan)
    rows = np.flatnonzero(known)
    # Gaps are compared that are counted from the same operation.
    place = number_rows(order.place, np.where(order.cause >= 0, order.place[order.cause], -1))
    usual[rows] = medians_of_others(place[rows], order.gap[rows])
    count = int(place.max()) + 1
    clear = np.bincount(place[rows], ~order.queued[rows], minlength=count)[place]
    every = np.bincount(place[rows], minlength=count)[place]
    # Of the others: whether a rank was late must not be asked of itself.
    murky = known & (2 * (clear - ~order.queued) < every - 1)
    # Gaps of one place of the pattern that are counted from another place are no comparison.
    spot = number_rows(order.spot, np.where(order.cause >= 0, order.spot[order.cause], -1))
    usual_there = _usual_at_other_times(records, order, spot, known)
    filled = murky & ~np.isnan(usual_there)
    usual = np.where(filled, np.minimum(usual_there, order.gap), usual)
    murky &= ~filled
    own = order.gap.copy()
    queued = order.queued & ~np.isnan(usual)
    return _carry_on(records, order, place, Gaps(own, usual), murky, queued & ~murky)


def _usual_at_other_times(records: Records, order: Order, spot: Ints, known: Mask) -> Floats:
    """Return for each row what its peers take at its place of the pattern at most times.

    Of peers that nearly always have to queue there nothing is known. NaN: of less than half of them.
    """
    cell = number_rows(spot, records.member)
    size = int(cell.max()) + 1
    every = np.bincount(cell[known], minlength=size)
    clear = known & ~order.queued
    seen = np.bincount(cell[clear], minlength=size)
    middle = medians(cell[clear], order.gap[clear], size)
    spot_of = np.zeros(size, np.int64)
    spot_of[cell] = spot
    told = np.flatnonzero((seen > 0) & (3 * seen >= every))
    others = medians(spot_of[told], middle[told], int(spot.max()) + 1)[spot_of]
    without = medians_of_others(spot_of[told], middle[told])
    others[told] = without
    # Who alone does not queue is late: what it takes is not usual.
    spots = int(spot.max()) + 1
    members = np.bincount(spot_of, minlength=spots)[spot_of]
    clear_of = np.bincount(spot_of[told], minlength=spots)[spot_of]
    clear_of[told] -= 1
    others[2 * clear_of < members - 1] = np.nan
    return others[cell]


def _ratio(own: Floats, usual: Floats, at: Ints) -> Floats:
    """Return what ranks took at some rows beside what is usual there; 1 where that is not known."""
    there = np.maximum(at, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = own[there] / usual[there]
    fine = (at >= 0) & (usual[there] > QUEUED_NS) & np.isfinite(found)
    return np.where(fine, np.clip(found, 0.5, 2.0), 1.0)


def _carry_on(
    records: Records, order: Order, place: Ints, gaps: Gaps, murky: Mask, queued: Mask
) -> Gaps:
    """Carry gaps on from the last place at which they are known, operation by operation.

    `murky`: what is usual there is not known. `queued`: it is, but not what the rank itself took.
    `place`: rows with the same one are compared.
    """
    usual, own = gaps.usual, gaps.own
    # The place before, of the same process, with the same cause.
    run = number_rows(records.member, order.cause)
    by_run = order_rows(run, records.begin, records.begin)
    previous = np.full(len(records), -1, np.int64)
    same = (run[by_run][1:] == run[by_run][:-1]) & (order.cause[by_run][1:] >= 0)
    previous[by_run[1:][same]] = by_run[:-1][same]
    has = previous >= 0
    step = np.where(has, order.gap - order.gap[np.maximum(previous, 0)], order.gap)
    usual_step = np.where(has, usual - usual[np.maximum(previous, 0)], usual)
    # A rank's pace: its own steps against the usual ones, where both are known.
    clear = ~murky & ~order.queued & ~np.isnan(step) & (usual_step > QUEUED_NS)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(clear, step / usual_step, np.nan)
    fine = ~np.isnan(ratio)
    pace = medians(records.member[fine], ratio[fine], records.members)
    pace = np.clip(np.nan_to_num(pace, nan=1.0), 0.25, 4.0)
    depth = np.zeros(len(records), np.int64)
    begin_of_run = np.ones(len(by_run), dtype=bool)
    begin_of_run[1:] = ~same
    start = np.maximum.accumulate(np.where(begin_of_run, np.arange(len(by_run)), 0))
    depth[by_run] = np.arange(len(by_run)) - start
    by_depth = order_groups(depth)
    cuts = np.flatnonzero(np.diff(depth[by_depth])) + 1
    usual, own = usual.copy(), own.copy()
    # In the order of time, so that each carries on from the one before.
    for rows in np.split(by_depth, cuts):
        # A rank that was late or early at the place before is so by as much, in proportion.
        hidden = rows[queued[rows]]
        own[hidden] = np.fmin(
            order.gap[hidden], usual[hidden] * _ratio(own, usual, previous[hidden])
        )
        todo = rows[murky[rows]]
        if not len(todo):
            continue
        before = np.maximum(previous[todo], 0)
        base = np.where(has[todo], usual[before], 0.0)
        # Those who were not queued tell how long the step takes: all take the middle of them.
        told = ~order.queued[todo]
        ready = base + step[todo] / pace[records.member[todo]]
        here = number_rows(place[todo])
        middle = medians(here[told], ready[told], int(here.max()) + 1)[here]
        nobody = np.isnan(middle)
        # Where all were queued they were ready at any time since the operation before: at once.
        usual[todo] = np.where(nobody, base, middle)
        own_base = np.where(has[todo], own[before], 0.0)
        by_ratio = np.fmin(order.gap[todo], middle * _ratio(own, usual, previous[todo]))
        queued_own = np.where(nobody, own_base, by_ratio)
        own[todo] = np.where(told, order.gap[todo], queued_own)
    return Gaps(own, usual)
