# SPDX-License-Identifier: Apache-2.0
"""What the plugin counted against what was called."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nccl_inspector.model import DROP_REASONS, FUNCS, Process
from tests.nccl.box import Called, Counts, Kind, called, counted, counted_pairs, pairs, sent_steps
from tests.nccl.scenes import (
    AGGREGATED,
    BATCH_NS,
    BROADCAST_UNTOLD_SINCE,
    CLOCKS_RIGHT_SINCE,
    LONG_NS,
    OVERRUN,
    SHORT_NS,
    WITH_SELF,
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
    implausible: int = 0  # NCCL gave clocks that cannot be true
    unstarted: int = 0  # NCCL told an end without a start
    foreign: int = 0  # kinds of a rank with times of other operations, by NCCL's own mistake
    bytes: int = 0
    sent: int = 0  # pieces that NCCL sent over the network
    steps: int = 0  # those that were counted
    differences: list[str] = field(default_factory=list)


def _untimed_wanted(calls: Sequence[Called], rank: int, nccl: int) -> dict[Kind, int]:
    """Return how many operations of a kind NCCL gives no kernel event of."""
    found: dict[Kind, int] = {}
    for call in calls:
        silent = call.func == "Broadcast" and nccl >= BROADCAST_UNTOLD_SINCE
        if silent or call.peer == rank:
            kind = (call.comm, call.func)
            found[kind] = found.get(kind, 0) + 1
    return found


def _dropped(box: Process, reason: str) -> int:
    return box.dropped[DROP_REASONS.index(reason)]


def _may_lack(comm: str, nccl: int) -> bool:
    """Tell whether NCCL gives clocks there that cannot be true, so that operations are dropped."""
    return comm == OVERRUN or (comm in WITH_SELF and nccl < CLOCKS_RIGHT_SINCE)


def _judge_kinds(verdict: Verdict, rank: int, calls: Sequence[Called], box: Process) -> None:
    wanted, found = called(calls), counted(box)
    untimed = _untimed_wanted(calls, rank, box.facts.nccl_version)
    lacking = unstarted = 0
    for kind in sorted(wanted.keys() | found.keys()):
        want, have = wanted.get(kind, Counts()), found.get(kind, Counts())
        verdict.called += want.ops
        verdict.counted += have.ops + have.untimed
        verdict.timed += have.ops
        verdict.untimed += have.untimed
        verdict.bytes += want.bytes
        at, is_group = f"rank {rank}, {kind[0]}, {kind[1]}", kind[1].startswith("group ")
        lack = want.ops - have.ops - have.untimed
        if lack > 0 and _may_lack(kind[0], box.facts.nccl_version):
            lacking += 0 if is_group else lack
        elif (lack, want.bytes) != (0, have.bytes):
            verdict.differences.append(
                f"{at}: called {want.ops} with {want.bytes} bytes, "
                f"counted {want.ops - lack} with {have.bytes}"
            )
        more = have.untimed - untimed.get(kind, 0)
        if more < 0 or more > _dropped(box, "stale"):
            verdict.differences.append(
                f"{at}: {have.untimed} without a time, should be {untimed.get(kind, 0)}"
            )
        unstarted += 0 if is_group else max(more, 0)
    verdict.implausible += lacking
    verdict.unstarted += unstarted
    if lacking != _dropped(box, "implausible"):
        verdict.differences.append(
            f"rank {rank}: {lacking} operations lacking, "
            f"{_dropped(box, 'implausible')} dropped: implausible"
        )


def _is_right(name: str, func: str, time_ns: int) -> bool:
    """An operation takes the time of a batch, or of as many as NCCL has spread it over."""
    if name == AGGREGATED:
        return time_ns % BATCH_NS == 0 and 0 < time_ns <= BATCHES_MAX * BATCH_NS
    special = {("after_self", "AllReduce"): LONG_NS, ("instant", "AllReduce"): SHORT_NS}
    return time_ns == special.get((name, func), BATCH_NS)


def _judge_times(verdict: Verdict, rank: int, box: Process) -> None:
    names = {comm.index: comm.name for comm in box.comms}
    for key in box.keys:
        name, func = names.get(key.comm, "?"), FUNCS[key.func]
        times = (key.min_ns, key.max_ns)
        if not key.ops or name == OVERRUN or all(_is_right(name, func, time) for time in times):
            continue
        if name in WITH_SELF and box.facts.nccl_version < CLOCKS_RIGHT_SINCE:
            verdict.foreign += 1
        else:
            verdict.differences.append(
                f"rank {rank}, {name}, {func}: times of {times[0]} to {times[1]} ns"
            )


def judge_rank(verdict: Verdict, rank: int, calls: Sequence[Called], box: Process) -> None:
    """Add what one rank's box says."""
    verdict.api = box.facts.api_version
    _judge_kinds(verdict, rank, calls, box)
    _judge_times(verdict, rank, box)
    wanted, found = pairs(calls, rank), counted_pairs(box)
    for name, func, peer in sorted(wanted.keys() | found.keys()):
        want, have = wanted[name, func, peer], found[name, func, peer]
        if want != have:
            verdict.differences.append(
                f"rank {rank}, {name}: {func} with rank {peer}: called {want}, counted {have}"
            )
    forgiven = {"implausible"}  # by _judge_kinds
    if box.facts.nccl_version < CLOCKS_RIGHT_SINCE:
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
