# SPDX-License-Identifier: Apache-2.0
"""The report card of a capture: judged like node summaries, then completed with exact figures."""

from collections.abc import Mapping
from dataclasses import replace

from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.capture.contents import Capture, Process
from nccl_inspector.capture.joined import Joined
from nccl_inspector.capture.processes import node_of
from nccl_inspector.capture.unfinished import why_unfinished
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    HEALTHY,
    LOW,
    Card,
    Communicator,
    Evidence,
    Finding,
    Input,
    Operations,
    Verdict,
)
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.system.printable import visible

_DROPPED = {
    "untimed": "lines without a time",
    "proxy_trace": "network traces of NVIDIA's format v4.3 and later, which are not looked at",
    "ring_full": "operations that the writer's ring lost",
    "line_dropped": "lines that the writer lost",
    "unmeasured": "operations without a time, which have no line",
}
# Reasons in `dropped` for lines that could be read and do not mean a loss.
_READ = frozenset({"proxy_trace"})
_UNKNOWN_SHOWN = 8
# Sources of evidence that stand for JSON lines in a capture.
_FROM_LINES = frozenset({"boxes", "samples"})


def waiting_share(joined: Joined) -> float | None:
    """Return the waiting in all joined collectives, as a share of the ranks' time in them.

    None: no collective was joined.
    """
    return joined.waiting_ns / joined.busy_ns if joined.busy_ns else None


def _missing(capture: Capture, joined: Joined) -> list[str]:
    found = [f"{count} {_DROPPED[reason]}" for reason, count in sorted(capture.dropped.items())]
    partial = [one for one in joined.communicators if one.ranks_seen < one.nranks]
    if partial:
        seen = sum(one.ranks_seen for one in partial)
        ranks = sum(one.nranks for one in partial)
        found.append(
            f"of {len(partial)} communicators only {seen} of {ranks} ranks have records: "
            "T may be too long and the waiting too short"
        )
    if capture.unknown:
        names = sorted(capture.unknown, key=lambda name: (-capture.unknown[name], name))
        found.append(
            "members that this release does not know, and that were left out: "
            + ", ".join(visible(name)[:60] for name in names[:_UNKNOWN_SHOWN])
        )
    if joined.mismatched:
        found.append(f"{joined.mismatched} collectives in which the ranks do not agree on the size")
    return found


def _key(one: Operations) -> tuple[str, str, int, str]:
    known = "" if one.algo_proto == "Unknown_Unknown" else one.algo_proto
    return one.communicator, one.func, one.size_class, known


def _exact(card: Card, joined: Joined) -> tuple[Operations, ...]:
    """Return the joined rows, with what else the card knows about each."""
    known = {_key(one): one for one in card.operations}
    return tuple(
        replace(
            one, expected_gbs=own.expected_gbs, expected_source=own.expected_source,
            waited_for=own.waited_for, waited_for_node=own.waited_for_node,
        )
        if (own := known.get(_key(one)))
        else one
        for one in joined.operations
    )  # fmt: skip


def _names(capture: Capture, loaded: Loaded) -> dict[Process, str]:
    """Return the names of the processes by (host name, pid)."""
    listed = [(one.head.job_id, process) for one in loaded.summaries for process in one.processes]
    by_node = {
        (process.facts.node, process.facts.pid): name
        for name, (_, process) in zip(name_processes(listed), listed, strict=True)
    }
    known = capture.sql.execute("select distinct hostname, pid from counted").fetchall()
    return {who: by_node[node_of(capture, who), who[1]] for who in known}


