# SPDX-License-Identifier: Apache-2.0
"""How well the time of a kind of operation is known."""

from nccl_inspector.analysis.histogram import median_error_ns
from nccl_inspector.analysis.join import Communicator, Figures
from nccl_inspector.model import FUNCS, P2P


def time_error_ns(communicator: Communicator, figures: Figures) -> float | None:
    """Return the standard error of T, from the histogram of the rank whose median it is.

    None for Sends and Recvs, whose time is of all ranks together.
    """
    if figures.func in P2P or not figures.medians:
        return None
    rank = min(figures.medians, key=lambda rank: figures.medians[rank])
    wanted = figures.func, figures.size_class, figures.algo_proto
    for key in communicator.members[rank].keys:
        if key.histogram and (FUNCS[key.func], key.size_class, key.algo_proto) == wanted:
            return median_error_ns(key.histogram)
    return None
