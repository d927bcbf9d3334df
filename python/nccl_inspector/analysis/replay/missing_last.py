# SPDX-License-Identifier: Apache-2.0
"""Whether ranks without records are those for which the others wait.

An operation ends when its last rank has come and the data are transferred. If the last one is among
those that have records, its time in the operation is the transfer, however long it worked before.
If one without records comes later, the end does not depend on those that have some: the longer the
last of these works before the operation, the shorter it is in it, by as much. Nobody's clock is
needed for that, because work and operation are of one process.

Nothing more is known of ranks without records: whether they are slow, or wait for others elsewhere.
"""

from math import sqrt

import numpy as np

from nccl_inspector.analysis.replay.arrays import Floats, Ints, first_rows, medians, number_rows
from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import SYNCHRONISING, Records

_OPERATIONS_MIN = 100  # of a kind; with fewer the slope is chance
_OF_SPOT_MIN = 8  # operations at one place of the program, to know what is usual there
# Of the own gaps' differences from what is usual, those within this quantile: rare stops have
# another meaning, and one of them would decide the slope.
_INNER = 0.9
_APART_NS_MIN = 5_000.0  # typical difference of own gaps; a smaller one tells nothing
# The slope is minus the share of the operations that one without records began last, and its
# standard error. (Where nobody is late, one of the missing is last as often as they are many: in
# simulated jobs of which a half to a quarter is missing, -0.5 to -0.25.)
_SLOPE_MAX, _ERROR_MAX = -0.8, 0.1
MOST = 0.5  # share of such operations that makes it what the job waits for


def missing_last_share(records: Records, order: Order) -> float:
    """Return in which share of operations of which ranks lack records such a rank came last.

    Operations for which that cannot be told do not count; 0: it can be told of none.
    """
    missing = np.array([comm.missing > 0 for comm in records.comms])[records.comm]
    rows = _shortest(records, np.flatnonzero(missing & np.isin(records.func, list(SYNCHRONISING))))
    rows = rows[~np.isnan(order.gap[rows]) & ~order.queued[rows]]
    if not len(rows):
        return 0.0
    inside = (records.end[rows] - records.begin[rows]).astype(float)
    work, inside, kept = _beside_usual(order.spot[rows], order.gap[rows], inside)
    if not len(kept):
        return 0.0
    kind = number_rows(
        records.comm[rows[kept]], records.func[rows[kept]], records.size_class[rows[kept]]
    )
    told = late = 0
    for one in range(int(kind.max()) + 1):
        mine = kind == one
        if np.count_nonzero(mine) >= _OPERATIONS_MIN:
            told += int(mine.sum())
            late += int(mine.sum()) * _is_another_last(work[mine], inside[mine])
    return late / told if told else 0.0


def _shortest(records: Records, rows: Ints) -> Ints:
    """Return of each operation the row of the rank that was in it for the shortest time."""
    rows = rows[np.argsort((records.end - records.begin)[rows], kind="stable")]
    found: Ints = rows[first_rows(number_rows(records.joined[rows]))] if len(rows) else rows
    return found


def _beside_usual(spot: Ints, work: Floats, inside: Floats) -> tuple[Floats, Floats, Ints]:
    """Return by how much work and time inside differ from what is usual there, and of which."""
    spot = number_rows(spot)
    many = int(spot.max()) + 1
    kept = np.flatnonzero(np.bincount(spot)[spot] >= _OF_SPOT_MIN)
    more, longer = (values - medians(spot, values, many)[spot] for values in (work, inside))
    return more[kept], longer[kept], kept


def _is_another_last(work: Floats, inside: Floats) -> bool:
    """Tell whether the operations of a kind end whenever those with records begin them."""
    apart = np.abs(work)
    inner = apart <= np.quantile(apart, _INNER)
    work, inside = work[inner], inside[inner]
    work, inside = work - work.mean(), inside - inside.mean()
    squares = float(work @ work)
    if squares < len(work) * _APART_NS_MIN**2:
        return False
    slope = float(work @ inside) / squares
    rest = inside - slope * work
    error = sqrt(float(rest @ rest) / (len(work) - 2) / squares)
    return slope <= _SLOPE_MAX and error <= _ERROR_MAX
