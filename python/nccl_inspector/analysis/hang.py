# SPDX-License-Identifier: Apache-2.0
"""Operations that never ended: what became of each, and who is at the root of all.

From boxes read at the end. An operation is suspect by its age alone (analysis/suspect.py), so a job
that is killed in the middle of a healthy one has no hang. A Send or Recv may be posted long before
it is due: it counts only when nothing went on in the whole job, and is followed all the same.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from nccl_inspector.analysis.arrival import Meeting, Place, Seat, find_meetings
from nccl_inspector.analysis.suspect import SUSPECT_S, is_suspect
from nccl_inspector.analysis.waitgraph import WAITS_S, Picture, Wait, WaitGraph, find_waits
from nccl_inspector.card.model import (
    BLOCKED,
    DEAD,
    DEADLOCK,
    DIVERGENT,
    MISMATCHED,
    NETWORK,
    NOT_MEASURED,
    TRANSPORT,
    Hang,
)
from nccl_inspector.model import FUNCS, KILLED, RUNNING, Operation, Process

CONFIRMED_S = 300.0


def _verdict(graph: WaitGraph, place: Place, picture: Picture, roots: Sequence[int]) -> str:
    ends = graph.ends.get(place, frozenset())
    knots = [end for end in ends if len(end) > 1]
    if picture.mismatched:
        return MISMATCHED
    if any(place in knot and set(roots) >= {n for n in knot if isinstance(n, int)}
           for knot in knots):  # fmt: skip
        one_comm = all(
            node.comm_id == place.comm_id and not node.pair
            for knot in knots
            for node in knot
            if isinstance(node, Place)
        )
        return MISMATCHED if one_comm else DEADLOCK
    if set(picture.dead) & set(roots):
        return DEAD
    if set(picture.absent) & set(roots):
        return DIVERGENT
    if picture.absent or picture.queued or picture.dead:
        return BLOCKED
    if picture.not_measured:
        return NOT_MEASURED
    return graph.stuck(graph.waits[place])[0]


def _hang(graph: WaitGraph, wait: Wait, names: Sequence[str], ended: bool) -> Hang:
    picture, roots = graph.pictures[wait.place], graph.roots(wait.place)
    verdict = _verdict(graph, wait.place, picture, roots)

    def named(found: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[who] for who in found)

    comm = wait.meeting.name or hex(wait.meeting.id)
    funcs = Counter(one.func for _, one in wait.seats)
    return Hang(
        communicator=hex(wait.meeting.id),
        op_index=min(one.index for _, one in wait.seats),
        func=FUNCS[funcs.most_common(1)[0][0]],
        since_s=wait.since_ns / 1e9,
        age_s=wait.age_ns / 1e9,
        verdict=verdict,
        waiting=named(who for who in wait.begun() if who not in picture.dead),
        never_issued=named(picture.absent),
        mismatched=named(picture.mismatched),
        not_started=named(picture.queued),
        dead=named(picture.dead),
        roots=named(roots),
        not_measured=(
            *(f"rank {rank} of {comm}" for rank in picture.missing),
            *named(picture.unknown),
        ),
        confirmed=ended or wait.age_ns > CONFIRMED_S * 1e9,
    )


def _last_progress_ns(processes: Iterable[Process]) -> int:
    return max((comm.last_progress_ns for one in processes for comm in one.comms), default=0)


def _anchors(meeting: Meeting, still: bool) -> bool:
    """Tell whether a communicator has an operation that is suspect."""

    def counts(seat: Seat, operation: Operation) -> bool:
        return operation.peer < 0 or (still and seat.process.facts.state in (KILLED, RUNNING))

    return any(
        counts(seat, one) and is_suspect(one, one.age_ns / 1e9, seat.process)
        for seat in meeting.seats.values()
        for one in seat.operations
    )


def _worst(waits: Sequence[Wait], graph: WaitGraph) -> Wait:
    """Return what stands for its communicator: of collectives the first, else the oldest."""

    def order(wait: Wait) -> tuple[bool, bool, int]:
        reached = bool(graph.roots(wait.place))
        return wait.place.pair is None, reached, wait.age_ns

    return max(waits, key=order)


def _queued_only(meeting: Meeting) -> Wait | None:
    """Return the first operation of a communicator whose ranks all wait for their streams."""
    rows = [(seat, one) for seat in meeting.seats.values() for one in seat.operations]
    old = [row for row in rows if row[1].age_ns >= WAITS_S * 1e9]
    if not old:
        return None
    seat, first = min(old, key=lambda row: row[1].index)
    place = meeting.place_of(seat, first)
    seats = ((s, meeting.operation_at(s, place)) for s in meeting.seats.values())
    return Wait(meeting, place, tuple((s, one) for s, one in seats if one))


def find_hangs(processes: Sequence[Process], names: Sequence[str], ended: bool) -> tuple[Hang, ...]:
    """Return what never ended, one for each communicator, those of the roots first.

    `ended`: the job is over, so nothing can end any more. `names`: of the processes.
    """
    if not any(is_suspect(op, op.age_ns / 1e9, one) for one in processes for op in one.operations):
        return ()
    last_beat_ns = max((one.facts.beat_ns for one in processes), default=0)
    still = last_beat_ns - _last_progress_ns(processes) > SUSPECT_S * 1e9
    meetings = find_meetings(processes)
    hung = [meeting for meeting in meetings if _anchors(meeting, still)]
    if not hung:
        return ()
    by_meeting = {meeting.id: list(find_waits(meeting)) for meeting in meetings}
    for meeting in hung:
        extra = None if by_meeting[meeting.id] else _queued_only(meeting)
        by_meeting[meeting.id] += [extra] if extra else []
    graph = WaitGraph((w for waits in by_meeting.values() for w in waits), last_beat_ns)
    found = [
        _hang(graph, _worst(by_meeting[meeting.id], graph), names, ended)
        for meeting in hung
        if by_meeting[meeting.id]
    ]
    return tuple(sorted(found, key=_order))


def _order(hang: Hang) -> tuple[bool, float, str]:
    """Sort what names a root itself first, then by time."""
    direct = {*hang.never_issued, *hang.not_started, *hang.dead, *hang.mismatched}
    is_root = bool(direct & set(hang.roots)) or hang.verdict in (NETWORK, TRANSPORT, NOT_MEASURED)
    return not is_root, hang.since_s or 0.0, hang.communicator
