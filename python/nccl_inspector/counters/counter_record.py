# SPDX-License-Identifier: Apache-2.0
"""Fold the samples of one job into a record, whose size is bounded however long the job runs.

The record is the file `jobs/<id>/counters`. It has what the report gets and the last readings, so
that an agent that is restarted can go on where the last one stopped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from nccl_inspector.counters.counter_table import CounterSpec, load_counters
from nccl_inspector.counters.delta import Rise, rise
from nccl_inspector.counters.node_counters import (
    CHECKS,
    Change,
    Count,
    DeviceCounters,
    Level,
    NodeCounters,
    Risen,
    Span,
    XidSeen,
    from_json,
    to_json,
)
from nccl_inspector.counters.sample import Device, Sample
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.checked_json import TEXT_CHARS_MAX, dump

FORMAT = 1
RECORD_BYTES_MAX = 2 << 20  # enough for DEVICES_MAX devices with all their counters
RISEN_MAX = 16
CHANGES_MAX = 8
XIDS_MAX = 64
PROBLEMS_MAX = 16
DEVICES_MAX = 256

# A fact of every device: whether its source still has it.
THERE, YES, NO = "there", "yes", "no"

_SOURCE_KINDS = {"infiniband": ("port",), "gpu": ("gpu", "nvlink"), "pressure": ("node",)}
_Key = tuple[str, str]  # kind and name of a device


def merge_risen(risen: list[Risen], most: int) -> list[Risen]:
    """Return at most `most` rises: the two neighbours that together last shortest are merged."""
    if not most:
        return []
    while len(risen) > most:
        at = min(range(len(risen) - 1), key=lambda i: risen[i + 1].to_s - risen[i].from_s)
        one, other = risen[at : at + 2]
        risen[at : at + 2] = [Risen(one.from_s, other.to_s, one.amount + other.amount)]
    return risen


def _risen(counter: CounterSpec, count: Count, from_s: int, to_s: int, found: Rise) -> Count:
    amount, flag = found.amount, found.flag
    flags = count.flags if not flag or flag in count.flags else (*count.flags, flag)
    if not amount:
        return count._replace(flags=flags)
    if not counter.dated:
        return Count(count.total + amount, flags)
    rows = merge_risen([*count.risen, Risen(from_s, to_s, amount)], RISEN_MAX)
    return Count(count.total + amount, flags, tuple(rows))


def _level(level: Level | None, value: int) -> Level:
    if level is None:
        return Level(value, value, value, 1)
    return Level(
        min(level.low, value), max(level.high, value), level.sum + value, level.samples + 1
    )


def _change(changes: tuple[Change, ...], time_s: int, text: str) -> tuple[Change, ...]:
    """Return the changes with this text added; of too many, the first and the last stay."""
    text = text[:TEXT_CHARS_MAX]
    if changes and changes[-1].text == text:
        return changes
    kept = changes if len(changes) < CHANGES_MAX else changes[: CHANGES_MAX - 1]
    return (*kept, Change(time_s, text))


class CounterRecord:
    """The counters of one job on this node, from the first sample to the last."""

    def __init__(self, whole_node: bool = True) -> None:
        """Make an empty record; `whole_node`: it is not known which GPUs are the job's."""
        self._spans: dict[str, Span] = {}
        self._devices: dict[_Key, DeviceCounters] = {}
        self._last: dict[_Key, dict[str, int]] = {}
        self._last_s: dict[str, int] = {}  # by source, Unix
        self._first_boot_s: dict[str, float] = {}  # by source
        self._xids: list[XidSeen] = []
        self._problems: dict[str, None] = {}
        self.whole_node = whole_node
        self.kernel_log_next = 0  # sequence number of the first record not yet read

    def add(self, sample: Sample) -> None:
        """Fold in a sample; its devices must be the job's only."""
        time_s = max(0, int(sample.time_s))
        span = self._spans.get(sample.source)
        absent = "" if sample.devices else sample.absent[:TEXT_CHARS_MAX]
        if span and not span.absent and absent:
            self.note(f"{sample.source}: {absent}, since {time_s}")
            absent = ""
        first_boot_s = self._first_boot_s.setdefault(sample.source, sample.boot_s)
        self._spans[sample.source] = Span(
            sample.source,
            span.first_s if span else time_s,
            time_s,
            max(0, round(sample.boot_s - first_boot_s)),
            span.samples + 1 if span else 1,
            absent,
        )
        for problem in sample.problems:
            self.note(problem)
        from_s = self._last_s.get(sample.source, time_s)
        for device in sample.devices:
            self._fold(device, from_s, time_s)
        self._note_gone(sample, time_s)
        self._last_s[sample.source] = time_s

    def add_xids(self, xids: Iterable[XidSeen]) -> None:
        """Keep errors of GPUs, at most the first XIDS_MAX."""
        for xid in xids:
            if len(self._xids) < XIDS_MAX:
                self._xids.append(xid)
            else:
                self.note(f"more than {XIDS_MAX} XIDs, the rest is left out")

    def note(self, problem: str) -> None:
        """Keep a line about something that could not be read."""
        if len(self._problems) < PROBLEMS_MAX:
            self._problems[problem[:TEXT_CHARS_MAX]] = None

    def counters(self) -> NodeCounters:
        """Return the part that the report gets."""
        return NodeCounters(
            tuple(self._spans.values()),
            tuple(self._devices.values()),
            tuple(self._xids),
            tuple(self._problems),
            whole_node=self.whole_node,
        )

    def _fold(self, device: Device, from_s: int, to_s: int) -> None:
        key = device.kind, device.name
        known = self._devices.get(key)
        if known is None:
            if len(self._devices) >= DEVICES_MAX:
                self.note(f"more than {DEVICES_MAX} ports, GPUs and links, the rest is left out")
                return
            known = DeviceCounters(device.kind, device.name, {}, {}, {})
        counts, last = dict(known.counts), self._last.setdefault(key, {})
        for name, value in device.counters.items():
            counts.setdefault(name, Count(0))
            if name in last:
                counter = load_counters()[device.kind, name]
                found = rise(counter, last[name], value)
                counts[name] = _risen(counter, counts[name], from_s, to_s, found)
            last[name] = value
        levels = {**known.levels}
        for name, value in device.levels.items():
            levels[name] = _level(levels.get(name), value)
        facts = {**known.facts}
        for name, text in {**device.facts, THERE: YES}.items():
            facts[name] = _change(facts.get(name, ()), to_s, text)
        self._devices[key] = DeviceCounters(device.kind, device.name, counts, levels, facts)

    def _note_gone(self, sample: Sample, time_s: int) -> None:
        """Note devices that the source had before and does not have now."""
        here = {(one.kind, one.name) for one in sample.devices}
        for key, known in list(self._devices.items()):
            if key[0] in _SOURCE_KINDS[sample.source] and key not in here:
                changes = _change(known.facts.get(THERE, ()), time_s, NO)
                self._devices[key] = replace(known, facts={**known.facts, THERE: changes})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the record from the bytes of `encode`.

        Raises:
            RefusedError: it is of another release, or damaged; the reason is `bad_counters`.
        """
        value = CHECKS.load(data)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise RefusedError("bad_counters", "another format")
        try:
            node = from_json(value["counters"])
            record = cls(node.whole_node)
            record._last = {(kind, name): dict(last) for kind, name, last in value["last"]}
            record._last_s = dict(value["last_s"])
            record._first_boot_s = dict(value["first_boot_s"])
            record.kernel_log_next = int(value["kernel_log_next"])
        except (KeyError, TypeError, ValueError, OverflowError) as err:
            raise RefusedError("bad_counters", "damaged") from err
        record._spans = {one.source: one for one in node.spans}
        record._devices = {(one.kind, one.name): one for one in node.devices}
        record._xids = list(node.xids)
        record._problems = dict.fromkeys(node.problems)
        return record

    def encode(self) -> bytes:
        """Return the bytes of the file; if they are too many, rises are merged."""
        for most in (RISEN_MAX, 4, 1, 0):
            data = dump(self._value(most))
            if len(data) <= RECORD_BYTES_MAX:
                break
        return data

    def _value(self, most: int) -> Any:
        return {
            "format": FORMAT,
            "counters": to_json(coarser(self.counters(), most)),
            "last": [[*key, values] for key, values in self._last.items()],
            "last_s": self._last_s,
            "first_boot_s": self._first_boot_s,
            "kernel_log_next": self.kernel_log_next,
        }


def coarser(node: NodeCounters, most: int) -> NodeCounters:
    """Return the counters with at most `most` rises of each counter."""

    def cut(counts: Mapping[str, Count]) -> dict[str, Count]:
        return {
            name: one._replace(risen=tuple(merge_risen(list(one.risen), most)))
            for name, one in counts.items()
        }

    if most >= RISEN_MAX:
        return node
    return replace(node, devices=tuple(replace(d, counts=cut(d.counts)) for d in node.devices))
