# SPDX-License-Identifier: Apache-2.0
"""The machine that a simulated job runs on: nodes, GPUs, links, and what a transfer takes there."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

US, MS, S = 1e3, 1e6, 1e9  # ns
MIN = 60 * S
GB = 1e9


@dataclass(frozen=True)
class Machine:
    """Nodes that are alike. Bandwidths are GB/s that a large message reaches, not nominal ones."""

    nodes: int = 4
    gpus: int = 8  # of a node that the job uses
    nvlink_gbs: float = 360.0  # of one GPU
    nic_gbs: float = 46.0
    nics: int = 8  # of a node
    nic_rate: str = "400 Gb/sec (4X NDR)"
    model: str = "NVIDIA H100 80GB HBM3"
    nvlink_us: float = 9.0
    net_us: float = 16.0

    @property
    def ranks(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus

    def nic_of(self, local: int) -> int:
        """Return the network adapter that a GPU is nearest to."""
        return local * self.nics // max(self.gpus, self.nics)


@dataclass
class Links:
    """How many times slower than usual each link is at this moment; faults and weather set it."""

    machine: Machine
    nvlink: Floats = field(init=False)  # by rank
    nic_out: Floats = field(init=False)  # by node and adapter, in each direction
    nic_in: Floats = field(init=False)
    network: float = field(init=False)  # all of it
    version: int = 0  # rises with each change, so that what was computed from it can be kept
    _before: tuple[bytes, bytes, bytes, float] = (b"", b"", b"", 0.0)

    def __post_init__(self) -> None:
        """Begin with nothing slow."""
        self.nvlink = np.ones(self.machine.ranks)
        self.nic_out = np.ones((self.machine.nodes, self.machine.nics))
        self.nic_in = np.ones((self.machine.nodes, self.machine.nics))
        self.network = 1.0

    def reset(self) -> None:
        """Make nothing slow."""
        self.nvlink[:] = 1.0
        self.nic_out[:] = self.nic_in[:] = 1.0
        self.network = 1.0

    def settle(self) -> None:
        """Take note of what has been set."""
        adapters = self.nic_out.tobytes(), self.nic_in.tobytes()
        now = self.nvlink.tobytes(), *adapters, self.network
        if now != self._before:
            self._before = now
            self.version += 1


def wire_bytes(func: str, nbytes: float, size: int) -> float:
    """Return what each rank of a ring sends; `nbytes` as NCCL reports it of this function."""
    if func == "AllReduce":
        return 2 * (size - 1) / size * nbytes
    if func in ("AllGather", "ReduceScatter", "AlltoAll"):
        return (size - 1) * nbytes
    return nbytes


class Paths:
    """What the communicators of one kind go over, and how long a transfer in each takes.

    `members`: the ranks of each communicator, one row each. All have the same number.
    """

    def __init__(self, machine: Machine, members: Ints, rate: float = 1.0) -> None:
        """`rate`: by how much faster than the plain model, such as SHARP or another protocol."""
        self.machine, self.members = machine, members
        self.size = members.shape[1]
        self.node = members // machine.gpus
        self.local = members % machine.gpus
        self.nnodes = np.array([len(set(row)) for row in self.node.tolist()])
        self.within = bool((self.nnodes == 1).all())
        nic_of = np.array([machine.nic_of(local) for local in range(machine.gpus)])
        self.adapter = nic_of[self.local]
        # Adapters of a node that a communicator has: its ring uses each of them for a share.
        per_node = self.size / max(1, int(self.nnodes.max()))
        mine = min(machine.nics, per_node * machine.nics / max(machine.gpus, machine.nics))
        # A GPU without an adapter of its own shares one with its neighbour.
        self.nic_gbs = rate * machine.nic_gbs * max(mine, min(1.0, machine.nics / machine.gpus))
        self.nvlink_gbs = rate * machine.nvlink_gbs
        self._kept: dict[tuple[str, int], tuple[int, Floats, Floats, float]] = {}

    def times(self, func: str, nbytes: int, links: Links, weather: float) -> Floats:
        """Return ns for each communicator, before any noise."""
        kept = self._kept.get((func, nbytes))
        if kept is None or kept[0] != links.version:
            kept = self._price(func, nbytes, links)
            self._kept[func, nbytes] = kept
        _, near, far, latency = kept
        return np.maximum(near, far * weather) + latency

    def _price(self, func: str, nbytes: int, links: Links) -> tuple[int, Floats, Floats, float]:
        wire = wire_bytes(func, nbytes, self.size)
        latency_us = self.machine.nvlink_us * (1 + 0.15 * np.log2(self.size))
        near = wire / self.nvlink_gbs * links.nvlink[self.members].max(axis=1)
        far = np.zeros(len(self.members))
        if not self.within:
            latency_us += self.machine.net_us * (1 + np.log2(max(2, int(self.nnodes.max()))))
            # A ring uses each adapter in both directions.
            both = np.maximum(links.nic_out, links.nic_in)
            slow = both[self.node, self.adapter].max(axis=1) * links.network
            nic_gbs = self.nic_gbs
            if func == "AlltoAll":  # each rank sends what leaves its node by its own adapter
                wire *= 1 - 1 / max(1, int(self.nnodes.max()))
                nic_gbs = self.machine.nic_gbs * min(1.0, self.machine.nics / self.machine.gpus)
            far = wire / nic_gbs * slow
        return links.version, near, far, float(latency_us) * US
