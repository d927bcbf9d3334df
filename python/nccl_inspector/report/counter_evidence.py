# SPDX-License-Identifier: Apache-2.0
"""Which counters of the hardware support a cause of lost time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_inspector.model import card
from nccl_inspector.model.card import CRITICAL, HIGH, INFO, MEDIUM, WARNING, Finding


def with_counters(
    causes: Sequence[tuple[str, Finding]], hardware: Sequence[Finding]
) -> tuple[list[tuple[str, Finding]], list[Finding]]:
    """Return the causes with the counters that support them, and the remaining counter findings.

    A port supports a slow network; a GPU supports slow links inside its node and a late rank. One
    may support several causes. A remaining finding is information, unless it is critical.
    """
    told: set[int] = set()
    found = []
    for kind, cause in causes:
        places = [at for at, one in enumerate(hardware) if _speaks_for(one, kind, cause)]
        speaks = [hardware[at] for at in places]
        told.update(places)
        words = f" Counters: {'; '.join(one.title for one in speaks)}." if speaks else ""
        extra = tuple(row for one in speaks for row in one.evidence)
        ports = tuple(e for one in speaks for e in one.entities if e not in cause.entities)
        found.append((
            kind,
            replace(
                cause, detail=cause.detail + words, evidence=(*cause.evidence, *extra),
                entities=(*cause.entities, *ports),
                confidence=HIGH if speaks and cause.confidence == MEDIUM else cause.confidence,
            ),
        ))  # fmt: skip
    left = [one for at, one in enumerate(hardware) if at not in told]
    return found, [replace(one, severity=INFO) if one.severity == WARNING else one for one in left]


_DEVICES: Mapping[str, frozenset[str]] = {
    card.NETWORK: frozenset({"port"}),
    card.NVLINK: frozenset({"gpu"}),
    card.STRAGGLER: frozenset({"gpu"}),
}


def _speaks_for(counter: Finding, kind: str, cause: Finding) -> bool:
    if cause.severity == INFO or counter.severity == CRITICAL:
        return False
    nodes = {one.name for one in cause.entities if one.kind == "node"}
    gpus = {one.name for one in cause.entities if one.kind == "gpu"}
    for one in counter.entities:
        if one.kind not in _DEVICES.get(kind, frozenset()):
            continue
        if one.name.partition(" ")[0] in nodes and (kind == card.NETWORK or one.name in gpus):
            return True
    return False
