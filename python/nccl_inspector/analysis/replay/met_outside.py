# SPDX-License-Identifier: Apache-2.0
"""Whether ranks come to operations at the same moment because they met outside NCCL before.

If hosts agree on each operation before they call it (Horovod does), all wait outside NCCL and
nobody waits in it. Then no record shows whose work took longer, and it proves nothing that nobody
was late.
"""

import numpy as np

from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

# Work of this length never takes several GPUs the same time to within these limits; the clocks
# alone differ by more.
_LONG_NS = 20e6
_APART_NS, _APART_SHARE = 50e3, 2e-4


def met_before(records: Records, order: Order) -> float:
    """Return the share of the ranks' long work that ends at the same moment for all of them.

    Work is the time between two operations; the share is of that time. NaN: there is no long work.
    """
    hidden = np.array([comm.hidden for comm in records.comms])[records.comm]
    known = ~np.isnan(order.waited) & ~hidden
    # A Send tells only about two ranks, so Sends count only if there is nothing else.
    of_all = known & (records.peer == PEER_NONE)
    known = of_all if of_all.any() else known
    # The longest wait tells how far apart all came, including ranks whose own work was short.
    longest = np.zeros(int(records.joined.max()) + 1)
    np.maximum.at(longest, records.joined[known], order.waited[known])
    long = known & ~np.isnan(order.gap) & ~order.queued & (order.gap >= _LONG_NS)
    if not long.any():
        return float("nan")
    gap = order.gap[long]
    together = longest[records.joined[long]] <= _APART_NS + _APART_SHARE * gap
    return float(gap[together].sum() / gap.sum())
