# SPDX-License-Identifier: Apache-2.0
"""Who was late when: each process compared with the median of its peers, window by window."""

from collections.abc import Mapping, Sequence

import numpy as np

from nccl_inspector.analysis.join import JoinedComm
from nccl_inspector.analysis.slow_times.line_columns import (
    Columns,
    Floats,
    Kind,
    coarsen,
    coarsest_s,
)
from nccl_inspector.analysis.straggler.lateness import SYNCHRONISING
from nccl_inspector.model.process import FUNCS

RANKS_MIN = 3  # with two, the late one and the early one cannot be told apart

# For each process's name its lateness in each window in ns, None if it is not known.
LateMap = tuple[tuple[str, tuple[float | None, ...]], ...]


def _choose(columns: Sequence[Columns], comms: Sequence[JoinedComm]) -> list[Columns]:
    """Return the lines of the busiest kind among those in which most ranks wait for each other."""
    by_kind: dict[Kind, list[Columns]] = {}
    for line in columns:
        if FUNCS[line.kind[1]] in SYNCHRONISING:
            by_kind.setdefault(line.kind, []).append(line)
    nranks = {comm.id: comm.nranks for comm in comms}

    def weight(lines: list[Columns]) -> tuple[int, float]:
        return nranks.get(lines[0].kind[0], 0), sum(float(one.busy_ns.sum()) for one in lines)

    return max(by_kind.values(), key=weight, default=[])


def _table(lines: Sequence[Columns], windows_max: int) -> Floats:
    """Return the medians on one grid, with a row for each line; NaN without a window."""
    window_s = coarsest_s(lines, windows_max)
    coarse = [coarsen(line, window_s) for line in lines]
    first_s = min(int(line.start_s[0]) for line in coarse) // window_s * window_s
    last_s = max(int(line.start_s[-1]) for line in coarse)
    table = np.full((len(coarse), (last_s - first_s) // window_s + 1), np.nan)
    for row, line in enumerate(coarse):
        table[row, (line.start_s - first_s) // window_s] = line.median_ns
    return table


def map_lateness(
    columns: Sequence[Columns],
    comms: Sequence[JoinedComm],
    names: Mapping[int, str],
    windows_max: int,
) -> LateMap:
    """Return the map; `names` is by member. A rank is late by the median less its own time."""
    lines = _choose(columns, comms)
    if len(lines) < RANKS_MIN:
        return ()
    table = _table(lines, windows_max)
    known = ~np.isnan(table)
    enough = known.sum(axis=0) >= RANKS_MIN
    middle = np.full(table.shape[1], np.nan)
    middle[enough] = np.nanmedian(table[:, enough], axis=0)
    late = np.maximum(middle - table, 0.0)
    return tuple(
        (
            names.get(line.member, ""),
            tuple(None if np.isnan(one) else float(one) for one in late[row]),
        )
        for row, line in enumerate(lines)
    )
