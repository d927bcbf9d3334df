# SPDX-License-Identifier: Apache-2.0
"""Whether ranks come to operations at the same moment, since they met outside NCCL just before.

Where hosts agree on each operation before they call it (Horovod does), nobody waits in NCCL: all
wait outside. Whose work took longer is then in no record, and that nobody was late proves nothing.
"""

import numpy as np

from nccl_inspector.analysis.replay.order import Order
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import PEER_NONE

# Work of this length never takes several GPUs the same time to these: clocks alone differ by more.
_LONG_NS = 20e6
_APART_NS, _APART_SHARE = 50e3, 2e-4


def met_before(records: Records, order: Order) -> float:
    """Return the share of the ranks' long work that ends at the same moment for all of them.

    Work is what lies between two operations; by its time. NaN: there is no long one.
    """
    hidden = np.array([comm.hidden for comm in records.comms])[records.comm]
    known = ~np.isnan(order.waited) & ~hidden
    # A Send tells of two ranks only: it counts where there is nothing else.
    of_all = known & (records.peer == PEER_NONE)
    known = of_all if of_all.any() else known
    # Who waited longest tells how far apart all came: also ranks whose own work was short.
    longest = np.zeros(int(records.joined.max()) + 1)
    np.maximum.at(longest, records.joined[known], order.waited[known])
    long = known & ~np.isnan(order.gap) & ~order.queued & (order.gap >= _LONG_NS)
    if not long.any():
        return float("nan")
    gap = order.gap[long]
    together = longest[records.joined[long]] <= _APART_NS + _APART_SHARE * gap
    return float(gap[together].sum() / gap.sum())
