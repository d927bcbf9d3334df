# SPDX-License-Identifier: Apache-2.0
"""T of each kind of operation from exact records: the time of the rank that came last each time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.replay.arrays import first_rows, medians, number_rows
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.records import SYNCHRONISING
from nccl_inspector.model.process import FUNCS, PEER_NONE

SAMPLED_MIN = 5  # operations: with fewer, the histograms of all operations are better
# Records have no algorithm. They are used for the algorithm that nearly all operations of a kind
# have.
ALGORITHM_SHARE_MIN = 0.95
_MEDIAN_ERROR = 1.253 * 1.4826  # standard error of a median, in median deviations / sqrt(n)

Kind = tuple[int, str, int]  # communicator's id, function, size class


@dataclass(frozen=True, slots=True)
class Transfer:
    """The median of T (ns) over the sampled operations of which all ranks have a record."""

    time_ns: float
    error_ns: float  # standard error
    operations: int


def find_transfers(judged: Judged) -> dict[Kind, Transfer]:
    """Return T by kind of operation, for kinds with enough sampled operations."""
    records, order = judged.records, judged.order
    if records is None or order is None:
        return {}
    waits = np.isin(records.func, list(SYNCHRONISING)) | (records.peer != PEER_NONE)
    # If not all ranks were looked at, the last one may be another.
    all_ranks = np.array([not comm.left_out for comm in records.comms])[records.comm]
    known = np.flatnonzero(waits & all_ranks & ~np.isnan(order.transfer))
    if not len(known):
        return {}
    # One row for each operation, but both rows of a Send and its Recv.
    rows = known[first_rows(number_rows(records.joined[known], records.func[known]))]
    ids = [comm.id for comm in records.comms]  # one that was created again has several places
    place = {comm_id: number for number, comm_id in enumerate(dict.fromkeys(ids))}
    comm = np.array([place[comm_id] for comm_id in ids], np.int64)[records.comm[rows]]
    func, size = records.func[rows], records.size_class[rows]
    kind = number_rows(comm, func, size)
    count = int(kind.max()) + 1
    times = order.transfer[rows]
    middle = medians(kind, times, count)
    apart = medians(kind, np.abs(times - middle[kind]), count)
    seen = np.bincount(kind, minlength=count)
    head = first_rows(kind)
    return {
        (ids[records.comm[rows[at]]], FUNCS[func[at]], int(size[at])): Transfer(
            float(middle[number]),
            _MEDIAN_ERROR * float(apart[number]) / sqrt(float(seen[number])),
            int(seen[number]),
        )
        for number, at in enumerate(head.tolist())
        if seen[number] >= SAMPLED_MIN
    }


def with_transfers(
    comms: Sequence[JoinedComm], found: Mapping[Kind, Transfer]
) -> tuple[JoinedComm, ...]:
    """Return the communicators with the T of `find_transfers` for the kinds that have one."""
    return tuple(_with(comm, found) if found else comm for comm in comms)


def _with(comm: JoinedComm, found: Mapping[Kind, Transfer]) -> JoinedComm:
    counts: Counter[tuple[str, int]] = Counter()
    for one in comm.figures:
        counts[one.func, one.size_class] += one.operations
    figures = []
    for one in comm.figures:
        transfer = found.get((comm.id, one.func, one.size_class))
        share = one.operations / counts[one.func, one.size_class]
        if transfer is not None and share >= ALGORITHM_SHARE_MIN:
            figures.append(one.timed(transfer.time_ns, transfer.error_ns))
        else:
            figures.append(one)
    return replace(comm, figures=tuple(figures))
