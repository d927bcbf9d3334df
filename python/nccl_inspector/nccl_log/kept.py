# SPDX-License-Identifier: Apache-2.0
"""What is kept of a log while it is read: for each rule its first lines, and who wrote how many.

Memory is bounded by the number of processes, of rules and of what is kept for each of these.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from nccl_inspector.model.card import Severity
from nccl_inspector.nccl_log.catalogue import LogRule, Role, shape_of, words_shape
from nccl_inspector.nccl_log.process_log import ProcessLog
from nccl_inspector.nccl_log.record import Record
from nccl_inspector.nccl_log.torch_lines import Desync, Operation, TorchGroup, WorkCounts

QUOTES_MAX: Final = 16  # lines that are kept of each rule
_FIRSTS_MAX = 1 << 18  # of all rules: who wrote something that a rule fits
_QUOTED_BYTES_MAX = 400
_GROUPS_MAX = 64  # of texts of one level that no rule knows


@dataclass(frozen=True, slots=True)
class Quote:
    """A line that a rule fits; `order` counts over all that was read, `place` is `file:line`."""

    record: Record
    process: int
    order: int
    place: str


@dataclass(slots=True)
class Hits:
    """All lines that one rule fits: the first ones, and who wrote how many.

    Of lines whose level alone says something, those of one shape.
    """

    rule: LogRule
    quotes: list[Quote] = field(default_factory=list)
    first: dict[int, tuple[float | None, int]] = field(default_factory=dict)  # time, order
    earliest: Quote | None = None  # by time; None: no line has one
    count: int = 0
    shapes: set[bytes] = field(default_factory=set)  # of its texts, if it is about settings
    texts: dict[bytes, None] = field(default_factory=dict)  # the first different ones
    severity: Severity | None = None  # None: that of the rule
    code: int = 0  # NCCL's result of the calls that failed after it; 0: none is known to have
    whom: set[str] = field(default_factory=set)  # others that the lines are about, as text

    @property
    def grave(self) -> Severity:
        """How severe it is here."""
        return self.severity or self.rule.severity


@dataclass(slots=True)
class Log:
    """Everything that was read."""

    processes: list[ProcessLog] = field(default_factory=list)
    hits: dict[str, Hits] = field(default_factory=dict)
    work: dict[tuple[int, str], tuple[TorchGroup, WorkCounts]] = field(default_factory=dict)
    # By process and number; None: the process wrote of two of that number, in two groups.
    operations: dict[tuple[int, int], Operation | None] = field(default_factory=dict)
    desyncs: dict[Desync, tuple[TorchGroup | None, int]] = field(default_factory=dict)  # and writer
    bytes: int = 0
    files: int = 0
    lines: int = 0  # of NCCL and PyTorch
    ways: Counter[str] = field(default_factory=Counter)  # the usual ways of channels, of all
    loud: int = 0  # of them warnings and errors
    cut: int = 0  # of them cut by NCCL
    skipped: Counter[str] = field(default_factory=Counter)  # what was not looked at, by reason
    notes: list[str] = field(default_factory=list)  # files that could not be read
    # Lines at the ends of files that tell of an error and that no rule knows: the first, and all.
    unread: list[str] = field(default_factory=list)  # file:line: text
    unread_count: int = 0


class Keeper:
    """Puts lines that rules fit into a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._firsts = 0
        self._groups: Counter[str] = Counter()  # by rule

    @staticmethod
    def counts_only(hits: Hits, number: int, time_s: float | None) -> bool:
        """Count a line like others of the process before it; False: it may have to be kept."""
        if number not in hits.first or hits.rule.role is Role.SETTING:
            return False
        if len(hits.texts) < QUOTES_MAX and hits.rule.known == "level":
            return False
        earliest = hits.earliest.record.time_s if hits.earliest else None
        if time_s is not None and (earliest is None or time_s < earliest):
            return False
        hits.count += 1
        return True

    def key(self, rule: LogRule, message: bytes) -> str:
        """Return what its lines are collected under: the rule, or of a level the shape, too."""
        if rule.known != "level":
            return rule.id
        key = f"{rule.id} {words_shape(message).decode('utf-8', 'replace')}"
        if key not in self.log.hits:
            if self._groups[rule.id] >= _GROUPS_MAX:
                return rule.id
            self._groups[rule.id] += 1
        return key

    def keep(
        self, rule: LogRule, number: int, record: Record, order: int, place: str, key: str
    ) -> Hits:
        """Keep a line, or only count it; `key` is what `key` returns."""
        hits = self.log.hits.get(key)
        if hits is None:
            hits = self.log.hits[key] = Hits(rule)
        hits.count += 1
        new = number not in hits.first and self._firsts < _FIRSTS_MAX
        if new:
            self._firsts += 1
            hits.first[number] = record.time_s, order
        if len(hits.texts) < QUOTES_MAX:
            hits.texts.setdefault(record.message[:_QUOTED_BYTES_MAX])
        earlier = record.time_s is not None and (
            hits.earliest is None
            or hits.earliest.record.time_s is None
            or record.time_s < hits.earliest.record.time_s
        )
        kept = len(hits.quotes) < QUOTES_MAX and (new or self._is_other_setting(hits, record))
        if earlier or kept:
            quote = Quote(_short(record), number, order, place)
            if earlier:
                hits.earliest = quote
            if kept:
                hits.quotes.append(quote)
        return hits

    @staticmethod
    def _is_other_setting(hits: Hits, record: Record) -> bool:
        """Tell whether the text is of another variable or adapter than those before."""
        if hits.rule.role is not Role.SETTING:
            return False
        shape = shape_of(record.message)
        if shape in hits.shapes:
            return False
        hits.shapes.add(shape)
        return True


def _short(record: Record) -> Record:
    return replace(record, message=record.message[:_QUOTED_BYTES_MAX])
