# SPDX-License-Identifier: Apache-2.0
"""Rows of a node summary's JSON: number, types and ranges of their values are checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import itemgetter
from typing import Any, get_args, get_origin

from nccl_inspector.box.layout import GPUS, WORD_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.operation_label import LABEL_KINDS, Label
from nccl_inspector.model.process import ALGOS, FUNCS, PROTOS, Comm, Operation
from nccl_inspector.system.printable import printable

_ROWS_MAX = 4096
# Least and most of what is a place in a table, or is counted with.
_RANKS_MAX = (1 << 31) - 1
_LIMITS: Mapping[type, Mapping[str, tuple[int, int]]] = {
    Comm: {"nranks": (0, _RANKS_MAX), "nnodes": (0, _RANKS_MAX), "rank": (-1, _RANKS_MAX),
           "gpu": (0, GPUS - 1)},
    Label: {"kind": (0, len(LABEL_KINDS) - 1), "func": (0, len(FUNCS) - 1), "ops": (0, WORD_MAX),
            "timed_ops": (0, WORD_MAX)},
    Operation: {"func": (0, len(FUNCS) - 1), "algo": (0, len(ALGOS) - 1),
                "proto": (0, len(PROTOS) - 1), "peer": (-1, _RANKS_MAX)},
}  # fmt: skip


@cache
def _members(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields' names, and what their values are instances of."""
    return tuple(
        (member.name, tuple if get_origin(member.type) is tuple else member.type)
        for member in fields(cls)
    )


@dataclass(frozen=True, slots=True)
class _RowCheck:
    """What is to be looked at in a row whose values are of known types."""

    texts: tuple[int, ...]
    numbers: Callable[[Sequence[Any]], tuple[int, ...]] | None  # two and more, if there are any
    limits: tuple[tuple[int, int, int], ...]  # places of numbers, the least and most of each


@cache
def _look(cls: Any, kinds: tuple[type, ...]) -> _RowCheck:
    """Return what is to be looked at. Nearly all rows of a class have the same types.

    Raises:
        RefusedError: they are not those of the class.
    """
    members = _members(cls)
    if len(kinds) != len(members):
        raise RefusedError("bad_summary", f"odd {cls.__name__}")
    for (name, wanted), kind in zip(members, kinds, strict=True):
        allowed = get_args(wanted) or (wanted,)
        # Python takes a bool for an int; JSON does not.
        if not any(issubclass(kind, one) and (kind is not bool or one is bool) for one in allowed):
            raise RefusedError("bad_summary", f"odd {cls.__name__}.{name}")
    texts = tuple(place for place, kind in enumerate(kinds) if kind is str)
    numbers = [place for place, kind in enumerate(kinds) if kind is int]
    names = [name for name, _ in members]
    limits = [(names.index(name), *most) for name, most in _LIMITS.get(cls, {}).items()]
    return _RowCheck(
        texts,
        # Of one place itemgetter gives no tuple.
        itemgetter(numbers[0], *numbers) if numbers else None,
        tuple(limit for limit in limits if kinds[limit[0]] is int),
    )


def take_row(cls: Any, values: Any) -> Any:
    """Return `cls(*values)` after a look at number, types and range of the values.

    Raises:
        RefusedError: they are not those of the class; the reason is `bad_summary`.
    """
    if not isinstance(values, list):
        raise RefusedError("bad_summary", f"odd {cls.__name__}")
    look = _look(cls, tuple(map(type, values)))
    if look.numbers:
        numbers = look.numbers(values)
        if min(numbers) < -WORD_MAX or max(numbers) > WORD_MAX:
            raise RefusedError("bad_summary", f"odd number in {cls.__name__}")
    for place, least, most in look.limits:
        if not least <= values[place] <= most:
            raise RefusedError("bad_summary", f"odd number in {cls.__name__}")
    for place in look.texts:
        values[place] = printable(values[place])
    return cls(*values)


def take_rows(cls: Any, table: Any) -> tuple[Any, ...]:
    """Return an instance of the class for each row of a table.

    Raises:
        RefusedError: it is no such table; the reason is `bad_summary`.
    """
    if not isinstance(table, list) or len(table) > _ROWS_MAX:
        raise RefusedError("bad_summary", f"odd table of {cls.__name__}")
    return tuple(take_row(cls, row) for row in table)


def take_list(cls: type[Any], values: Any) -> tuple[Any, ...]:
    """Return values that are all of one class, texts without what cannot be shown.

    Raises:
        RefusedError: they are not; the reason is `bad_summary`.
    """
    if not isinstance(values, list) or not {cls}.issuperset(map(type, values)):
        raise RefusedError("bad_summary", "odd list")
    return tuple(map(printable, values) if cls is str else values)
