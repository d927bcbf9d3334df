# SPDX-License-Identifier: Apache-2.0
"""What a process did between two looks, and how much of it was waiting for the last rank."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.live.view import Flow, class_of
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.process import (
    COMM_FOLDED,
    FUNCS,
    GROUP,
    Comm,
    Histogram,
    Key,
    OpKind,
    Process,
)

# Identifies a communicator even if another one has taken its place in the box.
_CommId = tuple[int, int, int]
_KeyId = tuple[_CommId, int, int, int, int]


def comm_identity(comm: Comm) -> _CommId:
    """Return what identifies a communicator even if another one takes its place."""
    return comm.id, comm.rank, comm.created_ns


def _by_identity(process: Process) -> dict[_KeyId, Key]:
    """Return the keys by identity, without records of destroyed communicators.

    When a communicator is folded into such a record, it adds the counts of its whole life.
    """
    comms = {comm.index: comm for comm in process.comms}
    return {
        (comm_identity(comms[key.comm]), key.func, key.size_class, key.algo, key.proto): key
        for key in process.keys
        if key.comm in comms and comms[key.comm].state != COMM_FOLDED
    }


def _less(key: Key, before: Key | None) -> Key | None:
    """Return what was added to a key; None: nothing, or its counts started again."""
    if before is None:
        return key
    ops, busy_ns = key.ops - before.ops, key.busy_ns - before.busy_ns
    untimed_ops = key.untimed_ops - before.untimed_ops
    if min(ops, busy_ns, untimed_ops, key.bytes - before.bytes) < 0 or not ops + untimed_ops:
        return None
    counts = dict(key.histogram.pairs())
    for bucket, count in before.histogram.pairs():
        counts[bucket] = counts.get(bucket, 0) - count
    return key._replace(
        ops=ops,
        bytes=key.bytes - before.bytes,
        busy_ns=busy_ns,
        untimed_ops=untimed_ops,
        histogram=Histogram.of((bucket, n) for bucket, n in counts.items() if n > 0),
    )


def since(process: Process, before: Process) -> Process:
    """Return the process with only the keys that changed since `before`, as increases."""
    old = _by_identity(before)
    changed = (_less(key, old.get(name)) for name, key in _by_identity(process).items())
    return replace(process, keys=tuple(key for key in changed if key))


def flow_of(delta: Process, span_s: float, waiting_s: float, waitable_s: float) -> Flow:
    """Return the rates of a process; `delta` comes from `since`.

    Groups are left out, because their Sends and Recvs are also counted one by one.
    """
    comms = {comm.index: comm for comm in delta.comms}
    operations = 0
    bus_bytes: dict[str, float] = defaultdict(float)
    busy_s: dict[str, float] = defaultdict(float)
    for key in delta.keys:
        if key.algo == GROUP:
            continue
        operations += key.ops + key.untimed_ops
        comm, func = comms[key.comm], FUNCS[key.func]
        factor = bus_factor(func, comm.nranks)
        if key.ops and factor:
            word = class_of(func, comm.nranks, comm.nnodes)
            bus_bytes[word] += key.bytes * factor
            busy_s[word] += key.busy_ns / 1e9
    return Flow(
        operations / span_s if span_s > 0 else 0.0,
        dict(bus_bytes),
        dict(busy_s),
        waiting_s,
        waitable_s,
    )


def split_waiting(joined: Sequence[JoinedComm]) -> Mapping[str, tuple[float, float]]:
    """Return for each process, by name, the seconds it waited and the seconds that are comparable.

    Comparable are collectives in which all wait for all and at least two ranks are on this node.
    The fastest of these ranks has the time of the transfer; what the others took longer is waiting.
    """
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for comm in joined:
        if not comm.id:
            continue  # destroyed ones, summed: ranks cannot be compared
        times = {one.kind: one.time_ns for one in comm.figures if one.func in SYNCHRONISING}
        shared: dict[OpKind, list[tuple[str, Key]]] = defaultdict(list)
        for member in comm.members.values():
            for key in member.keys:
                if key.kind in times and key.ops:
                    shared[key.kind].append((member.place.name, key))
        for kind, pairs in shared.items():
            for name, key in pairs if len(pairs) > 1 else ():
                waited_ns = max(0.0, key.busy_ns - key.ops * times[kind])
                waiting_s, waitable_s = found[name]
                found[name] = waiting_s + waited_ns / 1e9, waitable_s + key.busy_ns / 1e9
    return found