def _judged(card: Card, joined: Joined, unfinished: str) -> Verdict:
    """Return the verdict, with the waiting of the joined operations.

    If a job did not end in order, the completed operations cannot show that it was healthy.
    """
    verdict = replace(card.verdict, waiting_share=waiting_share(joined))
    if verdict.status == HEALTHY and joined.unrecorded:
        unseen = (
            f"{joined.unrecorded:,} operations have no line (too small, or lost): "
            "a rank that is late in these alone is not seen"
        )
        verdict = replace(verdict, confidence=LOW, summary=f"{verdict.summary}; {unseen}")
    if not unfinished or verdict.status not in (HEALTHY, CANNOT_TELL):
        return verdict
    summary = (
        "nothing slow was found in what completed" if verdict.status == HEALTHY else verdict.summary
    )
    return replace(
        verdict, status=CANNOT_TELL, confidence=LOW,
        summary=f"{summary}; whether the job hung or was killed cannot be told from JSON lines: "
        f"{unfinished}. Use nccl-inspector report, which also sees what never ended",
    )  # fmt: skip


def _ranks(loaded: Loaded) -> dict[tuple[str, str], int]:
    """Return the rank of each process in each communicator, by the names that the card uses."""
    listed = [(one.head.job_id, process) for one in loaded.summaries for process in one.processes]
    return {
        (name, hex(comm.id)): comm.rank
        for name, (_, process) in zip(name_processes(listed), listed, strict=True)
        for comm in process.comms
    }


def _came_last(
    finding: Finding, card: Card, joined: Joined, ranks: Mapping[tuple[str, str], int]
) -> list[Evidence]:
    """Return how often a finding's straggler came last, in the communicator that waited most."""
    named = {one.name for one in finding.entities if one.kind == "rank"}
    late = next((one for one in card.stragglers if one.rank in named), None)
    if late is None:
        return []
    return [
        Evidence(
            "json", f"operations of {row.communicator} that {late.rank} came last in",
            row.operations, "operations", row.of_operations,
        )
        for row in joined.came_last
        if row.communicator in late.communicators
        and ranks.get((late.rank, row.communicator)) == row.rank
    ][:1]  # fmt: skip


def _findings(card: Card, joined: Joined, loaded: Loaded) -> tuple[Finding, ...]:
    """Return the findings with JSON lines as the source of their evidence.

    For a late rank, how often it came last is added.
    """
    found = []
    ranks = _ranks(loaded)
    for one in card.findings:
        evidence = [
            replace(row, source="json") if row.source in _FROM_LINES else row
            for row in one.evidence
        ]
        if one.rule == rules.STRAGGLER.id:
            evidence += _came_last(one, card, joined, ranks)
        found.append(replace(one, evidence=tuple(evidence)))
    return tuple(found)


def _communicators(card: Card, joined: Joined) -> tuple[Communicator, ...]:
    """Return the joined communicators, with the transport and name that the card's tables use."""
    known = {one.id: one for one in card.communicators}
    return tuple(
        replace(one, transport=own.transport, name=own.name) if (own := known.get(one.id)) else one
        for one in joined.communicators
    )


def as_card(capture: Capture, joined: Joined, loaded: Loaded) -> Card:
    """Return the card; its times, waiting and communicators are those of the joined operations."""
    lost = {name: count for name, count in sorted(capture.dropped.items()) if name not in _READ}
    partial = any(one.ranks_seen < one.nranks for one in joined.communicators)
    state = "partial" if capture.refused or lost or partial else "present"
    inputs = (Input("json", state, f"{len(capture.files)} files"),)
    given = JobContext(
        inputs=inputs, refused=dict(sorted(capture.refused.items())), from_boxes=False,
        why_no_samples=capture.why_no_bursts,
    )  # fmt: skip
    card = build_card(loaded, given)
    quality = card.data_quality
    unfinished = why_unfinished(capture, _names(capture, loaded))
    ends = [f"the end of the job: {unfinished}"] if unfinished else []
    return replace(
        card,
        verdict=_judged(card, joined, unfinished),
        communicators=_communicators(card, joined),
        findings=_findings(card, joined, loaded),
        operations=_exact(card, joined),
        data_quality=replace(
            quality,
            dropped={**quality.dropped, **lost},
            missing=(*quality.missing, *_missing(capture, joined), *ends),
        ),
    )
