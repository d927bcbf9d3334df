# SPDX-License-Identifier: Apache-2.0
"""Figures of a card as text: every number with its unit, `-` if it is not known."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from nccl_inspector.model.card import (
    INFO,
    SEVERITIES,
    Card,
    Entity,
    Evidence,
    Finding,
    Period,
    Verdict,
)
from nccl_inspector.model.hostlist import compress_within

UNKNOWN = "-"
NODES_CHARS = 300
_FIRM_SIZE_CLASS = 26  # from 64 MiB on, an expected bandwidth is meaningful
_DIGITS_MAX = 15
_PLURALS = frozenset({"nodes", "ranks", "operations", "events", "ticks"})
_TIMES = (("h", 3600e9), ("min", 60e9), ("s", 1e9), ("ms", 1e6), ("us", 1e3))
_SMALL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def digits(value: float, count: int = 3) -> str:
    """Return a number with `count` significant digits, or with all its digits before the point."""
    if not value or abs(value) >= 10**_DIGITS_MAX:
        return f"{value:.{count}g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, count - whole)}f}" if whole else f"{value:#.{count}g}"


def duration(ns: float) -> str:
    """Return a time with its unit, as `412 us`, `12.1 ms`, `6.33 min`."""
    for unit, size_ns in _TIMES:
        # Below two minutes or hours the smaller unit is used: 90 s, not 1.5 min.
        if abs(ns) >= size_ns * (2 if unit in ("h", "min") else 0.9995):
            return f"{digits(ns / size_ns)} {unit}"
    return f"{ns:.0f} ns"


def elapsed(seconds: float) -> str:
    """Return a longer time as `38 s`, `6 min 20 s`, `2 h 14 min` or `3 d 2 h`."""
    if seconds < 59.5:
        return duration(seconds * 1e9) if seconds < 10 else f"{seconds:.0f} s"
    total = round(seconds)
    for big, small, each in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if total >= each:
            rest = total % each // (each // 24 if big == "d" else each // 60)
            return f"{total // each} {big}" + (f" {rest} {small}" if rest else "")
    return f"{total} s"


def percent(share: float | None) -> str:
    """Return `28%`, with a decimal below 1%."""
    if share is None:
        return UNKNOWN
    value = share * 100
    if 0 < abs(value) < 0.05:
        return "<0.1%" if value > 0 else "-<0.1%"
    return f"{value:.1f}%" if 0 < abs(value) < 0.95 else f"{digits(round(value), 1)}%"


def change(delta: float | None) -> str:
    """Return `-28%`, `+0.4%`."""
    if delta is None:
        return UNKNOWN
    return percent(delta) if delta < 0 else f"+{percent(delta)}"


def compact(count: int) -> str:
    """Return a count in at most six characters, as `9999` or `41.2k`."""
    if count < 10_000:
        return str(count)
    for unit, size in _SMALL:
        if count >= 0.9995 * size:
            return f"{digits(count / size)}{unit}"
    return str(count)


def number(count: int, word: str) -> str:
    """Return `1 node`, `2 nodes`, `2 processes`."""
    plural = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count:,} {word}{plural}"


def volume(size_bytes: int) -> str:
    """Return `12.3 GB`; units are powers of 1000."""
    for unit, each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= each:
            return f"{digits(size_bytes / each, 3)} {unit}"
    return f"{size_bytes} B"


def bandwidth(gbs: float | None) -> str:
    """Return GB/s without the unit, which the table's head states."""
    return UNKNOWN if gbs is None else digits(gbs)


def amount(value: float, unit: str) -> str:
    """Return a value with its unit; a share in percent, ns and s in a suitable unit of time."""
    match unit:
        case "share":
            return percent(value)
        case "ns":
            return duration(value)
        case "s":
            return elapsed(value)
        case _:
            said = f"{value:.0f}" if float(value).is_integer() else digits(value)
            one_of = said == "1" and unit in _PLURALS
            return f"{said} {unit.removesuffix('s') if one_of else unit}".rstrip()


def expected(share: float | None, size_class: int) -> str:
    """Return the share of the expected bandwidth; in brackets if messages are too short for it."""
    if share is None:
        return UNKNOWN
    return percent(share) if size_class >= _FIRM_SIZE_CLASS else f"({percent(share)})"


