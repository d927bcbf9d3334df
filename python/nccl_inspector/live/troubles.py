# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a process, from its box and from those of its peers on the node."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nccl_inspector.agent.beat_age import STOPPED_S
from nccl_inspector.analysis.hang.arrival import Arrival, find_meetings
from nccl_inspector.analysis.hang.suspect_age import (
    SUSPECT_S,
    UNKNOWN_END_S,
    Look,
    Measure,
    is_suspect,
    longest_ns,
)
from nccl_inspector.live.late_ranks import Late
from nccl_inspector.live.view import Trouble, TroubleKind
from nccl_inspector.model.bandwidth import size_class, size_label
from nccl_inspector.model.process import (
    DENIED,
    DISABLED,
    DROP_REASONS,
    DROPS_IN_PART,
    FUNCS,
    KILLED,
    RCCL,
    Comm,
    Operation,
    Process,
)

# A wait that is much longer than any in the communicator before is shown sooner.
_SOON = Look(UNKNOWN_END_S, Measure.OF_ITS_COMMUNICATOR)
_LONG_P2P = Look(SUSPECT_S, Measure.OF_ITS_COMMUNICATOR)


def age_words(seconds: float) -> str:
    """Return `12 s`, `5 min` or `3.0 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count_drops(process: Process) -> int:
    """Return how many events were not measured."""
    pairs = zip(DROP_REASONS, process.dropped, strict=True)
    return sum(count for reason, count in pairs if reason not in DROPS_IN_PART)


def oldest_of(process: Process) -> Operation | None:
    """Return the oldest operation in flight, or None."""
    return max(process.operations, key=lambda one: one.age_ns, default=None)


def oldest_collective(process: Process) -> Operation | None:
    """Return the oldest collective in flight, or None; a Recv may be posted for hours."""
    collectives = (one for one in process.operations if one.peer < 0)
    return max(collectives, key=lambda one: one.age_ns, default=None)


def age_s(operation: Operation, silent_s: float | None) -> float:
    """Return the present age of an operation in seconds; 0: younger than the last beat."""
    return operation.age_ns / 1e9 + (silent_s or 0.0) if operation.age_ns else 0.0


def describe(operation: Operation, process: Process) -> str:
    """Return a text such as `AllReduce of 1-2MB in tp`."""
    comm = _comm_of(operation, process)
    where = (comm.name or f"0x{comm.id:x}") if comm else "an unknown communicator"
    label = size_label(size_class(operation.bytes))
    peer = f" with rank {operation.peer}" if operation.peer >= 0 else ""
    return f"{FUNCS[operation.func]}{peer} of {label} in {where}"


def _comm_of(operation: Operation, process: Process) -> Comm | None:
    return next((comm for comm in process.comms if comm.index == operation.comm), None)


def _still_s(process: Process, silent_s: float | None) -> float:
    """Return for how long a process has completed nothing; 0: it never completed anything."""
    latest_ns = max((comm.last_progress_ns for comm in process.comms), default=0)
    if not latest_ns:
        return 0.0
    return max(0.0, (process.facts.beat_ns - latest_ns) / 1e9) + (silent_s or 0.0)


def _waited_in(process: Process, silent_s: float | None) -> Operation | None:
    """Return the operation that a process has waited in for too long.

    A Recv may be posted for hours. So a Send or Recv counts only while nothing else completes, and
    if others of its communicator were much shorter.
    """
    oldest = oldest_collective(process)
    if oldest is not None:
        age = age_s(oldest, silent_s)
        known = longest_ns(process, oldest.comm) > 0
        if is_suspect(oldest, age, process) or (known and is_suspect(oldest, age, process, _SOON)):
            return oldest
    oldest = oldest_of(process)
    if oldest is None or not longest_ns(process, oldest.comm):
        return None
    if not is_suspect(oldest, age_s(oldest, silent_s), process, _LONG_P2P):
        return None
    return oldest if _still_s(process, silent_s) > SUSPECT_S else None


def find_waits(
    processes: Sequence[tuple[str, Process, float | None]],
) -> dict[str, tuple[Trouble, ...]]:
    """Return, by name, which processes of a job on this node wait too long, and who did not come.

    Each process comes with its name and the seconds since its last beat. Who did not call what
    others wait in is named only if it waits for nobody itself: if it has nothing in flight.
    """
    meetings = {one.id: one for one in find_meetings([process for _, process, _ in processes])}
    found: dict[str, list[Trouble]] = defaultdict(list)
    kept_waiting: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for at, (name, process, silent_s) in enumerate(processes):
        operation = _waited_in(process, silent_s) if process.facts.state != KILLED else None
        if operation is None:
            continue
        age = age_s(operation, silent_s)
        words = f"has waited {age_words(age)} in {describe(operation, process)}"
        comm = _comm_of(operation, process)
        meeting = meetings.get(comm.id) if comm else None
        seat = meeting.seats.get(comm.rank) if meeting and comm else None
        if meeting and seat and seat.who == at and operation in seat.operations:
            place = meeting.place_of(seat, operation)
            seats = meeting.expected_seats(place)
            absent = [one for one in seats if meeting.arrival(one, place) is Arrival.ABSENT]
            names = [processes[one.who][0] for one in absent if not one.process.operations]
            for other in names:
                kept_waiting[other].append((age, describe(operation, process)))
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                words += f", which {', '.join(names[:3])}{more} of this node did not call"
            elif not absent and meeting.missing(place):
                words += "; all its ranks on this node called it, those on other nodes are not seen"
        found[name].append(Trouble(TroubleKind.HUNG, age, words))
    dead = {name for name, process, _ in processes if process.facts.state == KILLED}
    for name, waits in kept_waiting.items():
        if name not in dead:
            age, what = max(waits)
            many = "1 rank" if len(waits) == 1 else f"{len(waits)} ranks"
            have = "has" if len(waits) == 1 else "have"
            words = f"did not call {what}, in which {many} of this node {have} waited"
            words += f" {age_words(age)}, and has nothing in flight"
            found[name].append(Trouble(TroubleKind.ABSENT, age, words))
    return {name: tuple(troubles) for name, troubles in found.items()}


def _measuring(process: Process) -> Iterator[Trouble]:
    facts, drops = process.facts, count_drops(process)
    if drops:
        yield Trouble(TroubleKind.DROPS, drops, f"has {drops} events that were not measured")
    if facts.silent == DISABLED:
        yield Trouble(TroubleKind.UNMEASURED, 2, "is not measured: the node is disabled")
    elif facts.silent == DENIED:
        yield Trouble(
            TroubleKind.UNMEASURED, 3, f"is not measured: {facts.nccl} is on the deny list"
        )
    elif facts.silent == RCCL:
        yield Trouble(TroubleKind.UNMEASURED, 3, "is not measured: RCCL is not supported yet")
    elif facts.sampling > 1:
        words = f"has times for one operation in {facts.sampling} only, to spare the application"
        yield Trouble(TroubleKind.UNMEASURED, 1, words)


def troubles_of(
    process: Process,
    silent_s: float | None,
    late: Late | None,
    waits: Sequence[Trouble],
) -> tuple[Trouble, ...]:
    """Return what is wrong with a process, the worst first.

    `silent_s`: time since its last beat, None if it does not beat. `waits`: of find_waits().
    """
    found: list[Trouble] = []
    if process.facts.state == KILLED:
        last = "" if silent_s is None else f"; its last beat was {age_words(silent_s)} ago"
        found.append(Trouble(TroubleKind.LOST, 1.0, f"died without finalizing{last}"))
    else:
        if silent_s is not None and silent_s > STOPPED_S:
            words = f"has not beaten for {age_words(silent_s)}: stopped, or starved of CPU"
            found.append(Trouble(TroubleKind.STOPPED, silent_s, words))
        found += waits
    if late:
        words = f"comes late by {late.late_ns / 1e6:.3g} ms at the median"
        found.append(Trouble(TroubleKind.LATE, late.waited_ns, words))
    found += _measuring(process)
    return tuple(found)


def states(processes: Sequence[tuple[Process, float | None]]) -> tuple[int, int]:
    """Return how many processes are alive and beat, and how many should be.

    Each process comes with the seconds since its last beat.
    """
    lost = sum(process.facts.state == KILLED for process, _ in processes)
    stopped = sum(
        process.facts.state != KILLED and (silent_s or 0.0) > STOPPED_S
        for process, silent_s in processes
    )
    return len(processes) - lost - stopped, len(processes)
