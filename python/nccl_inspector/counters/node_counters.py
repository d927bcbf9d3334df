# SPDX-License-Identifier: Apache-2.0
"""What the counters of a node did while a job ran, as the report gets it, and its JSON form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

from nccl_inspector.system.checked_json import ROWS_MAX, TIME_S_MAX, Checks
from nccl_inspector.system.lazy import LazyItems, LazyWhole

_COLUMNS_MAX = 256  # of a table; three times as many as any kind of device has
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


class Count(NamedTuple):
    """A counter over the job; amounts are in the unit of counters.tsv."""

    total: int
    flags: tuple[str, ...] = ()  # of delta.py: then `total` is the least possible amount
    risen: tuple[Risen, ...] = ()  # in order; neighbours are merged when there are many


class Level(NamedTuple):
    """The readings of a quantity that goes up and down; the mean is sum / samples."""

    low: int
    high: int
    sum: int
    samples: int


# Made of tuples. They are tuples; a large job has millions, and their own `__new__` is slow.
_risen_of: Callable[[tuple[int, int, int]], Risen] = partial(tuple.__new__, Risen)
_count_of: Callable[[tuple[int, tuple[str, ...], tuple[Risen, ...]]], Count] = partial(
    tuple.__new__, Count
)
_NOTHING = Count(0)
_ZEROS = [0]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """A port, GPU, NVLink or the node; a counter that is not in `counts` could not be read."""

    kind: str
    name: str
    counts: Mapping[str, Count]
    levels: Mapping[str, Level]
    facts: Mapping[str, tuple[Change, ...]]  # the first value and each change


class DeviceTable(LazyItems[DeviceCounters]):
    """Devices of one kind that have the same counters, levels and facts, column by column.

    A large job has a hundred thousand devices, most of them links with nothing to tell, so a device
    is made when it is looked at. A column has a value for each device, or a single one that all
    have; of a count with nothing but a total, the total.
    """

    __slots__ = ("_made", "counts", "facts", "kind", "levels", "names")

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        counts: Mapping[str, Sequence[Count | int]],
        levels: Mapping[str, Sequence[Level]],
        facts: Mapping[str, Sequence[tuple[Change, ...]]],
    ) -> None:
        """Take columns that fit the names."""
        self.kind, self.names = kind, names
        self.counts, self.levels, self.facts = counts, levels, facts
        self._made: dict[int, DeviceCounters] = {}

    @classmethod
    def of(cls, device: DeviceCounters) -> "DeviceTable":
        """Return the table of a single device."""
        return cls(
            device.kind,
            [device.name],
            {name: [one] for name, one in device.counts.items()},
            {name: [one] for name, one in device.levels.items()},
            {name: [one] for name, one in device.facts.items()},
        )

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.names)

    def _item(self, at: int) -> DeviceCounters:
        found = self._made.get(at)
        if found is None:
            found = self._made[at] = DeviceCounters(
                self.kind,
                self.names[at],
                {name: _count(_at(column, at)) for name, column in self.counts.items()},
                {name: _at(column, at) for name, column in self.levels.items()},
                {name: _at(column, at) for name, column in self.facts.items()},
            )
        return found

    def count_at(self, name: str, at: int) -> Count | None:
        """Return a counter of one device, which is not made for that; None: it has none."""
        column = self.counts.get(name)
        return _count(_at(column, at)) if column else None

    def level_at(self, name: str, at: int) -> Level | None:
        """Return a level of one device, which is not made for that; None: it has none."""
        column = self.levels.get(name)
        return _at(column, at) if column else None

    def fact_at(self, name: str, at: int) -> tuple[Change, ...]:
        """Return a fact of one device, which is not made for that; empty: it has none."""
        column = self.facts.get(name)
        return _at(column, at) if column else ()

    def risen(self, name: str) -> Iterator[tuple[int, Count]]:
        """Yield place and count of each device whose counter rose, or has flags."""
        column = self.counts[name]
        values = repeat(column[0], len(self)) if len(column) == 1 else column
        for place, value in enumerate(values):
            if value and (count := _count(value)) != _NOTHING:
                yield place, count

    @property
    def alike(self) -> bool:
        """Whether all devices have the same levels and facts."""
        return all(len(one) == 1 for one in (*self.levels.values(), *self.facts.values()))


def _at(column: Sequence[_Value], place: int) -> _Value:
    return column[0] if len(column) == 1 else column[place]


def _count(value: Count | int) -> Count:
    return _count_of((value, (), ())) if isinstance(value, int) else value


class Devices(LazyWhole[DeviceCounters]):
    """The devices of tables."""

    __slots__ = ("tables",)

    def __init__(self, tables: Sequence[DeviceTable]) -> None:
        """Take the tables, in order."""
        self.tables = tables

    def __len__(self) -> int:
        """Return the number of devices; none is made."""
        return sum(map(len, self.tables))

    def _all(self) -> tuple[DeviceCounters, ...]:
        return tuple(chain.from_iterable(self.tables))


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
    devices: Sequence[DeviceCounters] = ()
    xids: tuple[XidSeen, ...] = ()
    problems: tuple[str, ...] = ()
    absent: str = ""
    whole_node: bool = True  # True: all GPUs of the node, because the job's own are not known

    @property
    def tables(self) -> Sequence[DeviceTable]:
        """The devices as tables, in order."""
        if isinstance(self.devices, Devices):
            return self.devices.tables
        return tuple(map(DeviceTable.of, self.devices))

    def tables_of(self, kind: str) -> Iterator[DeviceTable]:
        """Yield the tables of a kind of device."""
        return (table for table in self.tables if table.kind == kind)

    def counts_of(self, kind: str, name: str) -> Iterator[tuple[str, Count]]:
        """Yield each device of a kind that has this counter, by name; no device is made."""
        for table in self.tables_of(kind):
            for at, device in enumerate(table.names):
                if (count := table.count_at(name, at)) is not None:
                    yield device, count

    def facts_of(self, kind: str, name: str) -> Iterator[tuple[str, tuple[Change, ...]]]:
        """Yield each device of a kind that has this fact, by name; no device is made."""
        for table in self.tables_of(kind):
            for at, device in enumerate(table.names):
                if changes := table.fact_at(name, at):
                    yield device, changes

    def of_kind(self, kind: str) -> Iterator[DeviceCounters]:
        """Yield the devices of a kind; no others are made."""
        return chain.from_iterable(self.tables_of(kind))


def _count_json(count: Count) -> Any:
    """Return only the total if there is nothing else, which is nearly always so."""
    if not count.flags and not count.risen:
        return count.total
    return [count.total, list(count.flags), list(chain.from_iterable(count.risen))]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the column of each name: a value for each row, or a single one that all rows have."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: column[:1] if all(one == column[0] for one in column) else column
        for name, column in columns.items()
    }


def _table_json(devices: Sequence[DeviceCounters]) -> Any:
    """Return devices of one kind, with the same counters, levels and facts, as a table."""
    return [
        devices[0].kind,
        [one.name for one in devices],
        _columns([{name: _count_json(v) for name, v in one.counts.items()} for one in devices]),
        _columns([{name: list(v) for name, v in one.levels.items()} for one in devices]),
        _columns([{k: [list(v) for v in changes] for k, changes in one.facts.items()}
                  for one in devices]),
    ]  # fmt: skip


def to_json(node: NodeCounters) -> Any:
    """Return the JSON value that `from_json` reads."""
    alike: dict[Any, list[DeviceCounters]] = {}
    for one in node.devices:
        shape = one.kind, tuple(one.counts), tuple(one.levels), tuple(one.facts)
        alike.setdefault(shape, []).append(one)
    return {
        "spans": [
            [s.source, s.first_s, s.last_s, s.elapsed_s, s.samples, s.absent] for s in node.spans
        ],
        "tables": [_table_json(devices) for devices in alike.values()],
        "xids": [[x.time_s, x.gpu, x.number] for x in node.xids],
        "problems": list(node.problems),
        "absent": node.absent,
        "whole_node": node.whole_node,
    }


def _int(value: Any) -> int:
    return CHECKS.integer(value, _WORD_MAX)


def _counts(column: list[Any]) -> Sequence[Count | int]:
    """Return a column of counts; all its numbers are checked together."""
    if column == _ZEROS and type(column[0]) is int:  # most columns
        return _ZEROS
    if set(map(type, column)) == {int}:
        return CHECKS.integers(column, _WORD_MAX)
    rows = [_list(one, 3) if isinstance(one, list) else [one, [], []] for one in column]
    CHECKS.integers([total for total, _, _ in rows], _WORD_MAX)
    risen = [_list(flat) for _, _, flat in rows]
    if any(len(flat) % 3 for flat in risen):
        raise CHECKS.refused("invalid list")
    numbers = list(chain.from_iterable(risen))
    for at, most in enumerate((TIME_S_MAX, TIME_S_MAX, _WORD_MAX)):
        CHECKS.integers(numbers[at::3], most)
    return [
        _count_of(
            (
                total,
                tuple(map(_str, _list(flags))),
                tuple(map(_risen_of, zip(flat[::3], flat[1::3], flat[2::3], strict=True))),
            )
        )
        for total, flags, flat in rows
    ]


def _level(value: Any) -> Level:
    return Level._make(CHECKS.integers(_list(value, 4), _WORD_MAX))


def _changes(value: Any) -> tuple[Change, ...]:
    rows = [_list(row, 2) for row in _list(value)]
    if not rows:
        raise CHECKS.refused("a fact without a value")
    return tuple(Change(_time(time_s), _str(text)) for time_s, text in rows)


def _table(value: Any) -> DeviceTable:
    """Return the devices of a table."""
    kind, names, counts, levels, facts = _list(value, 5)
    names = CHECKS.texts(_list(names))
    return DeviceTable(
        _str(kind),
        names,
        _read_columns(counts, len(names), _counts),
        _read_columns(levels, len(names), lambda column: list(map(_level, column))),
        _read_columns(facts, len(names), lambda column: list(map(_changes, column))),
    )


def _read_columns(
    value: Any, rows: int, read: Callable[[list[Any]], Sequence[_Value]]
) -> Mapping[str, Sequence[_Value]]:
    """Return the columns that `_columns` made of so many rows."""
    columns = {name: read(_list(column)) for name, column in _dict(value).items()}
    if len(columns) > _COLUMNS_MAX or any(len(one) not in (1, rows) for one in columns.values()):
        raise CHECKS.refused("invalid table")
    return columns


def _all_devices(words: Mapping[str, Any]) -> Sequence[DeviceCounters]:
    if "devices" in words:  # as releases up to format 11 of the summary wrote them
        return tuple(map(_old_device, _list(words["devices"])))
    found = Devices(tuple(map(_table, _list(words["tables"]))))
    if len(found) > ROWS_MAX:
        raise CHECKS.refused("invalid list")
    return found


def _old_count(value: Any) -> Count:
    if isinstance(value, list):
        total, flags, risen = _list(value, 3)
        value = [total, flags, list(chain.from_iterable(_list(row, 3) for row in _list(risen)))]
    return _count(_counts([value])[0])


def _old_device(value: Any) -> DeviceCounters:
    kind, name, counts, levels, facts = _list(value, 5)
    return DeviceCounters(
        _str(kind),
        _str(name),
        {name: _old_count(one) for name, one in _dict(counts).items()},
        {name: _level(one) for name, one in _dict(levels).items()},
        {name: _changes(one) for name, one in _dict(facts).items()},
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
    parts = {"spans", "xids", "problems", "absent", "whole_node"}
    missing = (parts if "devices" in words else {*parts, "tables"}) - words.keys()
    if missing:
        raise CHECKS.refused(f"no {min(missing)}")
    return NodeCounters(
        spans=tuple(map(_span, _list(words["spans"]))),
        devices=_all_devices(words),
        xids=tuple(map(_xid, _list(words["xids"]))),
        problems=tuple(map(_str, _list(words["problems"]))),
        absent=_str(words["absent"]),
        whole_node=words["whole_node"] is not False,
    )
