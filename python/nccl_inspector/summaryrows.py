# SPDX-License-Identifier: Apache-2.0
"""Rows of a node summary's JSON: number, types and ranges of their values are checked."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin

from nccl_inspector.errors import RefusedError
from nccl_inspector.layout import GPUS
from nccl_inspector.model import ALGOS, FUNCS, PROTOS, Comm, Operation
from nccl_inspector.packing import WORD_MAX
from nccl_inspector.printable import printable

_ROWS_MAX = 4096
# Least and most of what is a place in a table, or is counted with.
_RANKS_MAX = (1 << 31) - 1
_LIMITS: Mapping[type, Mapping[str, tuple[int, int]]] = {
    Comm: {"nranks": (0, _RANKS_MAX), "nnodes": (0, _RANKS_MAX), "rank": (-1, _RANKS_MAX),
           "gpu": (0, GPUS - 1)},
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


@cache
def _texts_and_numbers(
    cls: Any, kinds: tuple[type, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of texts, and those of whole numbers, among values of these types.

    Raises:
        RefusedError: they are not those of the class.
    """
    members = _members(cls)
    if len(kinds) != len(members):
        raise RefusedError("bad_summary", f"odd {cls.__name__}")
    for (name, wanted), kind in zip(members, kinds, strict=True):
        allowed = get_args(wanted) or (wanted,)
        if not any(issubclass(kind, one) for one in allowed):
            raise RefusedError("bad_summary", f"odd {cls.__name__}.{name}")
    texts = tuple(place for place, kind in enumerate(kinds) if kind is str)
    return texts, tuple(place for place, kind in enumerate(kinds) if kind is int)


@cache
def _limits(cls: Any) -> tuple[tuple[int, tuple[int, int]], ...]:
    """Return the places of numbers with limits of their own, and these."""
    names = [name for name, _ in _members(cls)]
    return tuple((names.index(name), limits) for name, limits in _LIMITS.get(cls, {}).items())


def take_row(cls: Any, values: Any) -> Any:
    """Return `cls(*values)` after a look at number, types and range of the values.

    Raises:
        RefusedError: they are not those of the class; the reason is `bad_summary`.
    """
    if not isinstance(values, list):
        raise RefusedError("bad_summary", f"odd {cls.__name__}")
    # Alike for all rows but a few.
    texts, places = _texts_and_numbers(cls, tuple(map(type, values)))
    numbers = [values[place] for place in places]
    if numbers and (min(numbers) < -WORD_MAX or max(numbers) > WORD_MAX):
        raise RefusedError("bad_summary", f"odd number in {cls.__name__}")
    for place, (least, most) in _limits(cls):
        if values[place] is not None and not least <= values[place] <= most:
            raise RefusedError("bad_summary", f"odd number in {cls.__name__}")
    for place in texts:
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
