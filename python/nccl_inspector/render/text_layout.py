# SPDX-License-Identifier: Apache-2.0
"""Lines of a report for a terminal: 100 columns of plain ASCII, and what each is painted with."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.model.table_columns import COLUMNS, cut, fit_columns, row_text
from nccl_inspector.render.tables import Grid, used_columns
from nccl_inspector.system.printable import plain

_TEXT_CHARS_MAX = 1 << 18  # of one paragraph


class Paint(Enum):
    """What a line is painted with: an ANSI sequence; none for plain ones."""

    PLAIN = ""
    TITLE = "\x1b[1m"
    GOOD = "\x1b[1;32m"
    WARNING = "\x1b[1;33m"
    CRITICAL = "\x1b[1;31m"


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line, without its end."""

    text: str
    paint: Paint = Paint.PLAIN


def paragraph(
    first: str, text: str, paint: Paint = Paint.PLAIN, indent: int | None = None
) -> Iterator[TextLine]:
    """Return text behind its first words; `indent`: of the further lines, else as long as those."""
    further = " " * (len(first) if indent is None else indent)
    # Before it is wrapped, for a tab or a line's end would be a place to wrap at.
    safe = cut(plain(text), _TEXT_CHARS_MAX)
    lines = textwrap.wrap(
        safe, COLUMNS, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
    )
    for line in lines or [first]:
        yield TextLine(line, paint)
        paint = Paint.PLAIN


def bullet(text: str) -> Iterator[TextLine]:
    """Return one thing of a list."""
    return paragraph(" ", text, indent=3)


def _table(grid: Grid) -> Iterator[TextLine]:
    rows, filled = grid.rows, [row for row in grid.rows if row.cells]
    kept = used_columns(grid)
    indent = 1 if len(filled) == len(rows) else 3
    shown = [grid.columns[at] for at in kept]
    cells = [[cut(plain(row.cells[at]), COLUMNS) for at in kept] for row in filled]
    widths = fit_columns(shown, cells, COLUMNS - indent)
    margin = " " * indent
    gap = 2 if sum(widths) + 2 * len(widths) - 2 <= COLUMNS - indent else 1
    if filled:
        yield TextLine(margin + row_text(shown, widths, [column.title for column in shown], gap))
    of_rows = iter(cells)
    for row in rows:
        if row.cells:
            yield TextLine(margin + row_text(shown, widths, next(of_rows), gap))
        else:
            yield from paragraph("", row.between, indent=5)


def section(grid: Grid) -> list[TextLine]:
    """Return a section; nothing when there is nothing in it."""
    if not grid.rows and not grid.lines:
        return []
    first = f"{grid.title}  " if grid.about else grid.title
    lines = [*paragraph(first, grid.about, Paint.TITLE), *_table(grid)]
    for text in grid.lines:
        lines += bullet(text)
    return lines


def join(blocks: Sequence[Sequence[TextLine]], colour: bool) -> str:
    """Return the text of all blocks that have lines, an empty one between two."""
    return (
        "\n\n".join(
            "\n".join(_painted(line, colour) for line in block) for block in blocks if block
        )
        + "\n"
    )


def _painted(line: TextLine, colour: bool) -> str:
    text = cut(plain(line.text), COLUMNS).rstrip()
    if not colour or line.paint is Paint.PLAIN:
        return text
    return f"{line.paint.value}{text}\x1b[0m"
