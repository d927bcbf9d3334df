# SPDX-License-Identifier: Apache-2.0
"""Operations by tag, kernel and root (plugin/box/box.h: box_label); only collection reads this."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nccl_inspector.box.copy import find_table, read_table, real_ns
from nccl_inspector.box.layout import LABEL, NOT_KNOWN, WORD_MAX
from nccl_inspector.model.operation_label import ALL_COMMS, KERNEL, LABEL_KINDS, OTHERS, ROOT, Label
from nccl_inspector.model.process import FUNCS, Comm

_ODD = "invalid operations of a tag, kernel or root are left out"
_WORDS = LABEL.reader(
    "used", "kind", "func", "comm", "value", "ops", "bytes", "timed_ops", "busy_ns", "called_ops",
    "called_bytes", "first_tick", "last_tick",
)  # fmt: skip


def _label(header: bytes, words: Mapping[str, int], text: str) -> Label:
    # If NCCL tells only calls, these count as the operations.
    counted = "" if words["ops"] else "called_"
    return Label(
        kind=words["kind"],
        comm=ALL_COMMS if words["comm"] == NOT_KNOWN else words["comm"],
        func=words["func"],
        value=OTHERS if words["value"] == WORD_MAX else words["value"],
        text=text,
        ops=words[f"{counted}ops"],
        bytes=words[f"{counted}bytes"],
        timed_ops=words["timed_ops"],
        busy_ns=words["busy_ns"],
        first_ns=real_ns(header, words["first_tick"]),
        last_ns=real_ns(header, words["last_tick"]),
    )


def _is_possible(label: Label, comms: frozenset[int]) -> bool:
    sums = label.ops, label.bytes, label.timed_ops, label.busy_ns
    if label.kind >= len(LABEL_KINDS) or max(sums) > WORD_MAX:
        return False
    kind = LABEL_KINDS[label.kind]
    if kind != ROOT or label.value == OTHERS:
        return label.comm == ALL_COMMS and not label.func and (kind == KERNEL or not label.text)
    return label.comm in comms and 0 < label.func < len(FUNCS) and not label.text


def _add(one: Label, other: Label) -> Label:
    """Return the sum: two threads that meet a new label at the same time make two entries of it."""
    return replace(
        one,
        ops=one.ops + other.ops,
        bytes=one.bytes + other.bytes,
        timed_ops=one.timed_ops + other.timed_ops,
        busy_ns=one.busy_ns + other.busy_ns,
        first_ns=min(one.first_ns, other.first_ns),
        last_ns=max(one.last_ns, other.last_ns),
    )


def read_labels(
    fd: int, header: bytes, size: int, comms: Sequence[Comm]
) -> tuple[tuple[Label, ...], list[str]]:
    """Return the labels of a box of `size` bytes, and a text for each entry that was left out.

    Raises:
        RefusedError: the box contradicts itself; the reason is `bad_box`.
    """
    table = find_table(header, size, "label", LABEL)
    data = read_table(fd, table)
    known = frozenset(comm.index for comm in comms)
    found: dict[tuple[int | str, ...], Label] = {}
    flags = []
    for base in range(0, table.length, LABEL.size):
        words = _WORDS.at(data, base)
        if words["used"] != 1 or not (words["ops"] or words["called_ops"]):
            continue
        label = _label(header, words, LABEL.text(data, "text", base))
        name = label.kind, label.comm, label.func, label.value, label.text
        both = _add(found[name], label) if name in found else label
        if _is_possible(both, known):
            found[name] = both
        else:
            flags.append(_ODD)
    return tuple(found.values()), flags
