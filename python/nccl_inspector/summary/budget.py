# SPDX-License-Identifier: Apache-2.0
"""How much memory the summaries of one job may take when they are unpacked.

A box contains the user's data, which can compress a thousandfold. Therefore a job has one budget,
by the number of nodes that Slurm gave it. Each node has its own share, which no other node can use
up. What some nodes leave over is divided among those that need more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NODE_BYTES = 64 << 20  # objects in memory, for each node of the job
JOB_BYTES_MAX = 3 << 30  # by an estimate that is 1.5 times the real use
# If the summaries of a job are larger than this together, their time lines, records and unions stay
# on disk until they are used.
HELD_BYTES_MAX = 384 << 20


@dataclass(slots=True)
class Budget:
    """The bytes that may still be used."""

    left: int

    def take(self, size_bytes: int) -> bool:
        """Use this many bytes if they are left; return whether they were."""
        if size_bytes > self.left:
            return False
        self.left -= size_bytes
        return True


def node_share(nodes: int) -> int:
    """Return the bytes for each node's summary in a job of this many nodes."""
    return min(NODE_BYTES, JOB_BYTES_MAX // max(nodes, 1))


def larger_share(share: int, unused: Sequence[int], lacking: int) -> int:
    """Return the bytes for each of `lacking` nodes, including what other nodes left over.

    `unused`: for each node that has all it needs, what is left of its share.
    """
    return min(NODE_BYTES, share + sum(unused) // max(lacking, 1))
