# SPDX-License-Identifier: Apache-2.0
"""A card as text for a terminal: verdict, findings, figures, and what is missing."""

from collections.abc import Iterator

from nccl_inspector.model.card import (
    CRASHED,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    HUNG,
    INFO,
    PERHAPS_HUNG,
    WARNING,
    Card,
    Finding,
)
from nccl_inspector.model.headline import what_happened
from nccl_inspector.model.rules import BY_ID
from nccl_inspector.model.table_columns import cut
from nccl_inspector.model.wording import (
    cut_list,
    elapsed,
    from_to,
    number,
    said_entity,
    said_evidence,
    said_job,
    said_status,
    said_waiting,
    worst_first,
)
from nccl_inspector.render import tables
from nccl_inspector.render.cards_of_means import NOT_TOLD
from nccl_inspector.render.hosts import host_times
from nccl_inspector.render.labels import labels
from nccl_inspector.render.missing import missing_lines, source_words
from nccl_inspector.render.network_table import network
from nccl_inspector.render.output_limits import EVERYTHING, TERMINAL, Limits
from nccl_inspector.render.text_layout import (
    COLUMNS_MAX,
    Item,
    Paint,
    bullet,
    join,
    paragraph,
    section,
)
from nccl_inspector.render.timeline_text import draw_timeline

_ENTITIES_SHOWN = 8
_NAME_CHARS = 80
_STATUS_PAINT = {
    HEALTHY: Paint.GOOD,
    DEGRADED: Paint.WARNING,
    HUNG: Paint.CRITICAL,
    PERHAPS_HUNG: Paint.WARNING,
    CRASHED: Paint.CRITICAL,
    FAILED: Paint.CRITICAL,
}
_SEVERITY_PAINT = {CRITICAL: Paint.CRITICAL, WARNING: Paint.WARNING, INFO: Paint.PLAIN}
_TIMING = {
    "gpu": "times by the GPU's clock",
    "cpu": "times by the CPU's clock",
    "mixed": "times by the GPU's clock and by the CPU's",
    NOT_TOLD: "whose clock the times are by is not told",
}


def _size_words(card: Card) -> Iterator[str]:
    job, quality = card.job, card.data_quality
    lost = len(quality.nodes_missing)
    if job.num_nodes:
        some = f"{max(0, job.num_nodes - lost):,} of " if lost else ""
        yield some + number(job.num_nodes, "node")
    ranks = number(quality.ranks_seen, "process" if job.steps > 1 else "rank")
    yield f"{ranks} in {job.steps} steps" if job.steps > 1 else ranks


def _attempt(card: Card) -> str:
    job = card.job
    if len(job.attempts) < 2 and not job.restart:
        return ""
    others = [str(one) for one in job.attempts if one != job.restart]
    return f"attempt {job.restart}" + (f" (--attempt shows {', '.join(others)})" if others else "")


def job_words(card: Card) -> list[str]:
    """Return the facts of the job as texts, to be joined by commas."""
    job = card.job
    words = [said_job(card), f"name {cut(job.name, _NAME_CHARS)}" if job.name else ""]
    words += [
        f"{name} {value}"
        for name in ("user", "account", "partition", "cluster")
        if (value := getattr(job, name))
    ]
    ended = f"{job.state} (exit code {job.exit_code})" if job.exit_code else job.state
    words.append(ended)
    if job.start_s is not None and job.end_s is not None:
        words.append(f"ran {elapsed(max(0.0, job.end_s - job.start_s))}")
    return [word for word in (*words, *_size_words(card), _attempt(card)) if word]


def node_words(card: Card) -> str:
    """Return the node lists; for a heterogeneous job, by component."""
    job = card.job
    lists = [f"{one.job_id}: {one.nodelist}" for one in job.components if one.nodelist]
    return "; ".join(lists or [job.nodelist]).replace(",", ", ")


def step_words(card: Card) -> str:
    """Return how the steps ended that did not end well, as text; empty: none is known."""
    told = [
        f"{one.step} {one.state}{f' ({one.words})' if one.words else ''}"
        for one in card.job.step_ends
    ]
    return "; ".join(told)


def environment_words(card: Card) -> str:
    """Return software and hardware of the job as text; empty: not known."""
    env = card.environment
    gpus = cut_list(env.gpu_models, 4)
    words = [f"NCCL {cut_list(env.nccl, 4)}" if env.nccl else ""]
    words += [f"plugin {cut_list(env.plugin_versions, 4)}" if env.plugin_versions else ""]
    if env.gpus:
        words.append(f"{number(env.gpus, 'GPU')}{f' ({gpus})' if gpus else ''}")
    words.append(cut_list(env.ports, 4))
    return ", ".join(word for word in words if word)


def data_words(card: Card) -> str:
    """Return how much of the job was measured, as text."""
    quality = card.data_quality
    ranks = number(quality.ranks_seen, "rank")
    if quality.ranks_expected is not None:
        ranks = f"{quality.ranks_seen:,} of {number(quality.ranks_expected, 'rank')}"
    timing, lost = _TIMING.get(quality.timing, "no times"), sum(quality.dropped.values())
    if quality.timing == NOT_TOLD and not lost:
        return f"{ranks}, {timing}"
    return f"{ranks}, {timing}, {number(lost, 'event')} not measured"


