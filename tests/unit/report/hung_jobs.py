# SPDX-License-Identifier: Apache-2.0
"""A job of two nodes in which rank 5 stopped calling, as its boxes have it."""

from dataclasses import replace

from nccl_inspector.model.process import KILLED, Process
from tests.support.boxes import NOW_NS
from tests.support.synthetic.jobs import Group
from tests.support.synthetic.standstill import STOOD_NS, Call, Standstill

RANKS = 8


def hung_processes(stops: int | None = 40, since_ns: int = NOW_NS - STOOD_NS) -> list[Process]:
    """Return all processes, killed; `stops`: after how many calls (None: never) rank 5 stopped."""
    group = Group(7, "dp", tuple(range(RANKS)))
    still = Standstill([[Call(group, "AllReduce", 8)] * 50] * RANKS)
    if stops is not None:
        still.ranks[5].stop_at = stops
    still.run()
    found = [replace(one, facts=replace(one.facts, state=KILLED)) for one in still.processes()]
    if stops is None:
        return found
    return [
        replace(
            one,
            comms=tuple(replace(comm, last_progress_ns=since_ns) for comm in one.comms),
            operations=tuple(replace(op, age_ns=NOW_NS - since_ns) for op in one.operations),
        )
        for one in found
    ]
