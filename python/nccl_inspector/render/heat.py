# SPDX-License-Identifier: Apache-2.0
"""The map of who came late when, kept small: the latest processes, several windows as one."""

from collections.abc import Iterable, Sequence
from statistics import fmean

Heat = tuple[tuple[str, tuple[float | None, ...]], ...]


def merged(values: Sequence[float | None], steps: int) -> tuple[float | None, ...]:
    """Return the means of so many values at a time; None where nothing is known."""
    if steps == 1:
        return tuple(values)
    found: list[float | None] = []
    for at in range(0, len(values), steps):
        known = [value for value in values[at : at + steps] if value is not None]
        found.append(fmean(known) if known else None)
    return tuple(found)


def _lateness(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else -1.0


def bound_heat(heat: Heat, rows: int, windows: int) -> Heat:
    """Return so many processes at the most, the latest first, in so many windows at the most.

    All rows have the same windows; of a row, so many of them that they fit are taken as one.
    """
    latest = sorted(heat, key=lambda row: -_lateness(row[1]))[:rows]
    longest = max((len(values) for _, values in latest), default=0)
    steps = max(1, -(-longest // windows))
    return tuple((name, merged(values, steps)) for name, values in latest)
