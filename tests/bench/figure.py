# SPDX-License-Identifier: Apache-2.0
"""A figure of the profiler plugin, beside its limit and a plugin that does nothing."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in `unit`; of a net value, `ours` and `nothing` are what it is the difference of.

    `vendor` is what NVIDIA's Inspector 2.30.7 took on another machine, in words.
    """

    what: str
    unit: str
    value: float
    limit: float | None = None
    at_least: bool = False
    ours: float | None = None
    nothing: float | None = None
    count: int = 1  # rounds, or runs
    lost: int | None = None  # operations that the run was told of and does not know
    vendor: str = ""

    @property
    def verdict(self) -> str:
        """Whether the value keeps to the limit; empty where there is none."""
        if self.limit is None:
            return ""
        kept = self.value >= self.limit if self.at_least else self.value <= self.limit
        return "ok" if kept else "OVER"


def as_json(figure: Figure) -> dict[str, object]:
    """Return everything of a figure."""
    return {
        "what": figure.what,
        "unit": figure.unit,
        "value": round(figure.value, 4),
        "ours": figure.ours,
        "nothing": figure.nothing,
        "count": figure.count,
        "lost": figure.lost,
        "limit": figure.limit,
        "at_least": figure.at_least,
        "verdict": figure.verdict,
        "vendor": figure.vendor,
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def _cells(figure: Figure) -> tuple[str, ...]:
    relation = ">=" if figure.at_least else "<="
    return (
        figure.what,
        str(figure.count),
        _number(figure.nothing),
        _number(figure.ours),
        _number(figure.value),
        figure.unit,
        "" if figure.limit is None else f"{relation} {_number(figure.limit)}",
        figure.verdict,
        "" if figure.lost is None else str(figure.lost),
        figure.vendor,
    )


_HEAD = ("profiler plugin", "rounds", "nothing", "ours", "value", "unit", "limit", "", "lost")
_VENDOR = "NVIDIA, measured elsewhere"


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a table, a line each."""
    rows = [(*_HEAD, _VENDOR), *(_cells(figure) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 5, 7, 9) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
