# SPDX-License-Identifier: Apache-2.0
"""The cause of a time with less progress, by arithmetic; it is named only if the figures agree.

Communication takes the share f of the wall time. If its bandwidth changes by d (negative), an
iteration becomes longer by f * (1 / (1 + d) - 1). This prediction is compared with the dip that was
seen: in the throughput that the job printed, or without that, in the operations per second.
"""

from dataclasses import dataclass

from nccl_inspector.analysis.slow_times.comparison import DOWN, Comparison
from nccl_inspector.model import card
from nccl_inspector.model.transport import HOST, NET, NVLINK, ON_NETWORK

SAME = 0.05  # the most by which an unchanged bandwidth may differ
LESS_MIN = 0.02  # a smaller dip in progress cannot be explained
EXPLAINED_MIN = 0.5  # with less, no cause is named
WAITING_MIN = 0.03  # of the wall time: the least growth of the waiting
WORKLOAD = "workload phase"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The answer; `cause` is of model.card.CAUSES or WORKLOAD, shares are None if not defined."""

    cause: str
    confidence: str
    why: str
    node: str = ""
    longer: float | None = None  # by how much an iteration became longer, as measured
    predicted: float | None = None  # the same, as far as communication makes it
    explained: float | None = None  # predicted / longer, at most 1


def slowdown(share: float, bandwidth: float) -> float:
    """Return by which share an iteration becomes longer; the arguments are those of Change."""
    return share * (1 / (1 + bandwidth) - 1) if bandwidth > -1 else float("inf")


def _percent(share: float) -> str:
    return f"{share:+.0%}" if abs(share) >= 0.005 else "0%"


def _by_table(changes: Comparison) -> Attribution:
    """Return the cause from which classes are slow, before the arithmetic."""
    by_class = {one.transport: one for one in changes.classes}
    slow = [one for one in changes.classes if one.bandwidth <= DOWN]
    said = ", ".join(f"{one.transport} {_percent(one.bandwidth)}" for one in changes.classes)
    if slow and changes.mix:
        return Attribution(WORKLOAD, card.MEDIUM, f"{said}, with another workload: {changes.mix}")
    inner = [by_class[name] for name in (NVLINK, HOST) if name in by_class]
    slow_inner = [one for one in inner if one.bandwidth <= DOWN or one.slowed]
    if slow_inner:
        nodes = {node for one in slow_inner for node in one.slowed}
        if len(nodes) == 1:
            node = min(nodes)
            return Attribution(
                card.NVLINK, card.MEDIUM, f"{said}; inside of node {node} alone", node
            )
        return Attribution(card.UNKNOWN, card.LOW, f"{said}: inside of {len(nodes)} nodes alike")
    if any(one.transport in ON_NETWORK for one in slow):
        if inner and all(abs(one.bandwidth) <= SAME for one in inner):
            return Attribution(card.NETWORK, card.MEDIUM, said)
        if not inner and any(one.transport == NET for one in slow):
            return Attribution(
                card.NETWORK, card.MEDIUM, f"{said}: all its hops are on the network"
            )
        return Attribution(
            card.NETWORK, card.LOW, f"{said}; nothing tells how links inside of nodes did"
        )
    if slow:
        return Attribution(card.UNKNOWN, card.LOW, said)
    if (changes.waiting or 0.0) >= WAITING_MIN:
        why = f"{said}; waiting {changes.waiting:+.0%} of the wall time"
        return Attribution(card.STRAGGLER, card.MEDIUM, why)
    flat = bool(changes.classes) and all(abs(one.bandwidth) <= SAME for one in changes.classes)
    if flat and (changes.progress or 0.0) <= -LESS_MIN:
        confidence = card.MEDIUM if changes.throughput is not None else card.LOW
        return Attribution(card.OUTSIDE, confidence, f"{said}, and no more waiting")
    return Attribution(card.UNKNOWN, card.LOW, said)


def attribute(changes: Comparison) -> Attribution:
    """Return the cause; none is named if it explains less than half of the dip."""
    found = _by_table(changes)
    longer = None
    if changes.progress is not None and -1 < changes.progress <= -LESS_MIN:
        longer = 1 / (1 + changes.progress) - 1
    if found.cause in (card.UNKNOWN, card.OUTSIDE, WORKLOAD):
        return _with(found, longer, None)
    if found.cause == card.STRAGGLER:
        # The growth of the waiting is a share of wall time, which itself has become longer.
        predicted = (changes.waiting or 0.0) * (1 + (longer or 0.0))
    else:
        predicted = sum(
            slowdown(one.share, one.bandwidth) for one in changes.classes if one.bandwidth <= DOWN
        )
    if longer is None:
        return _with(found, None, predicted)
    if predicted / longer < EXPLAINED_MIN:
        why = f"{found.why}: that makes {predicted:.1%} of the {longer:.1%} by which it was slower"
        return _with(Attribution(card.UNKNOWN, card.LOW, why), longer, predicted)
    # Two sources that agree: the boxes and the job's own figure.
    agree = changes.throughput is not None and found.confidence == card.MEDIUM
    confidence = card.HIGH if agree else found.confidence
    return _with(Attribution(found.cause, confidence, found.why, found.node), longer, predicted)


def _with(found: Attribution, longer: float | None, predicted: float | None) -> Attribution:
    # At most 1, however rough the prediction is.
    explained = min(1.0, predicted / longer) if longer and predicted is not None else None
    return Attribution(
        found.cause, found.confidence, found.why, found.node, longer, predicted, explained
    )
