# SPDX-License-Identifier: Apache-2.0
"""Operations by tag, symmetric kernel and root, and the section LABELS of a report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nccl_inspector.model.card import Card
from nccl_inspector.model.card_labels import LabelRow, Labels
from nccl_inspector.model.operation_label import KERNEL, LABEL_KINDS, OTHERS, ROOT, USER_TAG, Label
from nccl_inspector.model.process import FUNCS, Comm, Process
from nccl_inspector.model.table_columns import make_columns
from nccl_inspector.model.wording import clock, compact, duration, elapsed, number, volume
from nccl_inspector.render.output_limits import Limits
from nccl_inspector.render.tables import Grid, Row

LABELS_MAX = 256  # in a card: those with the most time, tags first
_NS = 1e9
_NAME_CHARS = 16
_WORDS = {USER_TAG: "tag", KERNEL: "kernel", ROOT: "root"}
_SEEN = "%m-%d %H:%M"
_COLUMNS = make_columns(
    "label:", "processes", "operations", "bytes", "mean", "a process", "first (UTC)", "last",
)  # fmt: skip
_Name = tuple[int, str, str, str]  # kind, value, communicator, collective


@dataclass(slots=True)
class _LabelSum:
    """The sums over all processes for one label."""

    processes: set[int] = field(default_factory=set)
    operations: int = 0
    bytes: int = 0
    timed: int = 0
    busy_ns: int = 0
    seen_ns: list[int] = field(default_factory=list)

    def add(self, process: int, label: Label) -> None:
        self.processes.add(process)
        self.operations += label.ops
        self.bytes += label.bytes
        self.timed += label.timed_ops
        self.busy_ns += label.busy_ns
        self.seen_ns += [at for at in (label.first_ns, label.last_ns) if at]

    @property
    def start_s(self) -> float | None:
        return min(self.seen_ns) / _NS if self.seen_ns else None

    @property
    def end_s(self) -> float | None:
        return max(self.seen_ns) / _NS if self.seen_ns else None


def _name(label: Label, comms: dict[int, Comm]) -> _Name:
    comm = comms.get(label.comm)
    value = label.text if LABEL_KINDS[label.kind] == KERNEL else str(label.value)
    return (
        label.kind,
        "" if label.value == OTHERS else value,
        "" if comm is None else comm.name or hex(comm.id),
        FUNCS[label.func] if label.func else "",
    )


def describe_labels(processes: Sequence[Process]) -> Labels | None:
    """Return the operations by tag, kernel and root, or None if NCCL told none."""
    sums: dict[_Name, _LabelSum] = {}
    for place, process in enumerate(processes):
        comms = {comm.index: comm for comm in process.comms} if process.labels else {}
        for label in process.labels:
            sums.setdefault(_name(label, comms), _LabelSum()).add(place, label)
    if not sums:
        return None
    order = sorted(sums, key=lambda name: (name[0], -sums[name].busy_ns, -sums[name].bytes, name))
    rows = tuple(
        LabelRow(
            kind=LABEL_KINDS[name[0]], value=name[1], communicator=name[2], collective=name[3],
            processes=len(one.processes), operations=one.operations, bytes=one.bytes,
            timed_operations=one.timed, busy_s=one.busy_ns / _NS,
            start_s=one.start_s, end_s=one.end_s,
        )
        for name in order[:LABELS_MAX]
        for one in (sums[name],)
    )  # fmt: skip
    return Labels(rows, len(sums))


def _label_words(one: LabelRow) -> str:
    word = _WORDS[one.kind]
    if not one.value:
        return f"other {word}s"
    where = f" of {one.collective}, {one.communicator[:_NAME_CHARS]}" if one.collective else ""
    return f"{word} {one.value}{where}"


def _cells(one: LabelRow) -> tuple[str, ...]:
    mean_ns = one.busy_s * _NS / one.timed_operations if one.timed_operations else None
    return (
        _label_words(one),
        compact(one.processes),
        compact(one.operations),
        volume(one.bytes),
        "-" if mean_ns is None else duration(mean_ns),
        elapsed(one.busy_s / one.processes) if one.timed_operations else "-",
        clock(one.start_s, _SEEN),
        clock(one.end_s, _SEEN),
    )


def _chosen(found: Labels, most: int) -> Iterator[LabelRow]:
    """Yield the first rows of each kind."""
    for kind in LABEL_KINDS:
        yield from [one for one in found.rows if one.kind == kind][:most]


def labels(card: Card, limits: Limits) -> Grid:
    """Return the section LABELS; empty if no operation has a label."""
    found = card.labels
    if found is None:
        return Grid("LABELS")
    chosen = list(_chosen(found, limits.labels))
    about = (
        "(operations by the tag that the application gave its call, by the kernel of symmetric "
        "collectives, and by root, in all processes; times of those that have one)"
    )
    left = number(found.count - len(chosen), "label")
    lines = () if len(chosen) == found.count else (limits.more(left),)
    return Grid("LABELS", about, _COLUMNS, tuple(Row(_cells(one)) for one in chosen), lines)
