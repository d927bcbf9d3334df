# SPDX-License-Identifier: Apache-2.0
"""Stragglers and hangs as findings: who, since when, by which figures, and what to do."""

from collections.abc import Iterator, Sequence

from nccl_inspector.analysis.queued import GPU, HOST
from nccl_inspector.card.model import (
    BLOCKED,
    CRITICAL,
    DEAD,
    DEADLOCK,
    DIVERGENT,
    HIGH,
    LOW,
    MEDIUM,
    MISMATCHED,
    NETWORK,
    NOT_MEASURED,
    TRANSPORT,
    UNKNOWN,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Hang,
    Period,
    Straggler,
)
from nccl_inspector.card.words import cut_list, duration

_NAMES_SHOWN = 4
_LATE_ACTIONS = {
    GPU: "check clocks, power and temperature of this GPU",
    HOST: "check the CPUs of this node: data loader, other tasks, binding",
    UNKNOWN: "compare its input and host with the others': it is late, which need not be a fault",
}
_DID = {
    DIVERGENT: "never issued",
    MISMATCHED: "called something else than",
    BLOCKED: "issued, but did not start",
    DEAD: "died before the end of",
    DEADLOCK: "wait for one another in another order than the others in",
    NETWORK: "stand still on the network in",
    TRANSPORT: "do not come out of",
    NOT_MEASURED: "are not measured and may not have come to",
}
_HANG_ACTIONS = {
    DIVERGENT: "look at what this rank did instead: its stack, its log, its input",
    MISMATCHED: "look for a branch of the program that not all ranks take",
    BLOCKED: "look at what its GPU was busy with: a kernel, a copy, an XID",
    DEAD: "look for an error, a signal or the OOM killer on its node",
    DEADLOCK: "look for communicators that ranks use in different orders",
    NETWORK: "check ports, cables and switch between them",
    TRANSPORT: "look for XIDs and NVLink or port errors on these nodes; NCCL_INSPECTOR_NET=auto "
    "would say where the network stands",
    NOT_MEASURED: "see what became of them in Slurm's and the node's logs",
}


def _why_late(one: Straggler) -> str:
    if one.queued_ns is None:
        if one.kind == UNKNOWN:
            return "Late by its host or its GPU"
        return f"{'GPU' if one.kind == GPU else 'Host'}-late by its counters"
    peers_ns = one.peers_queued_ns or 0.0
    waits = f"what it called waited {duration(one.queued_ns)} for its GPU, its peers' "
    waits += duration(peers_ns)
    if one.kind == UNKNOWN:
        return f"Late by its host or its GPU, of which its queue and its counters differ: {waits}"
    if one.kind == GPU:
        return f"GPU-late: it called in time, and {waits}"
    return f"Host-late: it called late, for {waits}"


def describe_straggler(one: Straggler, hardware: Sequence[Evidence] = ()) -> Finding | None:
    """Return the finding; None: it is only the slowest. `hardware`: what its counters say."""
    if not one.flagged:
        return None
    windows = ""
    evidence = [Evidence("boxes", "late at the median", one.late_ns, "ns")]
    if one.windows_share is not None:
        windows = f", in {one.windows_share:.0%} of {one.windows} windows"
        share = Evidence("boxes", "windows in which it was late", one.windows_share, "share",
                         count=one.windows)  # fmt: skip
        evidence.append(share)
    else:
        windows = "; no time line says when"
    place = f"{one.node} {one.gpu}" if one.gpu != UNKNOWN else one.node
    entities = [Entity("rank", one.rank), Entity("node", one.node)]
    entities += [Entity("gpu", place)] if one.gpu != UNKNOWN else []
    if one.queued_ns is not None:
        evidence.append(Evidence("boxes", "mean wait in its GPU's queue", one.queued_ns, "ns",
                                 one.peers_queued_ns, one.queue_looks))  # fmt: skip
    return Finding(
        rule="straggler",
        severity=WARNING,
        confidence=one.confidence,
        title=f"{one.rank} ({place}) came late: {duration(one.late_ns)} at the median",
        detail=f"Late in {len(one.communicators)} of {one.member_of} communicators{windows}. All "
        f"peers together waited {duration(one.waited_ns)} for it. {_why_late(one)}; it waited "
        "for nobody itself.",
        period=one.period,
        entities=tuple(entities),
        evidence=(*evidence, *hardware),
        actions=(_LATE_ACTIONS.get(one.kind, _LATE_ACTIONS[UNKNOWN]),),
    )  # fmt: skip


def _who(hang: Hang) -> tuple[str, ...]:
    if hang.roots:
        return hang.roots
    return hang.not_measured if hang.verdict == NOT_MEASURED else hang.waiting


def _finding(hang: Hang, stalled: int) -> Finding:
    who, sure = _who(hang), "" if hang.confirmed else "perhaps hung: "
    others = f" {stalled - 1:,} other communicators stand behind it." if stalled > 1 else ""
    confidence = MEDIUM if hang.confirmed else LOW
    if hang.verdict == DEAD:
        confidence = HIGH  # it did not come, and gave no sign of life
    since_s = hang.since_s
    return Finding(
        rule=f"hang-{hang.verdict.replace(' ', '-')}",
        severity=CRITICAL if hang.confirmed else WARNING,
        confidence=LOW if hang.verdict in (TRANSPORT, NOT_MEASURED) else confidence,
        title=f"{sure}{cut_list(who, _NAMES_SHOWN)} {_DID[hang.verdict]} "
        f"{hang.func} {hang.op_index} of {hang.communicator}",
        detail=f"{len(hang.waiting):,} waited in it for {hang.age_s:.0f} s.{others}",
        period=Period(since_s, since_s + hang.age_s) if since_s is not None else None,
        entities=(*(Entity("rank", name) for name in who),
                  Entity("communicator", hang.communicator)),
        evidence=(Evidence("boxes", "in flight", hang.age_s, "s", count=len(hang.waiting)),),
        actions=(_HANG_ACTIONS[hang.verdict],),
    )  # fmt: skip


def describe_hangs(hangs: Sequence[Hang]) -> Iterator[Finding]:
    """Return a finding for each root, of the first operation that it holds up."""
    by_root: dict[tuple[str, ...], list[Hang]] = {}
    for hang in hangs:
        by_root.setdefault(hang.roots or (hang.verdict,), []).append(hang)
    for found in by_root.values():
        yield _finding(found[0], len(found))
