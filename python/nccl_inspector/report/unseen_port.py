# SPDX-License-Identifier: Apache-2.0
"""Ports with link errors that all transfers between nodes use, all the time.

Nothing in the job can be compared with these transfers, so it is not known whether the ports slowed
them. If they matter, the job is not called healthy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nccl_inspector.analysis.hardware.counter_rules import CABLE
from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model.card import INFO, Finding, Operations
from nccl_inspector.model.process import FUNCS
from nccl_inspector.model.transport import NVLINK
from nccl_inspector.model.wording import cut_list
from nccl_inspector.report.causes import JobView

PORTS_SHOWN = 3
_FASTER = 0.5  # factor for T: a port with errors may cost half of it or more
_COST_MIN = 0.05  # share of the job's time that a healthy verdict must rule out
_LASTING = 0.5  # share of the job's time; with less, there are other times to compare with


def unseen_port(
    judged: Judged,
    operations: Sequence[Operations],
    transports: Mapping[str, str],
    view: JobView,
    hardware: Sequence[Finding],
) -> str:
    """Return why a slow port might not have shown, or an empty text if there is no such port.

    `transports`: class by communicator. `hardware`: findings from counters.
    """
    wide = [comm for comm in view.communicators if comm.nnodes > 1 and comm.figures]
    lasting = [one for one in hardware if has_port_errors(one) and _lasts(one, view)]
    ports = ports_of_all(lasting, wide)
    if not ports:
        return ""
    factors = {
        kind_of(one): _FASTER
        for one in replayed(operations)
        if transports.get(one.communicator) != NVLINK and not one.waiting_included
    }
    share, _ = judged.below(factors)
    if view.of_job(share) < _COST_MIN:
        return ""
    titles = cut_list([one.title for one in ports], PORTS_SHOWN)
    if len(ports) == 1:
        return f"{titles}; all transfers between nodes pass this port, so its cost cannot be seen"
    return f"{titles}; all transfers between nodes pass these ports, so their cost cannot be seen"


def replayed(operations: Iterable[Operations]) -> Iterator[Operations]:
    """Yield the operations that records can be of: communicators that were summed have no id."""
    return (one for one in operations if " " not in one.communicator)


def kind_of(one: Operations) -> tuple[int, int, int]:
    """Return communicator, function and size class of operations, as records have them."""
    return int(one.communicator, 16), FUNCS.index(one.func), one.size_class


def has_port_errors(counters: Finding) -> bool:
    """Tell whether counters say that a port or its cable is bad; congestion does not count."""
    return counters.severity != INFO and CABLE in counters.actions and bool(nodes_of(counters))


def nodes_of(counters: Finding) -> set[str]:
    """Return the nodes of the ports that a finding from counters is about."""
    return {one.name.partition(" ")[0] for one in counters.entities if one.kind == "port"}


def ports_of_all(ports: Sequence[Finding], comms: Sequence[JoinedComm]) -> list[Finding]:
    """Return the ports that the transfers of all communicators pass; an empty list: some pass none.

    If no port is on a node of every communicator, several may be together: each communicator passes
    one of them, and no transfer shows what is to be expected.
    """
    nodes = [{one.place.node for one in comm.members.values()} for comm in comms]
    common = set.intersection(*nodes) if nodes else set().union(*map(nodes_of, ports))
    everywhere = [one for one in ports if not common.isdisjoint(nodes_of(one))]
    if everywhere:
        return everywhere
    somewhere = set().union(*nodes)
    together = [one for one in ports if not somewhere.isdisjoint(nodes_of(one))]
    faulty = set().union(*map(nodes_of, together))
    return [] if any(faulty.isdisjoint(some) for some in nodes) else together


def _lasts(one: Finding, view: JobView) -> bool:
    lasted_s = one.period.end_s - one.period.start_s if one.period else view.wall_s
    return lasted_s >= _LASTING * view.wall_s
