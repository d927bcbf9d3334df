# SPDX-License-Identifier: Apache-2.0
"""A port with link errors that all transfers between nodes use, all the time.

Nothing in the job can be compared with these transfers, so it is not known whether the port slowed
them. If they matter, the job is not called healthy.
"""

from collections.abc import Mapping, Sequence

from nccl_inspector.analysis.hardware.counter_rules import CABLE
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.model.card import INFO, Finding, Operations
from nccl_inspector.model.process import FUNCS
from nccl_inspector.model.transport import NVLINK
from nccl_inspector.report.causes import JobView

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
    port = next((one for one in hardware if _has_errors(one, view)), None)
    if port is None:
        return ""
    nodes = {one.name.partition(" ")[0] for one in port.entities if one.kind == "port"}
    wide = [comm for comm in view.communicators if comm.nnodes > 1 and comm.figures]
    if any(nodes.isdisjoint(one.place.node for one in comm.members.values()) for comm in wide):
        return ""
    factors = {
        (int(one.communicator, 16), FUNCS.index(one.func), one.size_class): _FASTER
        for one in operations
        if transports.get(one.communicator) != NVLINK and not one.waiting_included
    }
    share, _ = judged.below(factors)
    if view.of_job(share) < _COST_MIN:
        return ""
    return f"{port.title}; all transfers between nodes pass this port, so its cost cannot be seen"


def _has_errors(one: Finding, view: JobView) -> bool:
    if one.severity == INFO or CABLE not in one.actions:
        return False
    lasted_s = one.period.end_s - one.period.start_s if one.period else view.wall_s
    return any(each.kind == "port" for each in one.entities) and lasted_s >= _LASTING * view.wall_s
