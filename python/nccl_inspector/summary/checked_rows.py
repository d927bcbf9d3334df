# SPDX-License-Identifier: Apache-2.0
"""Rows of a node summary's JSON; the number, types and ranges of their values are checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import itemgetter
from typing import Any, get_args, get_origin

from nccl_inspector.box.layout import GPUS, WORD_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.operation_label import LABEL_KINDS, Label
from nccl_inspector.model.process import ALGOS, FUNCS, PROTOS, Comm, Operation
from nccl_inspector.model.task_end import TaskEnd
from nccl_inspector.system.printable import printable

_ROWS_MAX = 4096
# Lowest and highest value of fields that are an index into a table, or that are computed with.
_RANKS_MAX = (1 << 31) - 1
_LIMITS: Mapping[type, Mapping[str, tuple[int, int]]] = {
    Comm: {"nranks": (0, _RANKS_MAX), "nnodes": (0, _RANKS_MAX), "rank": (-1, _RANKS_MAX),
           "gpu": (0, GPUS - 1)},
    Label: {"kind": (0, len(LABEL_KINDS) - 1), "func": (0, len(FUNCS) - 1), "ops": (0, WORD_MAX),
            "timed_ops": (0, WORD_MAX)},
    Operation: {"func": (0, len(FUNCS) - 1), "algo": (0, len(ALGOS) - 1),
                "proto": (0, len(PROTOS) - 1), "peer": (-1, _RANKS_MAX)},
    TaskEnd: {"step": (0, WORD_MAX), "task": (0, WORD_MAX), "pid": (0, WORD_MAX),
              "status": (0, 0xFFFF), "at_ns": (0, WORD_MAX)},
}  # fmt: skip


@cache
def _members(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the name of each field and the type of its values."""
    return tuple(
        (member.name, tuple if get_origin(member.type) is tuple else member.type)
        for member in fields(cls)
    )


@dataclass(frozen=True, slots=True)
class _RowCheck:
    """What must be checked in a row whose values have known types."""

    texts: tuple[int, ...]
    numbers: Callable[[Sequence[Any]], tuple[int, ...]] | None  # gives two or more, or None
    limits: tuple[tuple[int, int, int], ...]  # place, lowest and highest value of a number


@cache
def _look(cls: Any, kinds: tuple[type, ...]) -> _RowCheck:
    """Return what must be checked in a row of values of these types.

    It is cached, because nearly all rows of a class have the same types.

    Raises:
        RefusedError: the types are not those of the class.
    """
    members = _members(cls)
    if len(kinds) != len(members):
        raise RefusedError("bad_summary", f"invalid {cls.__name__}")
    for (name, wanted), kind in zip(members, kinds, strict=True):
        allowed = get_args(wanted) or (wanted,)
        # In Python a bool is an int; in JSON it is not.
        if not any(issubclass(kind, one) and (kind is not bool or one is bool) for one in allowed):
            raise RefusedError("bad_summary", f"invalid {cls.__name__}.{name}")
    texts = tuple(place for place, kind in enumerate(kinds) if kind is str)
    numbers = [place for place, kind in enumerate(kinds) if kind is int]
    names = [name for name, _ in members]
    limits = [(names.index(name), *most) for name, most in _LIMITS.get(cls, {}).items()]
    return _RowCheck(
        texts,
        # The first place is given twice, because for one place itemgetter returns no tuple.
        itemgetter(numbers[0], *numbers) if numbers else None,
        tuple(limit for limit in limits if kinds[limit[0]] is int),
    )


def take_row(cls: Any, values: Any) -> Any:
    """Return `cls(*values)` after checking the number, types and ranges of the values.

    Raises:
        RefusedError: they do not fit the class; the reason is `bad_summary`.
    """
    if not isinstance(values, list):
        raise RefusedError("bad_summary", f"invalid {cls.__name__}")
    look = _look(cls, tuple(map(type, values)))
    if look.numbers:
        numbers = look.numbers(values)
        if min(numbers) < -WORD_MAX or max(numbers) > WORD_MAX:
            raise RefusedError("bad_summary", f"invalid number in {cls.__name__}")
    for place, least, most in look.limits:
        if not least <= values[place] <= most:
            raise RefusedError("bad_summary", f"invalid number in {cls.__name__}")
    for place in look.texts:
        values[place] = printable(values[place])
    return cls(*values)


def take_rows(cls: Any, table: Any) -> tuple[Any, ...]:
    """Return an instance of the class for each row of a table.

    Raises:
        RefusedError: the table is invalid; the reason is `bad_summary`.
    """
    if not isinstance(table, list) or len(table) > _ROWS_MAX:
        raise RefusedError("bad_summary", f"invalid table of {cls.__name__}")
    return tuple(take_row(cls, row) for row in table)


def take_list(cls: type[Any], values: Any) -> tuple[Any, ...]:
    """Return values that are all of one class; in texts, unprintable characters become `?`.

    Raises:
        RefusedError: the list is invalid; the reason is `bad_summary`.
    """
    if not isinstance(values, list) or not {cls}.issuperset(map(type, values)):
        raise RefusedError("bad_summary", "invalid list")
    return tuple(map(printable, values) if cls is str else values)
