# SPDX-License-Identifier: Apache-2.0
"""Who the others of a node wait for now, by the ranks' medians since the last look.

A report judges by exact records instead (analysis/replay): they tell who was late each time. A view
that is drawn anew every few seconds has only what was counted meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.histogram import median_error_ns
from nccl_inspector.analysis.join import Figures, JoinedComm
from nccl_inspector.analysis.straggler.lateness import LATE_NS_MIN, comparable, find_late
from nccl_inspector.model.process import Key


@dataclass(frozen=True, slots=True)
class Late:
    """A process that is clearly late in one kind of operation."""

    name: str
    late_ns: float  # median over the others less its own
    waited_ns: float  # by all others, all operations together


def _keys(comm: JoinedComm, figures: Figures) -> dict[int, Key]:
    return {
        rank: key
        for rank, member in comm.members.items()
        for key in member.keys
        if key.ops and key.kind == figures.kind
    }


def _last_of(comm: JoinedComm, figures: Figures) -> Late | None:
    """Return the last rank of one kind of operation; None: nobody is clearly late."""
    if not figures.compared:
        return None
    keys = _keys(comm, figures)
    alike = sorted(comparable({rank: key.ops for rank, key in keys.items()}, comm.nranks))
    medians = {rank: figures.medians[rank] for rank in alike}
    # A smaller distance is no clear one, and the errors cost as much as all the rest.
    if not medians or max(medians.values()) - min(medians.values()) < LATE_NS_MIN:
        return None
    errors = {rank: median_error_ns(keys[rank].histogram) for rank in medians}
    last = next((one for one in find_late(medians, errors) if one.clear), None)
    if last is None:
        return None
    above_ns = sum(max(0.0, value - last.time_ns) for value in medians.values())
    waited_ns = above_ns * min(keys[rank].ops for rank in medians)
    return Late(comm.members[last.rank].place.name, last.late_ns, waited_ns)


def late_processes(joined: Sequence[JoinedComm]) -> dict[str, Late]:
    """Return who is waited for, by name, with the kind of operation where that is worst."""
    found: dict[str, Late] = {}
    for comm in joined:
        for figures in comm.figures:
            late = _last_of(comm, figures)
            if late and (late.name not in found or found[late.name].waited_ns < late.waited_ns):
                found[late.name] = late
    return found
