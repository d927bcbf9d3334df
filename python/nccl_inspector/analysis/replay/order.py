# SPDX-License-Identifier: Apache-2.0
"""What the begin of each operation depends on: its stream, and the last operation that blocks it.

The *own gap* of an operation is its begin minus the end of the last blocking operation before it.
If keys go round a ring while a program computes on those that came before, it goes on when the next
transfer begins: computing needs the transfer before that one, and not what runs beside it. Then the
own gap is counted from that begin.
"""

from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    last_before,
    number_rows,
)
from nccl_inspector.analysis.replay.blocking import (
    PAIR_ROWS_MIN,
    QUEUED_NS,
    blocking,
    nearer_begin,
    works_beside,
)
from nccl_inspector.analysis.replay.kernels import kernels, streams
from nccl_inspector.analysis.replay.pattern import positions
from nccl_inspector.analysis.replay.records import SYNCHRONISING, Records
from nccl_inspector.analysis.replay.stages import comm_classes, stages
from nccl_inspector.model.process import FUNCS, PEER_NONE

_SEND, _RECV = FUNCS.index("Send"), FUNCS.index("Recv")
_LEAVES_MAX = 0.02  # share of a kind's rows that end before the last rank begins
_APART_NS = 50_000  # by which clocks differ at most, and the ends of one operation
_HANDED_SHARE = 0.8  # share of a kind's operations that are not queued, and of their numbers
_LARGE_CLASS = 20  # from 1 MB on, the time of a transfer is proportional to its bytes


@dataclass(frozen=True, slots=True)
class Order:
    """What each row of `Records` depends on; times are ns, -1 means no such row."""

    stage: Ints  # by process; processes that do the same work share one
    place: Ints  # rows at the same place of the program, over all ranks of a stage
    waited: Floats  # waiting for the last rank of the operation; NaN: not known
    transfer: Floats  # T of its operation; NaN: not known
    before: Ints  # the row before it on the same stream (communicator)
    cause: Ints  # the latest blocking row that ended before it began
    gap: Floats  # begin minus the end of `cause`; NaN without one
    queued: Mask  # it began as soon as its stream was free, so `gap` is an upper bound
    blocks: Mask  # it blocks what follows
    spot: Ints  # rows at the same place of the repeated pattern, over ranks and time
    kernel: Ints  # rows of one kernel share it: the Sends and Recvs of one call
    sure: float  # share of rows whose pair of kinds the data tell
    left: Mask  # its rank left the operation before the last one came, so it did not wait for it
    beside: Mask  # its gap is counted from the begin of `cause`, which runs beside its rank's work


def _may_leave(records: Records, kind: Ints, whole: Mask) -> Mask:
    """Tell which rows are of kinds in which a rank may leave before the last has come.

    In most functions none can: each needs something of all others, or of its peer. A rank that only
    sends, in a Broadcast, Reduce or Send, may leave as soon as others' buffers have all of it.
    Whether it does depends on size and algorithm, so that is measured.
    """
    found: Mask = ~np.isin(records.func, [*SYNCHRONISING, _RECV])
    asked = np.flatnonzero(whole & found)
    if not len(asked):
        return found
    early = _ends_early(records)[asked]
    many = int(kind.max()) + 1
    seen = np.bincount(kind[asked], minlength=many)
    left = np.bincount(kind[asked], early, minlength=many)
    stays: Mask = (seen > 0) & (left <= _LEAVES_MAX * seen)
    return found & ~(whole & stays[kind])


def _ends_early(records: Records) -> Mask:
    """Tell which rows end clearly before the last rank of their operation begins it."""
    last = np.full(int(records.joined.max()) + 1, records.begin.min())
    np.maximum.at(last, records.joined, records.begin)
    early: Mask = records.end < last[records.joined] - _APART_NS
    return early


