# SPDX-License-Identifier: Apache-2.0
"""Stragglers as findings: who, since when, by which figures, and what to do."""

from collections.abc import Sequence

from nccl_inspector.analysis.queued import GPU, HOST
from nccl_inspector.card.model import (
    UNKNOWN,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Straggler,
)
from nccl_inspector.card.words import duration

_LATE_ACTIONS = {
    GPU: "check clocks, power and temperature of this GPU",
    HOST: "check the CPUs of this node: data loader, other tasks, binding",
    UNKNOWN: "compare its input and host with the others': it is late, which need not be a fault",
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
