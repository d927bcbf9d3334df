# SPDX-License-Identifier: Apache-2.0
"""Counters of links and GPUs as text; nothing is judged here."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from nccl_inspector.counters.counter_record import THERE, YES
from nccl_inspector.counters.counter_table import CounterSpec
from nccl_inspector.counters.delta import RESET, STUCK
from nccl_inspector.counters.node_counters import Count, DeviceCounters, Span

_FLAGS = {
    RESET: "at least: it was set back",
    STUCK: "at least: it counts no further",
}


@dataclass(frozen=True, slots=True)
class State:
    """Something about a device that changed, or that is bad by itself.

    `delta` with its unit: by how much it changed, or how often.
    """

    name: str
    words: str
    delta: float
    unit: str


@lru_cache(maxsize=4096)  # a large job has thousands of rises, at the times of few samples
def clock(time_s: int) -> str:
    """Return date and time, UTC."""
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _from_to(from_s: int, to_s: int) -> str:
    """Return a time span; the second date only if it differs."""
    first, last = clock(from_s), clock(to_s)
    date, _, time_of_day = last.partition(" ")
    if first.startswith(date):
        last = time_of_day
    return f"{first.removesuffix(' UTC')} to {last}"


def share_of_time(counter: CounterSpec, total: int, elapsed_s: int) -> float | None:
    """Return the share of the time that a counter of time stands for; None: the time is not known.

    It is at most 1: the counter is read a little after the clock, so it may have counted a little
    longer than the time between the readings of the clock.
    """
    return min(1.0, counter.said(total) / 1e9 / elapsed_s) if elapsed_s else None


def _amount(counter: CounterSpec, count: Count, elapsed_s: int) -> str:
    if counter.said_unit != "ns":
        return f"{counter.name} {counter.said(count.total)}"
    seconds = counter.said(count.total) / 1e9
    held = share_of_time(counter, count.total, elapsed_s)
    share = f" ({held:.1%} of the time)" if held is not None else ""
    return f"clocks held by {counter.name} for {seconds:.3g} s{share}"


def count_words(counter: CounterSpec, count: Count, elapsed_s: int) -> str:
    """Return a counter's rise and when it was, as text; `elapsed_s`: how long it was sampled."""
    words = _amount(counter, count, elapsed_s)
    if count.risen:
        words += f" ({_from_to(count.risen[0].from_s, count.risen[-1].to_s)})"
    said = [_FLAGS[flag] for flag in count.flags if flag in _FLAGS]
    return f"{words} ({'; '.join(said)})" if said else words


def states_of(device: DeviceCounters) -> Iterator[State]:
    """Yield what changed about a device, or is bad by itself."""
    for name, changes in device.facts.items():
        if len(changes) > 1:
            last = changes[-1]
            was = " -> ".join(change.text for change in changes)
            if name == THERE:
                was = "it was gone, and came back" if last.text == YES else "it is gone"
            words = f"{was if name == THERE else f'{name} {was}'} ({clock(last.time_s)})"
            yield State(name, words, len(changes) - 1, "changes")
    active = device.levels.get("nvlinks_active")
    if active and active.low < active.high:
        words = f"NVLinks that were up: {active.low} to {active.high}"
        yield State("nvlinks_active", words, active.low - active.high, "links")
    for name in ("row_remap_pending", "row_remap_failed"):
        level = device.levels.get(name)
        if level and level.high:
            yield State(name, name.replace("_", " "), level.high, "flag")
    for name in ("pcie_width", "pcie_generation"):
        now, most = device.levels.get(name), device.levels.get(f"{name}_max")
        # The highest value seen, because an idle GPU lowers its link.
        if now and most and now.high < most.low:
            unit = "lanes" if name == "pcie_width" else "generations"
            yield State(name, f"{name} {now.high} of {most.low}", now.high - most.low, unit)


def xid_words(number: int, times: Sequence[int]) -> str:
    """Return an XID and when it was seen, as text; `times` are Unix seconds."""
    if len(times) == 1:
        return f"XID {number} at {clock(times[0])}"
    return f"XID {number}, {len(times)} times ({_from_to(min(times), max(times))})"


def elapsed_of(spans: Iterable[Span], kind: str) -> int:
    """Return for how many seconds devices of a kind were sampled; 0: not known."""
    source = {"port": "infiniband", "node": "pressure"}.get(kind, "gpu")
    return next((span.elapsed_s for span in spans if span.source == source), 0)


def device_name(device: DeviceCounters) -> str:
    """Return `GPU0 NVLink 17` for GPU0/17."""
    return device.name.replace("/", " NVLink ") if device.kind == "nvlink" else device.name
