# SPDX-License-Identifier: Apache-2.0
"""When a process called after it stood still for long: what late_calls.py says, for rare stops.

Of a large job only some pieces of time are replayed, and rare stops lie in few of them or in none.
But a process has records of all operations, or of those in bursts, and of the first one after a
long gap it is about known when it was called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints
from nccl_inspector.analysis.replay.late_calls import (
    SHORT_SHARE,
    LateCalls,
    before_call,
    kind_of,
)
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import PEER_NONE, Samples
from nccl_inspector.summary.unpacked_samples import clock_columns

STOP_NS_MIN = 300_000_000.0  # ns: above what the time of a call is known to (a quarter of a second)
_TIMES_USUAL = 4.0  # of what peers take there: so much slower no GPU is that still works
_STOPS_MAX = 100  # the longest ones of a process that are looked at
_PEERS_MAX = 8  # processes that they are compared with

_Name = tuple[int, int, int]  # of an operation's kind: communicator, its incarnation, function


@dataclass(frozen=True, slots=True)
class _Gaps:
    """What a process did not do, before each of its operations."""

    names: list[_Name]  # by kind
    kind: Ints
    index: Ints
    single: Ints  # 0: it has a peer, so it is another one's operation, too
    gap: Floats  # ns since the latest end; NaN: not known
    queued: Floats
    within: Floats


def _gaps(samples: Samples) -> _Gaps:
    columns = samples.columns()
    end = columns.start_ns + columns.time_ns
    latest = np.maximum.accumulate(end)
    gap = np.full(len(end), np.nan)
    gap[1:] = columns.start_ns[1:] - latest[:-1]
    clocks = clock_columns(samples)
    if samples.length_bits < samples.period_bits and clocks and len(end):
        # Between two bursts it may have done anything.
        burst = clocks[0].unix_ns(end) >> samples.period_bits
        gap[1:][burst[1:] != burst[:-1]] = np.nan
    return _Gaps(
        [(one.comm_id, one.incarnation, one.func) for one in samples.kinds],
        columns.kind.astype(np.int64),
        columns.index,
        (columns.peer == PEER_NONE).astype(np.int64),
        gap,
        columns.queued_ns.astype(float),
        columns.within_ns.astype(float),
    )


def _same(gaps: _Gaps, name: _Name, index: int) -> float:
    """Return the gap before the operation of another process; NaN: it has none."""
    kinds = [place for place, one in enumerate(gaps.names) if one == name]
    rows = np.flatnonzero(np.isin(gaps.kind, kinds) & (gaps.index == index))
    return float(gaps.gap[rows[0]]) if len(rows) else float("nan")


@dataclass(frozen=True, slots=True)
class _Stop:
    late_ns: float
    later_ns: float
    variance: float
    queued_ns: float


def _stops(own: _Gaps, others: Sequence[_Gaps], least_ns: float) -> list[_Stop]:
    """Return the stops of a process that its peers did not make."""
    before, known, unsure = before_call(own.gap, own.queued, own.within)
    rows = np.flatnonzero(known & (own.gap >= least_ns) & (own.single > 0))
    rows = rows[np.argsort(-own.gap[rows], kind="stable")][:_STOPS_MAX]
    found = []
    for row in rows.tolist():
        name, index = own.names[own.kind[row]], int(own.index[row])
        theirs = [gap for one in others if not np.isnan(gap := _same(one, name, index))]
        usual = max(float(np.median(theirs)), 0.0) if theirs else np.inf
        late_ns = float(own.gap[row]) - usual
        if late_ns < max(least_ns, _TIMES_USUAL * usual):
            continue
        # When the peers called is not known.
        found.append(
            _Stop(
                late_ns,
                max(float(before[row]), 0.0) - usual / 2,
                float(unsure[row]) + usual**2 / 12,
                float(own.queued[row]),
            )
        )
    return found


def judge_stops(
    samples: Mapping[int, Samples], members: Sequence[int], late_ns: float, hidden: float
) -> LateCalls | None:
    """Return when processes called that stood still for about `late_ns`; None: not known.

    `samples`: of each process whose records were read. `hidden`: the share of their gaps that
    processes spend before their calls.
    """
    least_ns = max(STOP_NS_MIN, SHORT_SHARE * late_ns)
    if late_ns < least_ns:
        return None
    others = [one for one in samples if one not in members]
    try:
        peers = [_gaps(samples[one]) for one in others[:: len(others) // _PEERS_MAX + 1]]
        found = [
            stop
            for member in members
            if member in samples
            for stop in _stops(_gaps(samples[member]), peers, least_ns)
        ]
    except RefusedError:  # it is counted where all are read
        return None
    if not found:
        return None
    total = sum(one.late_ns for one in found)
    later = sum(one.later_ns for one in found)
    share = later / total
    spread = sum((one.later_ns - share * one.late_ns) ** 2 + one.variance for one in found)
    error = 2 * sqrt(spread) / total
    count = len(found)
    # A GPU that stands still does so anywhere: not each time where its host waits for it.
    each = hidden ** max(1, count // len(members))
    return LateCalls(
        kind_of(share, error, each),
        count,
        total / count,
        later / count,
        error * total / count,
        float(np.median([one.queued_ns for one in found])),
        None,
        each,
    )
