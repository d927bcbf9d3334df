# SPDX-License-Identifier: Apache-2.0
"""How a capture is divided into shares, each of which is joined by itself.

All lines of a collective are in one share. So are all lines of a communicator without such a number
(sends, receives, groups), because these are counted in their order.
"""

from nccl_inspector.capture.collectives import NUMBERED

SHARES_MAX = 64  # each piece that is read becomes as many files
# Collectives of a communicator with neighbouring numbers stay together, up to so many: 2^BLOCK_BITS
# of a function. So a job with one communicator is divided too.
BLOCK_BITS = 16
BLOCK = f"if({NUMBERED}, sn >> {BLOCK_BITS}, -1)"


def share_sql(shares: int) -> str:
    """Return the SQL for the share of a line, from 0."""
    together = f"if(reason = '' and {NUMBERED}, hash(comm, func, {BLOCK}), hash(comm))"
    return f"({together} % {shares})::integer"
