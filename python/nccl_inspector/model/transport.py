# SPDX-License-Identifier: Apache-2.0
"""What the operations of a communicator go over, in the words of the card.

Which it is, and why: analysis/transport/classes.py.
"""

NVLINK, HOST, NET, MIXED, UNKNOWN = "nvlink", "host", "net", "mixed", "unknown"
ON_NETWORK = frozenset({NET, MIXED})


def transport_by_shape(nranks: int, nnodes: int) -> str:
    """Return what a communicator goes over, as far as so many ranks on so many nodes tell.

    The ranks of one node may use NVLink or not: only what is known of its GPUs tells.
    """
    if nranks < 1 or nnodes <= 1:
        return UNKNOWN
    return NET if nnodes == nranks else MIXED
