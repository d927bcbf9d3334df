# SPDX-License-Identifier: Apache-2.0
"""What the counters of a node did while a job ran, as the report gets it, and its JSON form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nccl_inspector.system.checked_json import Checks

_WORD_MAX = 1 << 80  # 64-bit counters, and room for sums of them
CHECKS = Checks("bad_counters")
_time, _str, _list, _dict = CHECKS.time, CHECKS.text, CHECKS.rows, CHECKS.table


class Risen(NamedTuple):
    """An amount by which a counter rose between two samples; times are Unix seconds."""

    from_s: int
    to_s: int
    amount: int


class Change(NamedTuple):
    """A text and since when it holds (Unix seconds)."""

    time_s: int
    text: str


@dataclass(frozen=True, slots=True)
class Count:
    """A counter over the job; amounts are in the unit of counters.tsv."""

    total: int
    flags: tuple[str, ...] = ()  # of delta.py: then `total` is the least possible amount
    risen: tuple[Risen, ...] = ()  # in order; neighbours are merged when there are many


@dataclass(frozen=True, slots=True)
class Level:
    """The readings of a quantity that goes up and down; the mean is sum / samples."""

    low: int
    high: int
    sum: int
    samples: int


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """A port, GPU, NVLink or the node; a counter that is not in `counts` could not be read."""

    kind: str
    name: str
    counts: Mapping[str, Count]
    levels: Mapping[str, Level]
    facts: Mapping[str, tuple[Change, ...]]  # the first value and each change


@dataclass(frozen=True, slots=True)
class Span:
    """The time over which a source was sampled (Unix seconds); `absent` says why it has no data.

    `elapsed_s` is measured by a clock that nobody can set.
    """

    source: str
    first_s: int
    last_s: int
    elapsed_s: int
    samples: int
    absent: str


@dataclass(frozen=True, slots=True)
class XidSeen:
    """An error of a GPU with the driver's number; `gpu` is a PCI address if its name is unknown."""

    time_s: int
    gpu: str
    number: int


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """All counters of a node; `absent` says, as text, why there are none."""

    spans: tuple[Span, ...] = ()
    devices: tuple[DeviceCounters, ...] = ()
    xids: tuple[XidSeen, ...] = ()
    problems: tuple[str, ...] = ()
    absent: str = ""
    whole_node: bool = True  # True: all GPUs of the node, because the job's own are not known


def _count_json(count: Count) -> Any:
    """Return only the total if there is nothing else, which is nearly always so."""
    if not count.flags and not count.risen:
        return count.total
    return [count.total, list(count.flags), [list(one) for one in count.risen]]


def to_json(node: NodeCounters) -> Any:
    """Return the JSON value that `from_json` reads."""
    devices = [
        [
            one.kind,
            one.name,
            {name: _count_json(count) for name, count in one.counts.items()},
            {name: [v.low, v.high, v.sum, v.samples] for name, v in one.levels.items()},
            {name: [list(change) for change in changes] for name, changes in one.facts.items()},
        ]
        for one in node.devices
    ]
    return {
        "spans": [
            [s.source, s.first_s, s.last_s, s.elapsed_s, s.samples, s.absent] for s in node.spans
        ],
        "devices": devices,
        "xids": [[x.time_s, x.gpu, x.number] for x in node.xids],
        "problems": list(node.problems),
        "absent": node.absent,
        "whole_node": node.whole_node,
    }


def _int(value: Any) -> int:
    return CHECKS.integer(value, _WORD_MAX)


def _count(value: Any) -> Count:
    if not isinstance(value, list):
        return Count(_int(value))
    total, flags, risen = _list(value, 3)
    found = [_list(row, 3) for row in _list(risen)]
    rows = [Risen(_time(from_s), _time(to_s), _int(amount)) for from_s, to_s, amount in found]
    return Count(_int(total), tuple(_str(one) for one in _list(flags)), tuple(rows))


def _changes(value: Any) -> tuple[Change, ...]:
    rows = [_list(row, 2) for row in _list(value)]
    if not rows:
        raise CHECKS.refused("a fact without a value")
    return tuple(Change(_time(time_s), _str(text)) for time_s, text in rows)


def _device(value: Any) -> DeviceCounters:
    kind, name, counts, levels, facts = _list(value, 5)
    return DeviceCounters(
        _str(kind),
        _str(name),
        {key: _count(one) for key, one in _dict(counts).items()},
        {key: Level(*map(_int, _list(one, 4))) for key, one in _dict(levels).items()},
        {key: _changes(one) for key, one in _dict(facts).items()},
    )


def _span(value: Any) -> Span:
    source, first_s, last_s, elapsed_s, samples, absent = _list(value, 6)
    times = _time(first_s), _time(last_s), _int(elapsed_s)
    return Span(_str(source), *times, _int(samples), _str(absent))


def _xid(value: Any) -> XidSeen:
    time_s, gpu, number = _list(value, 3)
    return XidSeen(_time(time_s), _str(gpu), _int(number))


def from_json(value: Any) -> NodeCounters:
    """Return the counters; every value is checked.

    Raises:
        RefusedError: it is not a value of `to_json`; the reason is `bad_counters`.
    """
    words = _dict(value)
    missing = {"spans", "devices", "xids", "problems", "absent", "whole_node"} - words.keys()
    if missing:
        raise CHECKS.refused(f"no {min(missing)}")
    return NodeCounters(
        spans=tuple(map(_span, _list(words["spans"]))),
        devices=tuple(map(_device, _list(words["devices"]))),
        xids=tuple(map(_xid, _list(words["xids"]))),
        problems=tuple(map(_str, _list(words["problems"]))),
        absent=_str(words["absent"]),
        whole_node=words["whole_node"] is not False,
    )
