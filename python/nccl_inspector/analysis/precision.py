# SPDX-License-Identifier: Apache-2.0
"""How well the time of a kind of operation is known."""

from nccl_inspector.analysis.histogram import median_error_ns, median_ns
from nccl_inspector.analysis.join import Communicator, Figures
from nccl_inspector.model import FUNCS, P2P


def time_error_ns(communicator: Communicator, figures: Figures) -> float | None:
    """Return the standard error of T, from the histogram of the rank whose median it is.

    None for Sends and Recvs, whose time is of all ranks together.
    """
    if figures.func in P2P:
        return None
    keys = [
        key
        for member in communicator.members.values()
        for key in member.keys
        if key.histogram
        and (FUNCS[key.func], key.size_class, key.algo_proto)
        == (figures.func, figures.size_class, figures.algo_proto)
    ]
    if not keys:
        return None
    return median_error_ns(min((key.histogram for key in keys), key=median_ns))
