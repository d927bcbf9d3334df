# SPDX-License-Identifier: Apache-2.0
"""Find operations that never ended: what happened to each, and which process is the root of all.

The boxes are read at the end. Which age makes an operation suspect depends on how the job ended
and on its past (suspect_age.py), so a healthy job that is killed in the middle has no hang. A Send
or Recv may be posted long before it is due. Therefore it is suspect only if nothing progressed in
the whole job; waits in it are followed anyway.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

from nccl_inspector.analysis.claims import name_runs
from nccl_inspector.analysis.hang.arrival import Meeting, OpPlace, Seat, find_meetings
from nccl_inspector.analysis.hang.ending import BEATS_APART_S, Ending
from nccl_inspector.analysis.hang.suspect_age import (
    GIVEN_UP_S,
    SUSPECT_S,
    Look,
    is_suspect,
    is_unusual,
    looks_for,
)
from nccl_inspector.analysis.hang.wait_graph import (
    FOLLOWED,
    ROUND_NS,
    Picture,
    Signs,
    Wait,
    WaitGraph,
    find_waits,
)
from nccl_inspector.model.card import (
    BLOCKED,
    DEAD,
    DEADLOCK,
    DIVERGENT,
    MISMATCHED,
    NETWORK,
    NOT_MEASURED,
    STOPPED,
    TRANSPORT,
    Hang,
    LastCall,
)
from nccl_inspector.model.process import (
    COMM_FOLDED,
    FUNCS,
    KILLED,
    OPERATIONS_MAX,
    RUNNING,
    Comm,
    Operation,
    Process,
)

CONFIRMED_S = 300.0
# Verdicts that name who it was.
_TOLD = (DEAD, DIVERGENT, BLOCKED, MISMATCHED, DEADLOCK, STOPPED)
# For a crash: the least share of the other ranks that wait for those that stopped; and the largest
# share of the job's time for which they did so while it was healthy.
_ALL_SHARE, _USUAL_SHARE = 0.9, 0.05
# A younger operation counts as confirmed if the communicator has lived LIFE_TIMES as long, and none
# of its operations took a third (1 / UNHEARD_TIMES) as long.
LIFE_TIMES, UNHEARD_TIMES = 20, 3


def _verdict(graph: WaitGraph, place: OpPlace, picture: Picture, roots: Sequence[int]) -> str:
    ends = graph.ends.get(place, frozenset())
    knots = [end for end in ends if len(end) > 1 and not graph.all_came(end)]
    if picture.mismatched:
        return MISMATCHED
    if any(place in knot and not graph.stopped_in(knot) for knot in knots):
        one_comm = all(
            node.comm_id == place.comm_id and not node.pair
            for knot in knots
            for node in knot
            if isinstance(node, OpPlace)
        )
        return MISMATCHED if one_comm else DEADLOCK
    if set(picture.dead) & set(roots):
        return DEAD
    if set(picture.absent) & set(roots):
        return DIVERGENT
    if picture.late:
        return BLOCKED
    if picture.not_measured:
        return NOT_MEASURED
    if place not in graph.origins(place):  # its group holds it
        return BLOCKED
    return graph.stuck(graph.waits[place])[0]


@dataclass(frozen=True, slots=True)
class _AtEnd:
    """All processes with their names, and how the job ended.

    `first`: the name of the process that failed first, if Slurm's record tells; else empty.
    """

    processes: Sequence[Process]
    names: Sequence[str]
    ending: Ending
    first: str = ""


def _called_last(process: Process, hung_id: int) -> tuple[Comm, int, int, int] | None:
    """Return a process's last call: communicator, index, function, latest possible time (ns).

    An operation in flight was called when it was enqueued; one that ended, before its end was
    noted. Ends are noted in rounds. If several operations ended in the last round, that of the
    communicator that hangs is returned, else that of the largest communicator, because programs
    usually use smaller communicators before larger ones.
    """
    found = []
    for comm in process.comms:
        if comm.state == COMM_FOLDED or not comm.enqueued:
            continue
        mine = [one for one in process.operations if one.comm == comm.index]
        if mine:
            last = max(mine, key=lambda one: one.index)
            at_ns = max(process.facts.beat_ns - last.age_ns, comm.last_progress_ns)
            # Of many in flight only the first ones are kept.
            is_last = last.index == comm.enqueued or len(process.operations) < OPERATIONS_MAX
            index, func = (last.index, last.func) if is_last else (comm.enqueued, 0)
            found.append((at_ns, index, comm, func))
        elif comm.last_progress_ns:
            func = next(
                (key.func for key in process.keys
                 if key.comm == comm.index and key.last_index == comm.enqueued),
                0,
            )  # fmt: skip
            found.append((comm.last_progress_ns, comm.enqueued, comm, func))
    if not found:
        return None
    latest_ns = max(at_ns for at_ns, _, _, _ in found)
    _, index, comm, func = max(
        (row for row in found if row[0] > latest_ns - ROUND_NS),
        key=lambda row: (row[2].id == hung_id, row[2].nranks, row[0], row[1]),
    )
    return comm, index, func, latest_ns


def _is_in(process: Process, _hung_id: int) -> tuple[Comm, int, int, int] | None:
    """Return the operation that a process has been in for longest, in the form of _called_last."""
    begun = [one for one in process.operations if one.started] or process.operations
    if not begun:
        return None
    first = max(begun, key=lambda one: one.age_ns)
    comm = next((comm for comm in process.comms if comm.index == first.comm), None)
    at_ns = process.facts.beat_ns - first.age_ns
    return (comm, first.index, first.func, at_ns) if comm else None


def _last_calls(
    roots: Sequence[int], job: _AtEnd, hung_id: int, verdict: str
) -> Iterator[LastCall]:
    """Yield what the roots did last; for a wrong order or kind, the operation they are in."""
    look = _is_in if verdict in (MISMATCHED, DEADLOCK) else _called_last
    for who in roots:
        found = look(job.processes[who], hung_id)
        if found:
            comm, index, func, at_ns = found
            at_s = at_ns / 1e9 if at_ns else None
            yield LastCall(job.names[who], hex(comm.id), index, FUNCS[func] if func else "", at_s)


def _is_unheard_of(wait: Wait) -> bool:
    """Tell whether nothing in a long life of the communicator took nearly as long.

    A job that is ended at some moment is seldom in its first long pause at that time. The chance is
    the length of the pause divided by the life before it.
    """
    seats = [seat for seat, _ in wait.seats]
    life_ns = max(seat.process.facts.beat_ns - seat.comm.created_ns for seat in seats)
    longest_ns = max(
        (key.max_ns for seat in seats for key in seat.process.keys
         if key.comm == seat.comm.index),
        default=0,
    )  # fmt: skip
    return life_ns > LIFE_TIMES * wait.age_ns and longest_ns * UNHEARD_TIMES < wait.age_ns


def _is_confirmed(verdict: str, wait: Wait, ending: Ending) -> bool:
    """Tell whether an operation would never have ended.

    A job that is ended from outside may have been in a long checkpoint, for which the others
    waited. An operation hung if it cannot end at all, if it is very old or unusually old, or if the
    application itself gave up.
    """
    if verdict in (DEAD, MISMATCHED, DEADLOCK) or wait.age_ns > CONFIRMED_S * 1e9:
        return True
    gave_up = ending.has_failed and all(is_unusual(one, seat.process) for seat, one in wait.seats)
    return ending.was_given_up or gave_up or (ending.is_over and _is_unheard_of(wait))


def _hang(graph: WaitGraph, wait: Wait, job: _AtEnd, look: Look) -> Hang:
    names = job.names
    picture, roots = graph.pictures[wait.place], graph.roots(wait.place)
    verdict = _verdict(graph, wait.place, picture, roots)
    if verdict == DIVERGENT:
        roots = tuple(who for who in roots if not graph.may_be_right(who))

    def named(found: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[who] for who in found)

    comm = wait.meeting.name or hex(wait.meeting.id)
    funcs = Counter(one.func for _, one in wait.seats)
    hang = Hang(
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
            *(f"{words} of {comm}" for words in name_runs(picture.missing)),
            *named(picture.unknown),
        ),
        confirmed=_is_confirmed(verdict, wait, job.ending) and not look.lived_on,
        last=tuple(_last_calls(roots, job, wait.meeting.id, verdict)),
        behind=named(sorted(graph.waiting_for(roots) - {*wait.begun()})),
    )
    stopped = look.least_s < SUSPECT_S and not _lived_on(hang, wait, job)
    if job.ending.has_failed and verdict in (DIVERGENT, BLOCKED) and roots and stopped:
        return replace(hang, verdict=STOPPED, confirmed=True)
    return hang


def _last_progress_ns(processes: Iterable[Process]) -> int:
    return max((comm.last_progress_ns for one in processes for comm in one.comms), default=0)


def _anchors(meeting: Meeting, still: bool, look: Look) -> bool:
    """Tell whether a communicator has a suspect operation."""

    def counts(seat: Seat, operation: Operation) -> bool:
        return operation.peer < 0 or (still and seat.process.facts.state in (KILLED, RUNNING))

    return any(
        counts(seat, one) and is_suspect(one, one.age_ns / 1e9, seat.process, look)
        for seat in meeting.seats.values()
        for one in seat.operations
    )


def _worst(waits: Sequence[Wait], graph: WaitGraph) -> Wait:
    """Return the wait that stands for all.

    A collective comes first, then one with a root, one to which the root has not come, the oldest.
    """

    def order(wait: Wait) -> tuple[bool, bool, bool, int]:
        roots = graph.roots(wait.place)
        lacks = not set(graph.pictures[wait.place].late).isdisjoint(roots)
        return wait.place.pair is None, bool(roots), lacks, wait.age_ns

    return max(waits, key=order)


def _queued_only(meeting: Meeting, least_s: float) -> Wait | None:
    """Return the first operation of a communicator whose ranks all wait for their streams."""
    rows = [(seat, one) for seat in meeting.seats.values() for one in seat.operations]
    old = [row for row in rows if row[1].age_ns >= FOLLOWED * least_s * 1e9]
    if not old:
        return None
    seat, first = min(old, key=lambda row: row[1].index)
    place = meeting.place_of(seat, first)
    found = ((s, meeting.operation_at(s, place)) for s in meeting.seats.values())
    seats = tuple((s, one) for s, one in found if one)
    # None: the box contradicts itself about the operation.
    return Wait(meeting, place, seats) if seats else None


def may_hang(processes: Iterable[Process], look: Look | None = None) -> bool:
    """Tell whether any operation is suspect, by default for being old; most jobs have none."""
    looks = (look,) if look else ()
    return any(
        is_suspect(op, op.age_ns / 1e9, one, *looks) for one in processes for op in one.operations
    )


def find_hangs(
    processes: Sequence[Process],
    names: Sequence[str],
    ending: Ending,
    silences_ns: Sequence[float],
    first: str = "",
) -> tuple[Hang, ...]:
    """Return the operations that never ended, one per communicator; those of roots come first.

    `processes` are in common time, and `names` are their names. `silences_ns`: for how long each
    gave no sign of life before the last sign of any (analysis/clocks.py). `first`: the name of the
    process that failed first (first_end.py); empty: not known.
    """
    job = _AtEnd(processes, names, ending, first)
    runs = any(one.facts.state == RUNNING for one in processes)
    for look in looks_for(ending):
        if look.lived_on and runs:  # nothing has ended
            continue
        found = _find_all(job, silences_ns, look)
        if found:
            return found
    return ()


def _find_all(job: _AtEnd, silences_ns: Sequence[float], look: Look) -> tuple[Hang, ...]:
    """Return a hang for each communicator that has an operation that is suspect to a search."""
    processes = job.processes
    if not may_hang(processes, look):
        return ()
    last_beat_ns = max((one.facts.beat_ns for one in processes), default=0)
    still = last_beat_ns - _last_progress_ns(processes) > look.least_s * 1e9
    meetings = find_meetings(processes)
    hung = [meeting for meeting in meetings if _anchors(meeting, still, look)]
    if not hung:
        return ()
    followed_s = FOLLOWED * look.least_s
    by_meeting = {
        meeting.id: list(find_waits(meeting, followed_s, silences_ns)) for meeting in meetings
    }
    for meeting in hung:
        extra = None if by_meeting[meeting.id] else _queued_only(meeting, look.least_s)
        by_meeting[meeting.id] += [extra] if extra else []
    signs = Signs(last_beat_ns, silences_ns, min(max(look.least_s, GIVEN_UP_S), BEATS_APART_S))
    graph = WaitGraph((w for waits in by_meeting.values() for w in waits), signs, meetings)
    worst = [_worst(by_meeting[meeting.id], graph) for meeting in hung if by_meeting[meeting.id]]
    if look.all_wait:
        worst = [wait for wait in worst if _have_crashed(graph, wait, job)]
    pairs = [(wait, _hang(graph, wait, job, look)) for wait in worst]
    if look.lived_on:
        pairs = [
            (wait, one) for wait, one in pairs if one.verdict != DEAD and _lived_on(one, wait, job)
        ]
    found = [one for _, one in pairs]
    if look.before_end:
        found = [one for one in found if _gave_up_before_the_end(one, job)]
    if look.names:
        found = [one for one in found if one.roots and one.verdict in _TOLD]
    return tuple(sorted(found, key=_order))


def _have_crashed(graph: WaitGraph, wait: Wait, job: _AtEnd) -> bool:
    """Tell whether those at the root of a wait crashed, in a job of which some process did.

    Nearly all others wait for them, over all communicators. They are fewer than those that wait,
    and they are one process, or all on one node. At any moment of a healthy job, all may be waiting
    for a rank that is always late. So either this wait is longer than those before, or the others
    waited for these ranks in a small share of the job's time. Of ranks that are all in the same
    operation, it is not known which one crashed. If Slurm's record names the one that failed first,
    it is that one or nobody.
    """
    roots = graph.roots(wait.place)
    if job.first and [job.names[who] for who in roots] != [job.first]:
        return False
    waiting = graph.waiting_for(roots)
    others = {
        who
        for who, one in enumerate(job.processes)
        if one.operations or one.facts.state in (KILLED, RUNNING)
    } - set(roots)
    nodes = {job.processes[who].facts.node for who in roots}
    if not roots or len(nodes) > 1 or len(roots) > len(waiting):
        return False
    if any(graph.all_came(end) for end in graph.ends.get(wait.place, ())):
        return False
    if len(waiting) < _ALL_SHARE * len(others):
        return False
    if all(is_unusual(one, seat.process) and one.age_ns for seat, one in wait.seats):
        return True
    return _usual_share(wait, frozenset(roots)) < _USUAL_SHARE


def _usual_share(wait: Wait, roots: frozenset[int]) -> float:
    """Return the share of the job's time for which the others waited for the roots, about.

    Who comes last to a collective is in it for the shortest time.
    """
    busy: dict[bool, list[float]] = {True: [], False: []}
    life_ns = 1
    for seat in wait.meeting.seats.values():
        mine = [key.busy_ns for key in seat.process.keys if key.comm == seat.comm.index]
        busy[seat.who in roots].append(float(sum(mine)))
        life_ns = max(life_ns, seat.process.facts.beat_ns - seat.comm.created_ns)
    if not busy[True] or not busy[False]:
        return 0.0
    return (median(busy[False]) - min(busy[True])) / life_ns


def _last_beats_s(names: Iterable[str], job: _AtEnd) -> list[float]:
    """Return when processes gave their last sign of life, as Unix times."""
    those = set(names)
    return [
        one.facts.beat_ns / 1e9
        for one, name in zip(job.processes, job.names, strict=True)
        if name in those
    ]


def _gave_up_before_the_end(hang: Hang, job: _AtEnd) -> bool:
    """Tell whether most of those that waited were gone before Slurm began to end the job."""
    latest_s = job.ending.until_ns / 1e9 - BEATS_APART_S
    beats_s = _last_beats_s({*hang.waiting, *hang.behind}, job)
    return isfinite(latest_s) and 2 * sum(at_s < latest_s for at_s in beats_s) > len(beats_s)


def _lived_on(hang: Hang, wait: Wait, job: _AtEnd) -> bool:
    """Tell whether the roots lived for half of the time for which the others waited, or longer.

    That time may be shorter than their operations are old: a host calls operations long before its
    GPU begins them. A collective begins after the end of the one before it.
    """
    ended_ns = 0 if wait.meeting.mixed else max(s.comm.last_progress_ns for s, _ in wait.seats)
    began_s = max(hang.since_s or 0.0, ended_ns / 1e9)
    waited_s = max(_last_beats_s(hang.waiting, job), default=began_s) - began_s
    roots_s = min(_last_beats_s(hang.roots, job), default=0.0)
    return roots_s - began_s >= max(GIVEN_UP_S, waited_s / 2)


def _order(hang: Hang) -> tuple[bool, bool, float, str]:
    """Return a key for sorting: hangs with a root of their own and a process in them, then by time.

    An operation that was called and that no process has entered only waits behind what is stuck.
    """
    direct = {*hang.never_issued, *hang.not_started, *hang.dead, *hang.mismatched}
    is_root = bool(direct & set(hang.roots)) or hang.verdict in (NETWORK, TRANSPORT, NOT_MEASURED)
    return not (is_root and hang.waiting), not is_root, hang.since_s or 0.0, hang.communicator
