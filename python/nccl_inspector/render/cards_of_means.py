# SPDX-License-Identifier: Apache-2.0
"""What all cards from means have in common: those of Prometheus' series and of NVIDIA's dumps.

Means do not separate the waiting for late ranks from the transfer, so these cards name no process.
"""

from collections import defaultdict
from collections.abc import Iterable

from nccl_inspector.model.card import CANNOT_TELL, LOW, Communicator, Operations, Verdict
from nccl_inspector.model.kind_labels import LabelledComm, LabelledKind

BY_NVIDIA = (
    "measured by NVIDIA's plugin: no counts, not even of what it dropped, and a rank is only "
    "its GPU"
)
WAITING_IN_IT = "times with the waiting for late ranks in them: the least of the ranks' means"
NOT_TOLD = "not told"  # DataQuality.timing
NOT_COUNTED = "how many there were is not known: NVIDIA's plugin does not count"


def nobody_named(where: str) -> Verdict:
    """Return the verdict that nobody can be named; `where`: data that include the waiting."""
    return Verdict(CANNOT_TELL, "", LOW, f"who was waited for is not in {where}")


def operations(
    kind: LabelledKind, time_ns: float, bus_gbs: float | None, count: int | None, *notes: str
) -> Operations:
    """Return a row of the card; `count` None: operations were not counted."""
    common = (WAITING_IN_IT,) if count is not None else (WAITING_IN_IT, NOT_COUNTED)
    return Operations(
        communicator=kind.comm.shown, func=kind.func, size_class=kind.size_class,
        algo_proto=kind.algo_proto, count=count or 0, time_ns=time_ns, bus_gbs=bus_gbs,
        waiting_share=None, waiting_included=True, notes=(*common, *notes),
    )  # fmt: skip


def longest_first(rows: Iterable[Operations]) -> tuple[Operations, ...]:
    """Return the rows, the one that took longest first."""
    return tuple(sorted(rows, key=lambda one: (-one.time_ns * max(one.count, 1), one.func)))


def communicators(
    members: Iterable[tuple[LabelledComm, str, str]], notes: tuple[str, ...] = ()
) -> tuple[Communicator, ...]:
    """Return the communicators, the largest first; `members`: each with a rank and its node.

    NVIDIA's plugin tells no ranks. There each GPU of a node counts as a rank, and communicators are
    known only by name and size.
    """
    ranks: dict[LabelledComm, set[str]] = defaultdict(set)
    nodes: dict[LabelledComm, set[str]] = defaultdict(set)
    for comm, rank, node in members:
        ranks[comm].add(rank)
        nodes[comm].add(node)

    def described(comm: LabelledComm) -> Communicator:
        seen = len(ranks[comm])
        several = f"several communicators of one name and size: {seen} GPUs"
        return Communicator(
            comm.shown, comm.name, comm.transport, comm.nranks, comm.nnodes,
            tuple(sorted(nodes[comm])), seen,
            (*notes, several) if not comm.id and seen > comm.nranks else notes,
        )  # fmt: skip

    return tuple(map(described, sorted(ranks, key=lambda one: (-one.nranks, one))))
