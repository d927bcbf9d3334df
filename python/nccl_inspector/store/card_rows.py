# SPDX-License-Identifier: Apache-2.0
"""The rows of a report card in the index: job, nodes, entities of findings, kinds of operation."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nccl_inspector.analysis.kinds import KindRow, kinds_of, local_scores
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import CRITICAL, INFO, WARNING, Card
from nccl_inspector.model.headline import headline
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.transport import MIXED, NET, NVLINK

ENTITIES_MAX = 64
_WORD = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job and its verdict; unknown texts are empty and unknown numbers None."""

    cluster: str
    job_id: int
    restart: int
    uid: int | None
    user: str
    account: str
    partition: str
    name: str
    array_task: str
    script: str
    state: str
    start_s: float | None
    end_s: float | None
    num_nodes: int | None
    nodelist: str
    ranks: int
    status: str
    cause: str
    confidence: str
    summary: str
    criticals: int
    warnings: int
    infos: int
    cost_s: float | None
    cost_share: float | None
    mixed_gbs: float | None
    net_gbs: float | None
    nvlink_gbs: float | None
    waiting_share: float | None
    switches_asked: str
    segment_asked: int | None
    switches_used: int | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a job; `local` as in analysis/kinds.py, `named`: a warning is about the node."""

    node: str
    local: float
    named: bool


@dataclass(frozen=True, slots=True)
class EntityRow:
    """What a finding is about."""

    rule: str
    severity: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class CardRows:
    """All rows of one card."""

    job: JobRow
    nodes: tuple[NodeRow, ...]
    entities: tuple[EntityRow, ...]
    kinds: tuple[KindRow, ...]


def _nodelists(card: Card) -> list[str]:
    components = [one.nodelist for one in card.job.components]
    return components or [card.job.nodelist]


def nodes_of(card: Card) -> list[str]:
    """Return all nodes of the job's node list, and those of its communicators."""
    try:
        listed = [node for nodelist in _nodelists(card) for node in expand(nodelist)]
    except InspectorError:
        listed = []
    seen = (node for comm in card.communicators for node in comm.nodes)
    return list(dict.fromkeys([*listed, *seen]))


def _named(card: Card, nodes: Iterable[str]) -> set[str]:
    """Return the nodes that a warning is about, also through a GPU, port or rank on them."""
    known = set(nodes)
    words = {
        word
        for finding in card.findings
        if finding.severity in (WARNING, CRITICAL)
        for entity in finding.entities
        for word in _WORD.findall(entity.name)
    }
    return (known & words) | ({one.node for one in card.stragglers if one.flagged} & known)


def _gbs(card: Card, name: str) -> float | None:
    return next((one.bus_gbs for one in card.transports if one.transport == name), None)


def _waiting(card: Card) -> float | None:
    """Return the verdict's waiting share, else the mean over operations, weighted by time."""
    if card.verdict.waiting_share is not None:
        return card.verdict.waiting_share
    known = [
        (one.time_ns * one.count / max(1e-9, 1 - one.waiting_share), one.waiting_share)
        for one in card.operations
        if one.waiting_share is not None and not one.waiting_included
    ]
    total = sum(busy for busy, _ in known)
    return sum(busy * share for busy, share in known) / total if total else None


def _entities(card: Card) -> Iterator[EntityRow]:
    for finding in card.findings:
        for entity in finding.entities:
            yield EntityRow(finding.rule, finding.severity, entity.kind, entity.name)


def _job(card: Card, num_nodes: int) -> JobRow:
    job, verdict = card.job, card.verdict
    severities = [finding.severity for finding in card.findings]
    return JobRow(
        cluster=job.cluster, job_id=job.job_id, restart=job.restart, uid=job.uid, user=job.user,
        account=job.account, partition=job.partition, name=job.name, array_task=job.array_task,
        script=job.script, state=job.state, start_s=job.start_s, end_s=job.end_s,
        num_nodes=job.num_nodes if job.num_nodes is not None else num_nodes or None,
        nodelist=",".join(filter(None, _nodelists(card))), ranks=card.data_quality.ranks_seen,
        status=verdict.status, cause=verdict.cause, confidence=verdict.confidence,
        summary=headline(card), criticals=severities.count(CRITICAL),
        warnings=severities.count(WARNING), infos=severities.count(INFO),
        cost_s=verdict.cost_s, cost_share=verdict.cost_share,
        mixed_gbs=_gbs(card, MIXED), net_gbs=_gbs(card, NET), nvlink_gbs=_gbs(card, NVLINK),
        waiting_share=_waiting(card), switches_asked=job.switches_asked,
        segment_asked=job.segment_asked, switches_used=len(job.switches_used) or None,
    )  # fmt: skip


def rows_of(card: Card) -> CardRows:
    """Return the rows of a card."""
    nodes = nodes_of(card)
    named, local = _named(card, nodes), local_scores(card)
    return CardRows(
        _job(card, len(nodes)),
        tuple(NodeRow(node, local.get(node, 0.0), node in named) for node in nodes),
        tuple(dict.fromkeys(_entities(card)))[:ENTITIES_MAX],
        kinds_of(card),
    )
