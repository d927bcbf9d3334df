# SPDX-License-Identifier: Apache-2.0
"""The transport class of a communicator: nvlink, host, net, mixed, or unknown.

NCCL's number of nodes counts NVLink domains: a rack of GB200 is one domain, however many Slurm
nodes it has. If there are as many ranks as domains, every hop is on the network (net). If there are
several domains and ranks that share one, it is mixed. One domain is nvlink only if something says
so, because without NVLink NCCL goes through the host (PCIe, shared memory). A box does not tell
whether the environment forbids NVLink (NCCL_P2P_DISABLE): `nvlink` means that there are links, and
a communicator that does not use them shows by its bandwidth.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.counters.node_counters import DeviceTable, NodeCounters
from nccl_inspector.model.transport import HOST, MIXED, NET, NVLINK, UNKNOWN

# Boards on which every GPU reaches every other by NVLink, and GPUs that have no NVLink.
_ALL_BY_NVLINK = re.compile(
    r"\b(A100|A800|H100|H200|H800|H20|B200|B300|GB200|GB300)(?!.*(PCI|NVL\b|MIG))", re.IGNORECASE
)
_ON_BOARD = re.compile(r"SXM|HBM3|HGX|\b(H200|H800|H20|B200|B300|GB200|GB300)\b", re.IGNORECASE)
_WITHOUT_NVLINK = re.compile(r"\b(T4|L4|L40S?|A2|A10|A10G|A16|P4|P40)\b")


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """What is known of a GPU; `nvlinks` None: the counters do not tell how many links are up."""

    model: str = ""
    nvlinks: int | None = None


@dataclass(frozen=True, slots=True)
class Classed:
    """A transport class (model/transport.py), and why, as text."""

    transport: str
    why: str


def _gpu(table: DeviceTable, at: int) -> GpuSeen:
    changes = table.fact_at("model", at)
    level = table.level_at("nvlinks_active", at)
    # The highest count: links that went down while the job ran were there before.
    nvlinks = level.high if level else None
    if nvlinks is None and (level := table.level_at("nvlinks", at)):
        nvlinks = 0 if level.high == 0 else None
    return GpuSeen(changes[0].text if changes else "", nvlinks)


def gpus_of(counters: NodeCounters | None) -> dict[str, GpuSeen]:
    """Return a node's GPUs by name, which is the value of the plugin's label `gpu`, as `GPU3`."""
    tables = counters.tables_of("gpu") if counters else ()
    return {name: _gpu(table, at) for table in tables for at, name in enumerate(table.names)}


def _one_domain(gpus: Sequence[GpuSeen | None], nranks: int) -> Classed:
    """Return the class of ranks that NCCL counts as one NVLink domain and that are on one node."""
    known = [gpu for gpu in gpus if gpu is not None]
    links = [gpu.nvlinks for gpu in known if gpu.nvlinks is not None]
    models = {gpu.model for gpu in known if gpu.model}
    if links and max(links) == 0:
        return Classed(HOST, "no NVLink is up on its GPUs")
    if models and all(map(_WITHOUT_NVLINK.search, models)):
        return Classed(HOST, f"{min(models)} has no NVLink")
    if 0 in links:
        return Classed(UNKNOWN, "NVLinks are up on some of its GPUs only")
    whole = bool(models) and all(
        _ALL_BY_NVLINK.search(model) and _ON_BOARD.search(model) for model in models
    )
    if whole:
        return Classed(NVLINK, f"{min(models)}: all GPUs of a node reach each other by NVLink")
    if links and nranks == 2:
        return Classed(NVLINK, "NVLinks are up on both of its GPUs")
    if links:
        # Bridges join pairs of GPUs; between pairs there is only PCIe.
        return Classed(UNKNOWN, "NVLinks are up, but whether all its GPUs reach each other is not")
    return Classed(UNKNOWN, "nothing tells whether its GPUs have NVLink")


def classify(
    nranks: int, nnodes: int, nodes: Sequence[str], gpus: Sequence[GpuSeen | None]
) -> Classed:
    """Return the class of a communicator.

    `nnodes` is NCCL's number, or 0 if NCCL does not tell it. `nodes` are the Slurm nodes of the
    ranks that were seen, `gpus` what is known of their GPUs, in the same order.
    """
    if nranks == 1:
        return Classed(UNKNOWN, "one rank: nothing goes anywhere")
    if not nnodes or not nranks:
        return _by_slurm(nranks, nodes, gpus)
    if nnodes == nranks:
        return Classed(NET, "one rank in each NVLink domain")
    if nnodes > 1:
        return Classed(MIXED, f"{nranks} ranks in {nnodes} NVLink domains")
    if len(set(nodes)) > 1:
        return Classed(NVLINK, f"one NVLink domain over {len(set(nodes))} nodes")
    return _one_domain(gpus, nranks)


def _by_slurm(nranks: int, nodes: Sequence[str], gpus: Sequence[GpuSeen | None]) -> Classed:
    """Return the class as far as Slurm's nodes tell it; NCCL before 2.27 tells no number."""
    places = set(nodes)
    if not nranks or len(nodes) < nranks:
        return Classed(UNKNOWN, "NCCL does not tell its size, or not all of its ranks were seen")
    if len(places) == 1:
        return _one_domain(gpus, nranks)
    if any(re.search(r"\bGB\d", gpu.model) for gpu in gpus if gpu):
        return Classed(UNKNOWN, "its nodes may be one NVLink domain: NCCL does not tell")
    if len(places) == len(nodes):
        return Classed(NET, "one rank on each node")
    return Classed(MIXED, f"{len(nodes)} ranks on {len(places)} nodes")


def transport_of(comm: JoinedComm, nodes: Mapping[str, Mapping[str, GpuSeen]]) -> Classed:
    """Return the class of a joined communicator; `nodes`: the GPUs of each node (`gpus_of`)."""
    places = [member.place for member in comm.members.values()]
    gpus = [nodes.get(place.node, {}).get(place.gpu) for place in places]
    return classify(comm.nranks, comm.nnodes, [place.node for place in places], gpus)