def instant(unix_s: float) -> datetime | None:
    """Return a time in UTC; None: it is outside the calendar."""
    try:
        return datetime.fromtimestamp(unix_s, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def clock(unix_s: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in UTC, without the word UTC."""
    at = None if unix_s is None else instant(unix_s)
    return UNKNOWN if at is None else at.strftime(form)


def from_to(period: Period) -> str:
    """Return `2026-08-01 14:40:10 to 14:46:30 UTC`; the second date only if it differs."""
    first, last = clock(period.start_s), clock(period.end_s)
    if first == last:
        return f"{first} UTC"
    date, _, time = last.partition(" ")
    return f"{first} to {time if time and first.startswith(date) else last} UTC"


def cut_list(words: Iterable[str], shown: int) -> str:
    """Return the first `shown` items and how many more there are."""
    whole = list(words)
    more = f" and {len(whole) - shown:,} more" if len(whole) > shown else ""
    return ", ".join(whole[:shown]) + more


def node_list(nodes: Sequence[str], chars: int = NODES_CHARS) -> str:
    """Return Slurm's short form of the nodes within `chars`, and how many did not fit."""
    text, rest = compress_within(nodes, chars)
    said = text.replace(",", ", ") or f"{len(nodes):,} nodes"
    return f"{said} and {rest:,} more" if rest and text else said


def said_place(entity: Entity) -> str:
    """Return `n02 GPU7, pid 4711`: what is known of the place and not in the entity's name."""
    said = entity.name.split()
    hardware = (entity.gpu or entity.port) if entity.kind in ("rank", "gpu", "port") else ""
    place = " ".join(one for one in (entity.node, hardware) if one and one not in said)
    pci = entity.pci_bus_id if entity.kind == "gpu" else ""
    pid = f"pid {entity.pid}" if entity.kind == "rank" and entity.pid is not None else ""
    return ", ".join(one for one in (place, pci, pid) if one)


def said_entity(entity: Entity) -> str:
    """Return `node n13`, `rank 15 (n02 GPU7, pid 4711)`, `gpu n13 GPU1 (0000:65:00)`."""
    said = entity.kind in entity.name.split()  # as in `rank 15`, `rail 4`
    name = entity.name if said else f"{entity.kind} {entity.name}".strip()
    place = said_place(entity)
    return f"{name} ({place})" if place else name


def said_evidence(one: Evidence) -> str:
    """Return `bus bandwidth: 243 GB/s (compared with 338 GB/s; of 38; boxes)`."""
    about = (
        [f"compared with {amount(one.reference, one.unit)}"] if one.reference is not None else []
    )
    about += [f"of {one.count:,}"] if one.count else []
    return f"{one.metric}: {amount(one.value, one.unit)} ({'; '.join([*about, one.source])})"


def said_status(verdict: Verdict) -> str:
    """Return `DEGRADED (network)`."""
    return f"{verdict.status} ({verdict.cause})" if verdict.cause else verdict.status


def said_waiting(share: float) -> str:
    """Return what share of the time in collectives was waiting, and for what."""
    return (
        f"{percent(share)} of the ranks' time in collectives was waiting for the last rank to come"
    )


def said_cost(verdict: Verdict) -> str:
    """Return a sentence about the cost to the job; empty: no cost, or not known."""
    if not verdict.cost_s:
        return ""
    share = (
        f" ({percent(verdict.cost_share)} of its time)" if verdict.cost_share is not None else ""
    )
    return f"It cost the job about {elapsed(verdict.cost_s)}{share}."


def briefly_cost(verdict: Verdict) -> str:
    """Return `cost 33 s (0.4%)`; empty: no cost, or not known."""
    if not verdict.cost_s:
        return ""
    share = f" ({percent(verdict.cost_share)})" if verdict.cost_share is not None else ""
    return f"cost {elapsed(verdict.cost_s)}{share}"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by severity; findings of one severity keep their order."""
    return sorted(findings, key=lambda one: -SEVERITIES.index(one.severity))


def leading_finding(card: Card) -> Finding | None:
    """Return the finding that the verdict is about; None: it is about no finding."""
    summary = card.verdict.summary
    told = (one for one in card.findings if one.severity != INFO and one.title)
    if not summary:
        return None
    return next((one for one in told if one.title in summary or summary in one.title), None)


def said_who(card: Card) -> str:
    """Return whom the verdict is about, as `rank 2 (n2 GPU0) and 1 more`; empty: nobody."""
    finding = leading_finding(card)
    kinds = "rank", "node", "gpu", "port", "pair", "rail"
    who = [one for one in finding.entities if one.kind in kinds] if finding else []
    # A GPU or a port beside a rank or a node only says where that is.
    of_one_kind = [one for one in who if one.kind == who[0].kind]
    if not of_one_kind:
        return ""
    more = f" and {len(of_one_kind) - 1:,} more" if len(of_one_kind) > 1 else ""
    return said_entity(replace(of_one_kind[0], pid=None)) + more


def said_job(card: Card) -> str:
    """Return `job 48213 (array task 810_3)`, or the components of a heterogeneous job.

    A number that does not come from Slurm is not called a job.
    """
    job = card.job
    said = f"job {job.job_id}"
    if not job.by_slurm:
        said = f"run of process {job.job_id}" if job.job_id else "job without a number"
    if job.array_task:
        said += f" (array task {job.array_task})"
    if job.het_components:
        word = "component" if len(job.het_components) == 1 else "components"
        said += f" (het: {word} {cut_list(map(str, job.het_components), 8)})"
    return said
