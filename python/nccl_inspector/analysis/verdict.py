# SPDX-License-Identifier: Apache-2.0
"""Name the one rank that the job waited for, from what each communicator says."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from nccl_inspector.analysis.join import Communicator, Figures, Late, Place


@dataclass(frozen=True, slots=True)
class Named:
    """A process that its peers waited for. Times are ns."""

    place: Place
    communicators: tuple[Communicator, ...]  # in which it is named
    member_of: int  # communicators that it is in and that have figures
    late_ns: float  # median over the kinds of operation that name it
    waited_ns: float  # by all peers together


def rank_stragglers(communicators: Iterable[Communicator]) -> list[Named]:
    """Return the named processes, the most guilty first.

    A late rank makes the small group late that it belongs to, and that group's
    other ranks then look late in their larger ones. So the first is the process
    that is named in the most communicators; the time waited decides between equals.
    """
    late: dict[Place, list[tuple[Communicator, Late]]] = defaultdict(list)
    memberships: dict[Place, int] = defaultdict(int)
    for comm in communicators:
        if not comm.figures:
            continue
        for member in comm.members.values():
            memberships[member.place] += 1
        for figures in comm.figures:
            if figures.late:
                late[figures.late.place].append((comm, figures.late))
    named = [
        Named(
            place,
            tuple({comm.id: comm for comm, _ in cases}.values()),
            memberships[place],
            median(one.late_ns for _, one in cases),
            sum(one.waited_ns for _, one in cases),
        )
        for place, cases in late.items()
    ]
    return sorted(named, key=lambda one: (-len(one.communicators), -one.waited_ns, one.place))


def total_waiting(communicators: Iterable[Communicator]) -> tuple[float, float]:
    """Return the ranks' time in collectives spent waiting, and all of it, ns."""
    figures: list[Figures] = [
        one for comm in communicators for one in comm.figures if one.waiting > 0
    ]
    waiting_ns = sum(one.waiting_ns for one in figures)
    return waiting_ns, sum(one.waiting_ns / one.waiting for one in figures)
