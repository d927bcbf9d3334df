# SPDX-License-Identifier: Apache-2.0
"""Kinds of operation of a job that can be compared with those of other jobs and other nodes."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from statistics import median

from nccl_inspector.model.card import Card, Communicator, Operations

KINDS_MAX = 32  # for a job, the busiest
_VERSION = re.compile(r"(\d+\.\d+)")
_PORTS = re.compile(r"^[0-9]+ x ")  # the count in `8 x 400 Gb/s InfiniBand`
_NIC_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, order=True)
class KindKey:
    """What must be equal for the figures of two jobs to be comparable."""

    transport: str
    func: str
    size_class: int
    nranks: int
    nnodes: int
    gpu: str
    nccl: str  # major.minor
    algo: str  # family: RING, TREE, NVLS ...
    nic: str = ""  # the most frequent kind of network port, from the agent's counters


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind of operation, with medians over the job's communicators of that kind."""

    key: KindKey
    time_ns: float
    bus_gbs: float | None
    waiting_share: float | None
    busy_ns: float  # of the busiest rank of each communicator, summed


def algo_family(algo_proto: str) -> str:
    """Return `RING` for `RING_LL128`."""
    return algo_proto.partition("_")[0]


def _version(card: Card) -> str:
    match = _VERSION.match(card.environment.nccl[0]) if card.environment.nccl else None
    return match[1] if match else ""


def _nic(card: Card) -> str:
    """Return the most frequent kind of port, without its count, which depends on the nodes.

    A port with another rate than the rest is a fault that should show, not another kind of job.
    """
    return (
        _PORTS.sub("", card.environment.ports[0])[:_NIC_CHARS_MAX] if card.environment.ports else ""
    )


def key_of(card: Card, comm: Communicator, one: Operations) -> KindKey:
    """Return the key of operations of a communicator in a card.

    GPU models and ports come from the agent's counters, and nodes are counted by their summaries. A
    box's claims about these are not used.
    """
    return KindKey(
        comm.transport, one.func, one.size_class, comm.nranks, len(comm.nodes) or comm.nnodes,
        "+".join(card.environment.gpu_models), _version(card), algo_family(one.algo_proto),
        _nic(card),
    )  # fmt: skip


def _by_kind(card: Card) -> dict[KindKey, list[tuple[Communicator, Operations]]]:
    comms = {comm.id: comm for comm in card.communicators}
    found: dict[KindKey, list[tuple[Communicator, Operations]]] = defaultdict(list)
    for one in card.operations:
        comm = comms.get(one.communicator)
        # If ranks are missing, T may include waiting for one of them.
        if comm is None or comm.nranks < 2 or comm.ranks_seen < comm.nranks:
            continue
        if not one.waiting_included and one.time_ns > 0:
            found[key_of(card, comm, one)].append((comm, one))
    return found


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def kinds_of(card: Card) -> tuple[KindRow, ...]:
    """Return the kinds of operation of a card whose T is known, the busiest first."""
    rows = [
        KindRow(
            key,
            median(one.time_ns for _, one in found),
            middle(one.bus_gbs for _, one in found),
            middle(one.waiting_share for _, one in found),
            sum(one.time_ns * one.count for _, one in found),
        )
        for key, found in _by_kind(card).items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.busy_ns, row.key))[:KINDS_MAX])


def local_scores(card: Card) -> dict[str, float]:
    """Return for each node how fast its communicators were, compared with their like in the job.

    The score is the mean of log(bandwidth / median of the kind), weighted by time; 0.1 is about 10
    % more. Nodes that cannot be compared are left out, for example if one communicator spans all
    nodes.
    """
    sums: dict[str, tuple[float, float]] = {}
    for found in _by_kind(card).values():
        rated = [(comm, one, one.bus_gbs) for comm, one in found if one.bus_gbs]
        if len(rated) < 2:
            continue
        middle = median(gbs for _, _, gbs in rated)
        for comm, one, gbs in rated:
            weight = one.time_ns * one.count
            for node in comm.nodes:
                total, weights = sums.get(node, (0.0, 0.0))
                sums[node] = total + weight * log(gbs / middle), weights + weight
    return {node: total / weights for node, (total, weights) in sums.items() if weights}