def _waits(records: Records, kind: Ints) -> tuple[Floats, Floats, Mask]:
    """Return T of each row's operation, how long the row waited in it, and whether it left early.

    NaN: not known.
    """
    count = int(records.joined.max()) + 1
    times = (records.end - records.begin).astype(float)
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, records.joined, times)
    have = np.bincount(records.joined, minlength=count)
    nranks = np.array([comm.looked for comm in records.comms], np.int64)[records.comm]
    whole = have[records.joined] >= np.where(records.peer != PEER_NONE, 2, nranks)
    free = _may_leave(records, kind, whole)
    transfer = np.where(whole, shortest[records.joined], np.nan)
    # Of a Send and its Recv, the longer one has waited.
    waits = ~free | (records.peer != PEER_NONE)
    # If ranks are missing, one of them may have come last: T is no more than an upper bound.
    missing = np.array([comm.missing > 0 for comm in records.comms])[records.comm]
    told = np.where(missing & (records.peer == PEER_NONE), np.nan, transfer)
    return told, np.where(waits, times - transfer, np.nan), free & _ends_early(records)


def _before(kernel: Ints, stream: Ints, in_stream: Ints) -> Ints:
    """Return for each row the last row of the preceding kernel on its stream; -1: none."""
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
    """Return how much later each row ended because ranks waited, in it or before it in the queue.

    `in_stream`: all rows, ordered by stream and time. NaN if a waiting time is not known.
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

    An example is a reduction within the node followed by one between nodes. If the second is not
    queued, it begins when the first has ended. Each operation of one kind has its own of the other
    kind.
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
        if len(rows) < max(_HANDED_SHARE * np.count_nonzero(of_kind & free), PAIR_ROWS_MIN):
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
    """Return for each asking row the row of its process in `source` with this number; -1: none."""
    both = number_rows(
        np.concatenate((owner[source], owner[asking])),
        np.concatenate((records.number[source], numbers)),
    )
    table = np.full(int(both.max()) + 1, -1, np.int64)
    table[both[: len(source)]] = source
    return table[both[len(source) :]]


def _of_those_not_queued(
    records: Records, place: Ints, owner: Ints, cause: Ints, queued: Mask
) -> Ints:
    """Return the cause of each row; queued rows get the cause of ranks that were not queued there.

    While an operation waits for its stream, its rank goes on. So what ended last before it began
    may have ended long after its rank was ready. The program is the same on all ranks of a stage.
    """
    told = np.flatnonzero(~queued & (cause >= 0))
    asking = np.flatnonzero(queued)
    if not len(told) or not len(asking):
        return cause
    # For each place, the place of the cause that most ranks have.
    pair = number_rows(place[told], place[cause[told]])
    votes = np.bincount(pair)
    one = told[first_rows(pair)]
    order = np.lexsort((votes, place[one]))
    of_place = np.full(int(place.max()) + 1, -1, np.int64)
    of_place[place[one[order]]] = place[cause[one[order]]]  # the last assignment stays
    wanted = of_place[place[asking]]
    both = number_rows(np.concatenate((owner, owner[asking])), np.concatenate((place, wanted)))
    table = np.full(int(both.max()) + 1, -1, np.int64)
    # Of several rows (Sends and Recvs of one call) the one that ends last counts.
    by_end = np.argsort(records.end, kind="stable")
    table[both[by_end]] = by_end
    row = table[both[len(records) :]]
    good = (wanted >= 0) & (row >= 0) & (records.end[np.maximum(row, 0)] <= records.begin[asking])
    found = cause.copy()
    found[asking[good]] = row[good]
    return found


def _follows_beside(
    records: Records, place: Ints, spot: Ints, cause: Ints, beside: Mask, queued: Mask
) -> Mask:
    """Tell which rows of another stream go on from the begin of their cause, as its stream does."""
    there = np.maximum(cause, 0)
    mine = (cause >= 0) & ~beside & beside[there] & (records.comm[there] != records.comm)
    rows = np.flatnonzero(mine & ~queued)
    found: Mask = np.zeros(len(records), dtype=bool)
    if len(rows):
        nearer = nearer_begin(records, rows, cause, number_rows(spot, spot[there]))
        found = mine & (nearer > 0)
        found &= np.bincount(place, found)[place] > 0.5 * np.bincount(place)[place]
    return found


def _send_and_receive(records: Records, kernel: Ints) -> Mask:
    """Tell which rows are of kernels with both a Send and a Recv."""
    found: Mask = np.ones(len(records), dtype=bool)
    for func in (_SEND, _RECV):
        found &= np.bincount(kernel, records.func == func)[kernel] > 0
    return found


def find_order(records: Records) -> Order:
    """Return what each row depends on."""
    stream, in_stream = streams(records)
    kernel = kernels(records, stream, in_stream, records.piece)
    # `run` and not `piece`, because the border of two pieces may lie between a Send and a Recv of
    # one call.
    stage = stages(records, kernels(records, stream, in_stream, records.run))
    classes = comm_classes(records)[records.comm]
    kind = number_rows(
        classes, records.func, records.size_class, (records.peer != PEER_NONE).astype(np.int64)
    )
    place = number_rows(
        stage[records.member], records.run, classes, records.func, records.number,
        (records.peer != PEER_NONE).astype(np.int64),
    )  # fmt: skip
    transfer, waited, left = _waits(records, kind)
    position = positions(records, number_rows(classes, records.func))
    before = _before(kernel, stream, in_stream)
    queued = (before >= 0) & (records.begin - records.end[np.maximum(before, 0)] < QUEUED_NS)
    owner = number_rows(records.run, records.member)
    handed = _handed_on(records, kind, owner, before)
    delayed = _delays(in_stream, queued, waited)
    delayed = np.where(handed >= 0, delayed + delayed[np.maximum(handed, 0)], delayed)
    blocks, sure = blocking(records, place, stage[records.member], kind, position, delayed)
    # If streams run beside each other, what follows differs between ranks; the program does not.
    agree = np.bincount(place, blocks, minlength=int(place.max()) + 1) > 0.5 * np.bincount(place)
    blocks = agree[place]
    spot = number_rows(stage[records.member], kind, position)
    held = np.flatnonzero(blocks)
    cause = last_before(owner[held], records.end[held], owner, records.begin)
    cause = np.where(cause >= 0, held[np.maximum(cause, 0)] if len(held) else -1, -1)
    cause = np.where(handed >= 0, handed, cause)
    # A point at which all met was put in right after the operation before it.
    held = np.flatnonzero(np.array([comm.hidden for comm in records.comms])[records.comm])
    if len(held):
        cause[held] = last_before(owner, records.end, owner[held], records.begin[held])
    # A process without a record in a whole piece of a run lacks some, so its gap is not known.
    cause = np.where(records.piece - records.piece[np.maximum(cause, 0)] <= 1, cause, -1)
    at_once = queued
    queued = queued & (before != cause)
    cause = _of_those_not_queued(records, place, owner, cause, queued)
    shifts = _send_and_receive(records, kernel)
    beside = works_beside(records, place, spot, kind, before, cause, at_once, blocks, shifts)
    beside &= handed < 0
    # What blocks, and ended after that begin, counts.
    there = np.maximum(cause, 0)
    earlier = records.end[there] <= records.begin[np.maximum(before, 0)] + QUEUED_NS
    beside &= (cause < 0) | earlier | (kernel[there] == kernel[np.maximum(before, 0)])
    cause = np.where(beside, before, cause)
    beside |= _follows_beside(records, place, spot, cause, beside, queued) & (handed < 0)
    queued = np.where(beside, at_once, queued)
    there = np.maximum(cause, 0)
    since = np.where(beside, records.begin[there], records.end[there])
    gap = np.where(cause >= 0, records.begin - since, np.nan)
    return Order(
        stage, place, waited, transfer, before, cause, gap.astype(float), queued, blocks, spot,
        kernel, sure, left, beside,
    )  # fmt: skip


def cost_of_bytes(records: Records, transfer: Floats) -> Floats:
    """Return T; for large operations T per byte: sizes within a class differ by up to two."""
    large = records.size_class >= _LARGE_CLASS
    return np.where(large, transfer / np.maximum(records.bytes, 1), transfer)
