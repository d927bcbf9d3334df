# SPDX-License-Identifier: Apache-2.0
"""Combine the answers of a Prometheus into the kinds of operation of a report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.card import Operations, Series
from nccl_inspector.model.kind_labels import LabelledKind, kind_of
from nccl_inspector.prometheus.api import PromTrack
from nccl_inspector.prometheus.past_queries import JobQuestions
from nccl_inspector.render.cards_of_means import longest_first, operations


@dataclass
class KindWindows:
    """The figures of one kind of operation, by the number of the window."""

    time_ns: dict[int, float] = field(default_factory=dict)
    bus_gbs: dict[int, float] = field(default_factory=dict)
    operations: dict[int, float] = field(default_factory=dict)
    size_bytes: dict[int, float] = field(default_factory=dict)
    count: int | None = None  # operations of the busiest rank in the whole job


@dataclass
class FoundKinds:
    """All kinds of operation, and how many parts of the answers were refused, by reason."""

    start_s: int
    window_s: int
    windows: int
    refused: Counter[str]
    kinds: dict[LabelledKind, KindWindows] = field(default_factory=dict)

    def put(self, tracks: Iterable[PromTrack], family: str, what: str, scale: float = 1.0) -> None:
        """Note a figure for each window; a point belongs to the window that ends at its time."""
        for track in tracks:
            kind = kind_of(track.labels, JobQuestions.func(family))
            if kind is None:
                self.refused["odd_labels"] += 1
                continue
            figures = getattr(self.kinds.setdefault(kind, KindWindows()), what)
            for at_s, value in track.points:
                number = round((at_s - self.start_s) / self.window_s) - 1
                if not 0 <= number < self.windows or not 0 <= value * scale < 1e18:
                    self.refused["implausible"] += 1
                elif value > 0:
                    figures[number] = value * scale

    def finish(self) -> None:
        """Calculate the bandwidth of each window whose size and time are known."""
        for kind, own in self.kinds.items():
            factor = bus_factor(kind.func, kind.comm.nranks)
            for number, size in own.size_bytes.items():
                if factor and number in own.time_ns:
                    own.bus_gbs[number] = size * factor / own.time_ns[number]


def _weighted(figures: Mapping[int, float], weights: Mapping[int, float]) -> float | None:
    pairs = [(value, weights.get(number, 1.0)) for number, value in figures.items()]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def operations_of(found: FoundKinds) -> tuple[Operations, ...]:
    """Return the kinds as rows of the card, the one that took longest first."""
    rows = []
    for kind, own in found.kinds.items():
        time_ns = _weighted(own.time_ns, own.operations)
        if time_ns is None:
            continue
        bus_gbs = _weighted(own.bus_gbs, own.operations)
        rows.append(operations(kind, time_ns, bus_gbs, own.count))
    return longest_first(rows)


def series_of(found: FoundKinds, most: int) -> tuple[Series, ...]:
    """Return at most `most` lines of the time line, the busiest first."""

    def busy(item: tuple[LabelledKind, KindWindows]) -> float:
        own = item[1]
        return -sum(ns * own.operations.get(at, 1.0) for at, ns in own.time_ns.items())

    numbers = range(found.windows)
    return tuple(
        Series(
            kind.comm.transport, kind.comm.shown, kind.func, kind.size_class,
            tuple(own.bus_gbs.get(at) for at in numbers),
            tuple(round(own.operations.get(at, 0.0)) for at in numbers),
        )
        for kind, own in sorted(found.kinds.items(), key=busy)[:most]
        if own.bus_gbs
    )  # fmt: skip
