# SPDX-License-Identifier: Apache-2.0
"""What is true of a simulated job: what its report is held against."""

from collections.abc import Iterable
from dataclasses import dataclass, field

HEALTHY, DEGRADED, HUNG, FAILED = "HEALTHY", "DEGRADED", "HUNG", "FAILED"
CRASHED, PERHAPS_HUNG = "CRASHED", "PERHAPS HUNG"
CANNOT_TELL, NO_DATA = "CANNOT TELL", "NO DATA"
NETWORK, NVLINK, STRAGGLER, OUTSIDE = "network", "nvlink", "straggler", "outside communication"
COMMUNICATION, OTHER, UNKNOWN = "communication", "other", "unknown"

Name = tuple[str, str]  # kind and name of an entity, as a finding has them


@dataclass(frozen=True)
class Truth:
    """`cost_s`: wall time with the fault, less that of the same job without it.

    `guilty`: naming one of these is right. `related`: naming them is no false accusation, and not
    enough: a rank of a busy node, the node of a slow rank. `noted`: whose hardware counted real
    errors that cost nothing; a finding about that hardware is in order, the verdict is not theirs.
    `nameable`: the job's data tell who it was, so not to name it is a fault of the report.
    `late_by`: "host" or "gpu", what makes ranks late; empty: nobody is late, or by both.
    `period`: seconds since the job's start. `transfer`: median ns and number of transfers by
    communicator, function and floor(log2(bytes)).
    """

    statuses: frozenset[str]
    causes: frozenset[str] = frozenset()
    guilty: frozenset[Name] = frozenset()
    related: frozenset[Name] = frozenset()
    noted: frozenset[Name] = frozenset()
    nameable: bool = True
    late_by: str = ""
    period: tuple[float, float] | None = None
    cost_s: float = 0.0
    wall_s: float = 0.0
    transfer: dict[tuple[int, str, int], tuple[float, int]] = field(default_factory=dict)

    @property
    def cost_share(self) -> float:
        """Of the job's wall time."""
        return self.cost_s / self.wall_s if self.wall_s else 0.0

    @property
    def healthy(self) -> bool:
        """Nothing is wrong with it."""
        return HEALTHY in self.statuses


def rank_names(procids: Iterable[int]) -> frozenset[Name]:
    """Return ranks as entities."""
    return frozenset(("rank", f"rank {one}") for one in procids)


def node_names(nodes: Iterable[str]) -> frozenset[Name]:
    """Return nodes as entities."""
    return frozenset(("node", one) for one in nodes)


def gpu_name(node: str, local: int) -> Name:
    """Return a GPU as an entity."""
    return "gpu", f"{node} GPU{local}"


def port_name(node: str, nic: int) -> Name:
    """Return a port of an adapter as an entity."""
    return "port", f"{node} mlx5_{nic}/1"
