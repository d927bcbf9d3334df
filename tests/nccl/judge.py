# SPDX-License-Identifier: Apache-2.0
"""What the plugin counted against what was called."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nccl_inspector.model.process import DROP_REASONS, FUNCS, Process
from tests.nccl.box import Called, Counts, Kind, called, counted, counted_pairs, pairs, sent_steps
from tests.nccl.scenes import (
    AFTERWARDS,
    AGGREGATED,
    BATCH_NS,
    BROADCAST,
    BROADCAST_UNTOLD_SINCE,
    LONG_NS,
    MIXED,
    OVERRUN,
    SHORT_NS,
    STARTS_TOLD_SINCE,
)

BATCHES_MAX = 5  # there are as many operations in a group


@dataclass
class Verdict:
    """One release."""

    release: str
    by_name: bool = False  # the plugin is loaded by its name, not by its path
    api: int = 0
    called: int = 0
    counted: int = 0
    timed: int = 0
    untimed: int = 0
    implausible: int = 0  # of these: NCCL gave times that cannot be true
    unstarted: int = 0  # of these: NCCL told an end without a start
    mixed: int = 0  # communicators of a rank whose later operations have no times (box_mixed)
    bytes: int = 0
    sent: int = 0  # pieces that NCCL sent over the network
    steps: int = 0  # those that were counted
    differences: list[str] = field(default_factory=list)


def _untimed_wanted(
    calls: Sequence[Called], rank: int, nccl: int, *, told: bool
) -> dict[Kind, int]:
    """Return how many operations of a kind NCCL gives no kernel event of."""
    found: dict[Kind, int] = {}
    for call in calls:
        silent = call.func == "Broadcast" and nccl >= BROADCAST_UNTOLD_SINCE and not told
        if silent or call.peer == rank:
            kind = (call.comm, call.func)
            found[kind] = found.get(kind, 0) + 1
    return found


def _dropped(box: Process, reason: str) -> int:
    return box.dropped[DROP_REASONS.index(reason)]


def _mixed_comms(box: Process) -> dict[str, int]:
    """Return why, of the communicators that have operations without times for it."""
    return {
        comm.name: comm.mixed_why
        for comm in box.comms
        if comm.mixed_why and comm.mixed_since <= comm.enqueued
    }


def _wanted_mixed(names: Iterable[str], nccl: int, *, told: bool) -> dict[str, int]:
    found = {
        name: MIXED[name][0]
        for name in names
        if name in MIXED and MIXED[name][1] <= nccl < MIXED[name][2]
    }
    return {name: why for name, why in found.items() if not (told and why == BROADCAST)}


def _judge_mixed(verdict: Verdict, rank: int, box: Process, *, told: bool) -> None:
    names = (comm.name for comm in box.comms)
    wanted = _wanted_mixed(names, box.facts.nccl_version, told=told)
    found = _mixed_comms(box)
    verdict.mixed += len(found)
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name, 0) != found.get(name, 0):
            verdict.differences.append(
                f"rank {rank}, {name}: times are mixed up for reason {wanted.get(name, 0)}, "
                f"the box says {found.get(name, 0)}"
            )


def _judge_kinds(
    verdict: Verdict, rank: int, calls: Sequence[Called], box: Process, *, told: bool
) -> None:
    wanted, found, mixed = called(calls), counted(box), _mixed_comms(box)
    untimed = _untimed_wanted(calls, rank, box.facts.nccl_version, told=told)
    implausible = 0
    for kind in sorted(wanted.keys() | found.keys()):
        want, have = wanted.get(kind, Counts()), found.get(kind, Counts())
        name, func = kind
        is_whole = func.startswith("group ")
        if is_whole and name in mixed:  # its members are counted, and no group is made of them
            continue
        verdict.called += want.ops
        verdict.counted += have.ops + have.untimed
        verdict.timed += have.ops
        verdict.untimed += have.untimed
        verdict.bytes += want.bytes
        at = f"rank {rank}, {name}, {func}"
        if (want.ops, want.bytes) != (have.ops + have.untimed, have.bytes):
            verdict.differences.append(
                f"{at}: called {want.ops} with {want.bytes} bytes, "
                f"counted {have.ops + have.untimed} with {have.bytes}"
            )
        more = have.untimed - untimed.get(kind, 0)
        if name in mixed:
            if name in AFTERWARDS and func == "AllReduce" and have.ops:
                verdict.differences.append(f"{at}: {have.ops} have times of earlier operations")
            continue
        if name == OVERRUN:
            implausible += more
            continue
        if more < 0 or more > _dropped(box, "stale"):
            verdict.differences.append(
                f"{at}: {have.untimed} without a time, should be {untimed.get(kind, 0)}"
            )
        verdict.unstarted += 0 if is_whole else max(more, 0)
    verdict.implausible += implausible
    if implausible < _dropped(box, "implausible"):
        verdict.differences.append(
            f"rank {rank}: {_dropped(box, 'implausible')} operations had times that cannot be "
            f"true, {implausible} were provoked"
        )


def _is_right(name: str, func: str, time_ns: int) -> bool:
    """An operation takes the time of a batch, or of as many as NCCL has spread it over."""
    if name == AGGREGATED:
        return time_ns % BATCH_NS == 0 and 0 < time_ns <= BATCHES_MAX * BATCH_NS
    if name == "instant":
        return time_ns == SHORT_NS
    is_long = (name, func) == ("graph_and_calls", "AllGather") or (
        name in AFTERWARDS and func == "AllReduce"
    )
    return time_ns == (LONG_NS if is_long else BATCH_NS)


def _judge_times(verdict: Verdict, rank: int, box: Process) -> None:
    names = {comm.index: comm.name for comm in box.comms}
    for key in box.keys:
        name, func = names.get(key.comm, "?"), FUNCS[key.func]
        times = (key.min_ns, key.max_ns)
        if key.ops and not all(_is_right(name, func, time) for time in times):
            verdict.differences.append(
                f"rank {rank}, {name}, {func}: times of {times[0]} to {times[1]} ns"
            )


def judge_rank(
    verdict: Verdict, rank: int, calls: Sequence[Called], box: Process, *, told: bool
) -> None:
    """Add what one rank's box says; `told`: NCCL was to tell of Broadcasts."""
    verdict.api = box.facts.api_version
    _judge_mixed(verdict, rank, box, told=told)
    _judge_kinds(verdict, rank, calls, box, told=told)
    _judge_times(verdict, rank, box)
    mixed = _mixed_comms(box)
    wanted, found = pairs(calls, rank), counted_pairs(box)
    for name, func, peer in sorted(wanted.keys() | found.keys()):
        want, have = wanted[name, func, peer], found[name, func, peer]
        if want != have and name not in mixed:  # of each with a time
            verdict.differences.append(
                f"rank {rank}, {name}: {func} with rank {peer}: called {want}, counted {have}"
            )
    forgiven = {"implausible"}  # by _judge_kinds
    if box.facts.nccl_version < STARTS_TOLD_SINCE:
        forgiven.add("stale")  # an end without a start
    for reason, count in zip(DROP_REASONS, box.dropped, strict=False):
        if count and reason not in forgiven:
            verdict.differences.append(f"rank {rank}: {count} dropped: {reason}")
    for comm in box.comms:
        if comm.enqueued != comm.completed + comm.untimed or comm.lost:
            verdict.differences.append(
                f"rank {rank}, {comm.name}: {comm.enqueued} enqueued, {comm.completed} completed, "
                f"{comm.untimed} untimed, {comm.lost} lost"
            )


def judge_steps(verdict: Verdict, rank: int, sent: int, box: Process) -> None:
    """Add what one rank sent over the network."""
    counted_steps = sent_steps(box)
    verdict.sent += sent
    verdict.steps += counted_steps
    if sent != counted_steps:
        verdict.differences.append(f"rank {rank}: {sent} steps sent, counted {counted_steps}")
