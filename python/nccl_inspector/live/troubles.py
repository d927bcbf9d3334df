# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a process, from its box and from those of its peers on the node."""

from collections.abc import Iterator, Sequence

from nccl_inspector.agent.beat_age import STOPPED_S
from nccl_inspector.analysis.hang.suspect_age import is_suspect
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


def absentees(comm: Comm, others: Sequence[tuple[str, Process]]) -> list[str]:
    """Return the processes on this node that have not called what a rank of `comm` waits in."""
    found = []
    for name, process in others:
        for other in process.comms:
            if other.id != comm.id or other.rank == comm.rank:
                continue
            waits = any(one.comm == other.index for one in process.operations)
            if not waits and other.enqueued < comm.enqueued:
                found.append(name)
    return found


def _in_flight(
    process: Process, silent_s: float | None, others: Sequence[tuple[str, Process]]
) -> Iterator[Trouble]:
    oldest = oldest_collective(process)
    if oldest is None:
        return
    age = age_s(oldest, silent_s)
    if not is_suspect(oldest, age, process):
        return
    words = f"has waited {age_words(age)} in {describe(oldest, process)}"
    comm = _comm_of(oldest, process)
    missing = absentees(comm, others) if comm else []
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        words += f", which {', '.join(missing[:3])}{more} of this node did not call"
    yield Trouble(TroubleKind.HUNG, age, words)


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
    others: Sequence[tuple[str, Process]],
) -> tuple[Trouble, ...]:
    """Return what is wrong with a process, the worst first.

    `silent_s`: time since its last beat, None if it does not beat. `others`: the job's processes on
    this node.
    """
    found: list[Trouble] = []
    if process.facts.state == KILLED:
        last = "" if silent_s is None else f"; its last beat was {age_words(silent_s)} ago"
        found.append(Trouble(TroubleKind.LOST, 1.0, f"died without finalizing{last}"))
    else:
        if silent_s is not None and silent_s > STOPPED_S:
            words = f"has not beaten for {age_words(silent_s)}: stopped, or starved of CPU"
            found.append(Trouble(TroubleKind.STOPPED, silent_s, words))
        found += _in_flight(process, silent_s, others)
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
