# SPDX-License-Identifier: Apache-2.0
"""Fit a text table into a terminal's width by narrowing its text columns."""

from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = 100  # of a terminal, where nobody knows how many it has
_NAME_MIN = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    is_text: bool = False  # aligned left, and cut if there is no room


def make_columns(*titles: str) -> tuple[Column, ...]:
    """Return columns of these titles; a colon behind one says that the column is of text."""
    return tuple(Column(one.removesuffix(":"), one.endswith(":")) for one in titles)


def fit_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column; text columns are narrowed until all fit into `width`."""
    widths = [
        max(len(column.title), *(len(row[at]) for row in rows), 0)
        for at, column in enumerate(columns)
    ]
    texts = [at for at, column in enumerate(columns) if column.is_text]
    while sum(widths) + len(widths) - 1 > width:
        widest = max(texts, key=lambda at: widths[at])
        if widths[widest] <= _NAME_MIN:
            break
        widths[widest] -= 1
    return widths


def cut(text: str, width: int) -> str:
    """Return at most `width` characters; a longer text ends in `..`."""
    return text if len(text) <= width else text[: max(0, width - 2)] + ".."


def row_text(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], gap: int = 1
) -> str:
    """Return one row with `gap` blanks between columns and none at its end."""
    parts = [
        cut(cell, width).ljust(width) if column.is_text else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    return (" " * gap).join(parts).rstrip()