def placement_words(card: Card) -> str:
    """Return the placement that was asked for and given, as text; empty: neither is known."""
    job = card.job
    asked = [f"--switches={job.switches_asked}"] if job.switches_asked else []
    asked += [f"--segment={job.segment_asked}"] if job.segment_asked is not None else []
    used = f"on {cut_list(job.switches_used, 8)}" if job.switches_used else ""
    said = f"asked for {', '.join(asked)}" if asked else ""
    return ", ".join(word for word in (said, used) if word)


def _title(card: Card) -> Iterator[Item]:
    yield paragraph("NCCL JOB REPORT  ", ", ".join(job_words(card)), Paint.TITLE)


def _about(card: Card) -> Iterator[Item]:
    if nodes := node_words(card):
        yield paragraph("nodes  ", nodes if len(nodes) <= 300 else f"{nodes[:297]}...")
    if environment := environment_words(card):
        yield paragraph("ran with  ", environment)
    if steps := step_words(card):
        yield paragraph("steps  ", steps)
    yield paragraph("data  ", data_words(card))
    if sources := source_words(card):
        yield paragraph("sources  ", sources)
    if placement := placement_words(card):
        yield paragraph("placement  ", placement)


def besides_words(card: Card) -> str:
    """Return what is said beside the headline, as a sentence; empty: nothing.

    Of a healthy job waiting explains nothing: ranks that meet always wait, and if the work is
    uneven the verdict says so.
    """
    verdict = card.verdict
    if verdict.waiting_share is None or verdict.status == HEALTHY:
        return ""
    return f"{said_waiting(verdict.waiting_share)}."


def verdict_words(card: Card) -> str:
    """Return the verdict as one to three sentences, without the status."""
    return f"{what_happened(card)} {besides_words(card)}".strip()


def _verdict(card: Card) -> Iterator[Item]:
    verdict = card.verdict
    sure = f", {verdict.confidence} confidence" if verdict.confidence else ""
    text = f"{said_status(verdict)}{sure}: {verdict_words(card)}".removesuffix(": ")
    yield paragraph("VERDICT  ", text, _STATUS_PAINT.get(verdict.status, Paint.TITLE))


def finding_items(number_: int, one: Finding) -> Iterator[Item]:
    """Yield a finding as numbered paragraphs."""
    when = f"{from_to(one.period)}: " if one.period else ""
    first = f" {number_} {one.severity}  "
    text = f"{when}{one.title} ({one.confidence} confidence)"
    yield paragraph(first, text, _SEVERITY_PAINT.get(one.severity, Paint.PLAIN))
    margin = " " * len(first)
    if one.entities:
        who = cut_list(map(said_entity, one.entities), _ENTITIES_SHOWN)
        yield paragraph(f"{margin}who: ", who)
    if one.detail:
        yield paragraph(margin, one.detail)
    for evidence in one.evidence:
        yield paragraph(f"{margin}- ", said_evidence(evidence))
    for action in one.actions:
        yield paragraph(f"{margin}-> ", action)
    if one.victims:
        whom = cut_list((victim.name for victim in one.victims), _ENTITIES_SHOWN)
        yield paragraph(f"{margin}held up: ", whom)
    if one.next:
        yield paragraph(f"{margin}next: ", one.next)


def _findings(card: Card, limits: Limits) -> Iterator[Item]:
    if not card.findings:
        return
    yield paragraph("FINDINGS", "", Paint.TITLE)
    listed = worst_first(card.findings)
    for at, one in enumerate(listed[: limits.findings], 1):
        yield from finding_items(at, one)
    if len(listed) > limits.findings:
        yield bullet(limits.more(number(len(listed) - limits.findings, "finding")))
    ids = dict.fromkeys(one.rule for one in listed[: limits.findings] if one.rule in BY_ID)
    if ids:
        yield paragraph(" what this means: ", f"nccl-inspector explain {' '.join(ids)}", indent=3)


def _missing(card: Card, limits: Limits) -> Iterator[Item]:
    lines = missing_lines(card, limits)
    yield paragraph("MISSING" if lines else "MISSING  ", "" if lines else "nothing", Paint.TITLE)
    for text in lines:
        yield bullet(text)


def render_text(
    card: Card, everything: bool = False, colour: bool = False, columns: int = COLUMNS_MAX
) -> str:
    """Return the report; `everything`: no table is cut short.

    `columns`: how wide it may be.
    """
    limits = EVERYTHING if everything else TERMINAL
    blocks = (
        [*_title(card), *_verdict(card)],
        list(_about(card)),
        list(_findings(card, limits)),
        section(tables.communicators(card, limits)),
        section(tables.transports(card, limits)),
        draw_timeline(card, limits),
        section(tables.stragglers(card, limits)),
        section(tables.hangs(card, limits)),
        section(network(card, limits)),
        section(host_times(card, limits)),
        section(labels(card, limits)),
        section(tables.links(card, limits)),
        section(tables.baseline(card, limits)),
        list(_missing(card, limits)),
    )
    return join(blocks, columns, colour)
