# SPDX-License-Identifier: Apache-2.0
"""A report for a terminal: plain ASCII in as many columns as are wanted, and its colours."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.model.table_columns import cut, fit_columns, row_text
from nccl_inspector.render.tables import Grid, used_columns
from nccl_inspector.system.printable import plain

COLUMNS_MIN, COLUMNS_MAX = 60, 100  # lines that are longer are hard to read
_TEXT_CHARS_MAX = 1 << 18  # of one paragraph


class Paint(Enum):
    """The colour of a line, as an ANSI sequence; empty for a plain line."""

    PLAIN = ""
    TITLE = "\x1b[1m"
    GOOD = "\x1b[1;32m"
    WARNING = "\x1b[1;33m"
    CRITICAL = "\x1b[1;31m"


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line, without its end; it is cut where there is no room."""

    text: str
    paint: Paint = Paint.PLAIN

    def lines(self, _columns: int) -> Iterator["TextLine"]:
        """Return itself."""
        yield self


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text that is wrapped behind its first words; only the first line is painted."""

    first: str
    text: str
    paint: Paint
    indent: int

    def lines(self, columns: int) -> Iterator[TextLine]:
        """Return the lines."""
        # Before it is wrapped, for a tab or a line's end would be a place to wrap at.
        safe = cut(plain(self.text), _TEXT_CHARS_MAX)
        wrapped = textwrap.wrap(
            safe,
            columns,
            initial_indent=self.first,
            subsequent_indent=" " * self.indent,
            break_on_hyphens=False,
        )
        paint = self.paint
        for line in wrapped or [self.first]:
            yield TextLine(line, paint)
            paint = Paint.PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a grid, as wide as they need to be; columns of text give way."""

    grid: Grid

    def lines(self, columns: int) -> Iterator[TextLine]:
        """Return the lines."""
        rows, filled = self.grid.rows, [row for row in self.grid.rows if row.cells]
        kept = used_columns(self.grid)
        indent = 1 if len(filled) == len(rows) else 3
        shown = [self.grid.columns[at] for at in kept]
        cells = [[cut(plain(row.cells[at]), columns) for at in kept] for row in filled]
        widths = fit_columns(shown, cells, columns - indent)
        margin = " " * indent
        gap = 2 if sum(widths) + 2 * len(widths) - 2 <= columns - indent else 1
        if filled:
            yield TextLine(margin + row_text(shown, widths, [one.title for one in shown], gap))
        of_rows = iter(cells)
        for row in rows:
            if row.cells:
                yield TextLine(margin + row_text(shown, widths, next(of_rows), gap))
            else:
                yield from paragraph("", row.between, indent=5).lines(columns)


Item = TextLine | Paragraph | Table


def paragraph(
    first: str, text: str, paint: Paint = Paint.PLAIN, indent: int | None = None
) -> Paragraph:
    """Return text behind its first words; `indent`: of the further lines, else as long as those."""
    return Paragraph(first, text, paint, len(first) if indent is None else indent)


def bullet(text: str) -> Paragraph:
    """Return one thing of a list."""
    return paragraph(" ", text, indent=3)


def section(grid: Grid) -> list[Item]:
    """Return a section; empty when there is nothing in it."""
    if not grid.rows and not grid.lines:
        return []
    first = f"{grid.title}  " if grid.about else grid.title
    return [paragraph(first, grid.about, Paint.TITLE), Table(grid), *map(bullet, grid.lines)]


def join(blocks: Sequence[Sequence[Item]], columns: int, colour: bool) -> str:
    """Return the text of all blocks that have lines, with an empty line between two.

    `columns`: how wide it may be; at least COLUMNS_MIN and at most COLUMNS_MAX are used.
    """
    columns = min(max(columns, COLUMNS_MIN), COLUMNS_MAX)
    return (
        "\n\n".join(
            "\n".join(
                _painted(line, columns, colour) for item in block for line in item.lines(columns)
            )
            for block in blocks
            if block
        )
        + "\n"
    )


def _painted(line: TextLine, columns: int, colour: bool) -> str:
    text = cut(plain(line.text), columns).rstrip()
    if not colour or line.paint is Paint.PLAIN:
        return text
    return f"{line.paint.value}{text}\x1b[0m"
