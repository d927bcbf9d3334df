# SPDX-License-Identifier: Apache-2.0
"""Make time lines coarser by merging neighbouring windows, as plugin/upkeep/timeline.c does."""

from collections.abc import Iterable
from dataclasses import replace

from nccl_inspector.model.process import Line, Window


def _merge(one: Window, next_: Window) -> Window:
    ops = one.ops + next_.ops
    mean_ns = (one.median_ns * one.ops + next_.median_ns * next_.ops) // ops
    return Window(
        start_s=one.start_s,
        late_ms=max(one.late_ms, next_.late_ms),
        ops=ops,
        bytes=one.bytes + next_.bytes,
        busy_ns=one.busy_ns + next_.busy_ns,
        min_ns=min(one.min_ns, next_.min_ns),
        median_ns=mean_ns,
        first_index=one.first_index,
        last_index=max(one.last_index, next_.last_index),
    )


def on_grid(windows: Iterable[Window], window_s: int) -> tuple[Window, ...]:
    """Return windows that begin on multiples of `window_s`; those with the same begin are merged.

    The plugin's own windows are on that grid, except around the time when it doubles their length.
    Each window must have operations.
    """
    found: list[Window] = []
    for window in windows:
        placed = window._replace(start_s=window.start_s - window.start_s % window_s)
        if found and found[-1].start_s == placed.start_s:
            found[-1] = _merge(found[-1], placed)
        else:
            found.append(placed)
    return tuple(found)


def halve(line: Line) -> Line:
    """Return the line with half as many windows, each twice as long."""
    window_s = 2 * line.window_s
    return replace(line, window_s=window_s, windows=on_grid(line.windows, window_s))
