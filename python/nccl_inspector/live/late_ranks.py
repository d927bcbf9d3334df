# SPDX-License-Identifier: Apache-2.0
"""Who is late now, from the ranks' medians since the last look.

A report uses exact records instead (analysis/replay), which tell who was late each time. A view
that is redrawn every few seconds has only what was counted in between.
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
    late_ns: float  # median of the others minus its own
    waited_ns: float  # waiting of all others, over all operations


def _keys(comm: JoinedComm, figures: Figures) -> dict[int, Key]:
    return {
        rank: key
        for rank, member in comm.members.items()
        for key in member.keys
        if key.ops and key.kind == figures.kind
    }


def _last_of(comm: JoinedComm, figures: Figures) -> Late | None:
    """Return the last rank of one kind of operation; None: no rank is clearly late."""
    if not figures.compared:
        return None
    keys = _keys(comm, figures)
    alike = sorted(comparable({rank: key.ops for rank, key in keys.items()}, comm.nranks))
    medians = {rank: figures.medians[rank] for rank in alike}
    # A smaller distance is not clear, and computing the errors takes as long as all the rest.
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
    """Return the late processes by name, with the kind of operation in which they cost most."""
    found: dict[str, Late] = {}
    for comm in joined:
        for figures in comm.figures:
            late = _last_of(comm, figures)
            if late and (late.name not in found or found[late.name].waited_ns < late.waited_ns):
                found[late.name] = late
    return found
