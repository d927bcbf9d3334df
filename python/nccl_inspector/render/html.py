# SPDX-License-Identifier: Apache-2.0
"""A card as one self-contained page: no script, no other file, no network.

In every text that a template prints, control characters become `?`; then it is escaped.
"""

from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nccl_inspector import __version__
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CRASHED,
    CRITICAL,
    DEGRADED,
    FAILED,
    HEALTHY,
    HUNG,
    PERHAPS_HUNG,
    WARNING,
    Card,
    Finding,
)
from nccl_inspector.model.headline import headline
from nccl_inspector.model.table_columns import cut
from nccl_inspector.model.wording import (
    clock,
    cut_list,
    from_to,
    said_entity,
    said_evidence,
    said_job,
    said_status,
    worst_first,
)
from nccl_inspector.render import charts, tables
from nccl_inspector.render.hosts import host_times
from nccl_inspector.render.labels import labels
from nccl_inspector.render.missing import missing_lines, source_words
from nccl_inspector.render.network_table import network
from nccl_inspector.render.output_limits import PAGE
from nccl_inspector.render.text import (
    besides_words,
    data_words,
    environment_words,
    job_words,
    node_words,
    placement_words,
)
from nccl_inspector.render.timeline_text import slow_lines
from nccl_inspector.system.printable import visible

_TEXT_CHARS_MAX = 2000  # of one text: a user's must not fill the page
_LOOKS = {
    HEALTHY: "good",
    DEGRADED: "warning",
    PERHAPS_HUNG: "warning",
    HUNG: "critical",
    CRASHED: "critical",
    FAILED: "critical",
}
_SEVERITIES = {CRITICAL: "critical", WARNING: "warning"}


def _shown(value: object) -> object:
    """Return what a template prints; the result of a macro is safe already."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(cut(value, _TEXT_CHARS_MAX))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("nccl_inspector.render"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finding(one: Finding) -> dict[str, Any]:
    rule = rules.BY_ID.get(one.rule)  # None: the card is of a later release
    return {
        "look": _SEVERITIES.get(one.severity, "info"),
        "title": one.title,
        "confidence": one.confidence,
        "when": from_to(one.period) if one.period else "",
        "who": cut_list(map(said_entity, one.entities), PAGE.names),
        "detail": one.detail,
        "evidence": [said_evidence(evidence) for evidence in one.evidence],
        "actions": one.actions,
        "victims": cut_list((victim.name for victim in one.victims), PAGE.names),
        "next": one.next,
        "meaning": rule.meaning.replace("`", "") if rule else "",
    }


def _facts(card: Card) -> list[tuple[str, str]]:
    nodes = cut(node_words(card), PAGE.node_chars)
    facts = [
        ("job", ", ".join(job_words(card)[1:])),
        ("nodes", nodes),
        ("ran with", environment_words(card)),
        ("data", data_words(card)),
        ("sources", source_words(card)),
        ("placement", placement_words(card)),
    ]
    return [fact for fact in facts if fact[1]]


def _view(card: Card, generated: datetime) -> dict[str, Any]:
    sections = (
        tables.communicators, tables.transports, tables.stragglers, tables.hangs, network,
        host_times, labels, tables.links, tables.baseline,
    )  # fmt: skip
    grids = [make(card, PAGE) for make in sections]
    return {
        "job": said_job(card),
        "status": said_status(card.verdict),
        "confidence": card.verdict.confidence,
        "look": _LOOKS.get(card.verdict.status, "info"),
        "headline": headline(card),
        "besides": besides_words(card),
        "facts": _facts(card),
        "findings": [_finding(one) for one in worst_first(card.findings)[: PAGE.findings]],
        "findings_left": len(card.findings) - PAGE.findings,
        "plots": charts.plots(card, PAGE),
        "ticks": charts.ticks(card.timeline),
        "length": charts.length_words(card),
        "too_short": card.timeline.too_short,
        "slow": list(slow_lines(card, PAGE)),
        "heat": charts.heat_map(card),
        "waiting": charts.waiting_bars(card),
        "bandwidth": charts.bandwidth_bars(card),
        "grids": [(one, tables.used_columns(one)) for one in grids if one.rows or one.lines],
        "missing": missing_lines(card, PAGE),
        "more": PAGE.more,
        "generated": f"{clock(generated.timestamp())} UTC",
        "version": __version__,
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
    }


def render_html(card: Card, generated: datetime) -> str:
    """Return the page; `generated`: the time, with a time zone."""
    page = _environment().get_template("report.html.j2").render(_view(card, generated))
    # A name may have an unpaired surrogate (JSON allows it), which no encoding can represent.
    return page.encode("utf-8", "replace").decode("utf-8")
