# SPDX-License-Identifier: Apache-2.0
"""The map of who was late when, kept small: only the latest processes, and windows merged."""

from collections.abc import Iterable, Sequence
from statistics import fmean

Heat = tuple[tuple[str, tuple[float | None, ...]], ...]


def merged(values: Sequence[float | None], steps: int) -> tuple[float | None, ...]:
    """Return the means of `steps` values at a time; None if none of them is known."""
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
    """Return at most `rows` processes, the latest first, in at most `windows` windows.

    All rows have the same windows; the same number of them is merged in each row.
    """
    latest = sorted(heat, key=lambda row: -_lateness(row[1]))[:rows]
    longest = max((len(values) for _, values in latest), default=0)
    steps = max(1, -(-longest // windows))
    return tuple((name, merged(values, steps)) for name, values in latest)
