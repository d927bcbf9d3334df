# SPDX-License-Identifier: Apache-2.0
"""How much memory the summaries of one job may take when they are unpacked.

What a box holds is the user's, and compresses a thousandfold. So there is one budget for a job, by
how many nodes Slurm gave it. Each node has its own share of it, which no other node can use up;
what some leave over is divided among those that need more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NODE_BYTES = 64 << 20  # of objects in memory, for each node of the job
JOB_BYTES_MAX = 3 << 30  # by an estimate that is half as much again as what is used


@dataclass(slots=True)
class Budget:
    """Bytes that may still be used."""

    left: int

    def take(self, size_bytes: int) -> bool:
        """Use so many bytes, if they are there; tell whether they were."""
        if size_bytes > self.left:
            return False
        self.left -= size_bytes
        return True


def node_share(nodes: int) -> int:
    """Return the bytes for each node's summary of a job of so many nodes."""
    return min(NODE_BYTES, JOB_BYTES_MAX // max(nodes, 1))


def larger_share(share: int, unused: Sequence[int], lacking: int) -> int:
    """Return the bytes for each of `lacking` nodes, with what others left over.

    `unused`: what is left of the share of each node that has all it needs.
    """
    return min(NODE_BYTES, share + sum(unused) // max(lacking, 1))
