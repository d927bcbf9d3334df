# SPDX-License-Identifier: Apache-2.0
"""What the counters of links and GPUs say while a job ran, in words; nothing is judged here."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nccl_inspector.counters.delta import RESET, STUCK
from nccl_inspector.counters.model import Count, DeviceCounters, NodeCounters, Span
from nccl_inspector.counters.record import THERE, YES
from nccl_inspector.counters.table import Counter, load_counters
from nccl_inspector.summary import Head, NodeSummary

# Samples are a minute apart: so much later than the job, or earlier, is worth a word.
EDGE_S = 90

_FLAGS = {
    RESET: "at least: it was set back",
    STUCK: "at least: it counts no further",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A device of a node and what is to be said of it."""

    node: str
    device: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Links:
    """All nodes of a report together."""

    sampled: int  # nodes
    rows: tuple[Row, ...]
    absent: dict[str, tuple[str, ...]]  # nodes by why they have none, or none of a source
    problems: tuple[str, ...]


def clock(time_s: int) -> str:
    """Return a time of day with its date, UTC."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _from_to(from_s: int, to_s: int) -> str:
    """Return a time span, the date once where it is one."""
    first, last = clock(from_s), clock(to_s)
    date, _, time_of_day = last.partition(" ")
    if first.startswith(date):
        last = time_of_day
    return f"{first.removesuffix(' UTC')} to {last}"


def _amount(counter: Counter, count: Count, elapsed_s: int) -> str:
    if counter.said_unit != "ns":
        return f"{counter.name} {counter.said(count.total)}"
    seconds = counter.said(count.total) / 1e9
    share = f" ({seconds / elapsed_s:.1%} of the time)" if elapsed_s else ""
    return f"clocks held by {counter.name} for {seconds:.3g} s{share}"


def count_words(counter: Counter, count: Count, elapsed_s: int) -> str:
    """Return a counter's rise and when it was; `elapsed_s`: how long it was looked at."""
    words = _amount(counter, count, elapsed_s)
    if count.risen:
        words += f" ({_from_to(count.risen[0].from_s, count.risen[-1].to_s)})"
    said = [_FLAGS[flag] for flag in count.flags if flag in _FLAGS]
    return f"{words} ({'; '.join(said)})" if said else words


def _words(device: DeviceCounters, elapsed_s: int) -> Iterator[str]:
    for name, count in device.counts.items():
        counter = load_counters().get((device.kind, name))
        # A reset alone is no event; one that counts no further may hide some.
        if counter and counter.told and (count.total or STUCK in count.flags):
            yield count_words(counter, count, elapsed_s)
    for _, words in states_of(device):
        yield words


def states_of(device: DeviceCounters) -> Iterator[tuple[str, str]]:
    """Return what changed about a device or is bad by itself: its name and the words."""
    for name, changes in device.facts.items():
        if len(changes) > 1:
            last = changes[-1]
            was = " -> ".join(change.text for change in changes)
            if name == THERE:
                was = "it was gone, and came back" if last.text == YES else "it is gone"
            yield name, f"{was if name == THERE else f'{name} {was}'} ({clock(last.time_s)})"
    active = device.levels.get("nvlinks_active")
    if active and active.low < active.high:
        yield "nvlinks_active", f"NVLinks that were up: {active.low} to {active.high}"
    for name in ("row_remap_pending", "row_remap_failed"):
        level = device.levels.get(name)
        if level and level.high:
            yield name, name.replace("_", " ")


def elapsed_of(spans: Iterable[Span], kind: str) -> int:
    """Return how long (s) devices of a kind were looked at; 0: not known."""
    source = {"port": "infiniband", "node": "pressure"}.get(kind, "gpu")
    return next((span.elapsed_s for span in spans if span.source == source), 0)


def device_name(device: DeviceCounters) -> str:
    """Return `GPU0 NVLink 17` for GPU0/17."""
    return device.name.replace("/", " NVLink ") if device.kind == "nvlink" else device.name


def _rows(node: str, counters: NodeCounters) -> Iterator[Row]:
    for device in counters.devices:
        words = tuple(_words(device, elapsed_of(counters.spans, device.kind)))
        if words:
            yield Row(node, device_name(device), words)
    for xid in counters.xids:
        yield Row(node, xid.gpu, (f"XID {xid.number} at {clock(xid.time_s)}",))


def _edges(head: Head, counters: NodeCounters) -> Iterator[str]:
    """Return what part of the job was not sampled."""
    spans = [span for span in counters.spans if not span.absent]
    if not spans:
        return
    late_s = min(span.first_s for span in spans) - head.start
    if late_s > EDGE_S:
        yield f"{head.node}: counters from {late_s} s after the job's start on"
    early_s = head.end - max(span.last_s for span in spans)
    if early_s > EDGE_S:
        yield f"{head.node}: counters until {early_s} s before the job's end"


def find_links(summaries: Sequence[NodeSummary]) -> Links | None:
    """Return what there is to say; None: no summary has counters or says why it has not."""
    rows: list[Row] = []
    absent: dict[str, list[str]] = defaultdict(list)
    problems: list[str] = []
    sampled = 0
    for summary in summaries:
        head, counters = summary.head, summary.counters
        if counters is None:
            continue
        if counters.absent:
            absent[counters.absent].append(head.node)
            continue
        sampled += 1
        rows += _rows(head.node, counters)
        for span in counters.spans:
            if span.absent:
                absent[span.absent].append(head.node)
        problems += _edges(head, counters)
        problems += [f"{head.node}: {problem}" for problem in counters.problems]
    if not sampled and not absent:
        return None
    nodes = {why: tuple(names) for why, names in absent.items()}
    return Links(sampled, tuple(rows), nodes, tuple(problems))
