# SPDX-License-Identifier: Apache-2.0
"""Join the ranks' time lines of one kind of operation into one series.

In each window T is the shortest time of any operation on any rank, because the rank that came last
did not wait, whichever rank it was. So it is the fastest transfer of the window and not the usual
one, and a little shorter than T of the whole job (analysis/join.py); windows are compared only with
each other. What the typical rank took beyond T is waiting, plus the spread of T. Only ranks whose
windows have the same operations are compared: a rank that was silent, began later or has another
clock has others.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.line_columns import (
    Columns,
    Floats,
    Ints,
    Kind,
    coarsen,
    coarsest_s,
)
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.process import FUNCS, P2P

WINDOWS_MAX = 1000
ALIKE_SHARE = 0.5  # share of a window's operations that a rank must have in common with the others
_SAMPLE_RANKS = 63  # their median tells which operations a window has
_RANKS_AT_ONCE = 256  # their tables fit the cache


@dataclass(frozen=True, slots=True)
class Track:
    """One kind of operation over all ranks. Arrays have a value for each window, or NaN.

    `time_ns` is T; for Send, Recv and SendRecv it is the ranks' median, waiting included.
    """

    kind: Kind
    nranks: int
    window_s: int
    start_s: int  # Unix time of the first window, a multiple of window_s
    time_ns: Floats
    typical_ns: Floats  # the median of the ranks' medians
    spread_ns: Floats  # the highest of these medians minus the lowest
    ops: Floats  # of the rank with most; 0: none
    bytes: Floats
    busy_ns: Floats  # mean over the ranks: transfer and waiting
    ranks: Floats  # ranks that T comes from
    members: tuple[int, ...]  # processes whose lines these are
    since_s: int  # earlier operations may be missing
    notes: tuple[str, ...]

    @property
    def func(self) -> str:
        """The function's name."""
        return FUNCS[self.kind[1]]

    @property
    def windows(self) -> int:
        """The number of windows, with or without operations."""
        return len(self.ops)

    @property
    def factor(self) -> float:
        """The bytes on the bus for each byte of a message."""
        return bus_factor(self.func, self.nranks)

    def _gbs(self, time_ns: Floats) -> Floats:
        found = np.full(self.windows, np.nan)
        known = (self.ops > 0) & (time_ns > 0) & (self.factor > 0)
        mean = self.bytes[known] / self.ops[known]
        found[known] = mean * self.factor / time_ns[known]
        return found

    @property
    def bus_gbs(self) -> Floats:
        """The bus bandwidth by T, in GB/s."""
        return self._gbs(self.time_ns)

    @property
    def felt_gbs(self) -> Floats:
        """The bus bandwidth that the typical rank had, waiting included, in GB/s."""
        return self._gbs(self.typical_ns)


@dataclass(frozen=True, slots=True)
class _LineGrid:
    """Where the windows of the lines lie on a common grid."""

    start_s: int
    windows: int
    places: dict[int, slice | Ints]  # by id() of the line; most lines have no hole


def _grid(lines: Sequence[Columns], window_s: int) -> _LineGrid:
    start_s = min(int(line.start_s[0]) for line in lines)
    end_s = max(int(line.start_s[-1]) for line in lines) + window_s
    places: dict[int, slice | Ints] = {}
    for line in lines:
        first = (int(line.start_s[0]) - start_s) // window_s
        last = (int(line.start_s[-1]) - start_s) // window_s
        whole = last - first + 1 == len(line.start_s)
        places[id(line)] = slice(first, last + 1) if whole else (line.start_s - start_s) // window_s
    return _LineGrid(start_s, (end_s - start_s) // window_s, places)


class _Tables:
    """Columns of some lines on the grid: a row for each line, NaN where it has no window."""

    def __init__(self, grid: _LineGrid, lines: Sequence[Columns]) -> None:
        self.lines = lines
        self._grid, self._tables = grid, dict[str, Floats]()

    def __getitem__(self, name: str) -> Floats:
        """Return the table of one column; do not change it."""
        if name not in self._tables:
            table = np.empty((len(self.lines), self._grid.windows))
            for row, line in enumerate(self.lines):
                places = self._grid.places[id(line)]
                if len(line.start_s) < self._grid.windows:
                    table[row] = np.nan
                table[row, places] = getattr(line, name)
            self._tables[name] = table
        return self._tables[name]


def _middle(table: Floats) -> Floats:
    """Return the median of each column's numbers, NaN if there are none.

    Like np.nanmedian, but in a tenth of its time and without its warning.
    """
    ordered = np.sort(table, axis=0)  # NaN last
    counts = np.count_nonzero(~np.isnan(table), axis=0)
    columns = np.arange(table.shape[1])
    low = ordered[np.maximum((counts - 1) // 2, 0), columns]
    high = ordered[np.minimum(counts // 2, len(table) - 1), columns]
    return np.where(counts > 0, (low + high) / 2, np.nan)


class _Usual:
    """What most ranks have in each window: which operations, and how many."""

    def __init__(self, tables: _Tables) -> None:
        self._low = _middle(tables["first_index"])
        self._high = _middle(tables["last_index"])
        self._ops = _middle(tables["ops"])

    def alike(self, tables: _Tables) -> NDArray[np.bool_]:
        """Return a mask of the lines' windows that have mostly those operations."""
        first, last = tables["first_index"], tables["last_index"]
        longer = np.maximum(self._high - self._low, last - first) + 1
        common = np.minimum(last, self._high) - np.maximum(first, self._low) + 1
        enough: NDArray[np.bool_] = tables["ops"] >= ALIKE_SHARE * self._ops
        return enough & (common >= ALIKE_SHARE * longer)


def _sample(grid: _LineGrid, lines: Sequence[Columns]) -> Sequence[Columns]:
    """Return some ranks, evenly chosen; all ranks if some windows would be missing."""
    some = lines[:: max(len(lines) // _SAMPLE_RANKS, 1)]
    if len(some) == len(lines):
        return lines
    has = np.zeros((2, grid.windows), dtype=bool)
    for row, group in enumerate((some, lines)):
        for line in group:
            has[row, grid.places[id(line)]] = True
    return some if (has[0] == has[1]).all() else lines


class _Sums:
    """The results for the windows, while ranks are added bit by bit."""

    def __init__(self, windows: int) -> None:
        self.least, self.lowest, self.most = np.full((3, windows), np.nan)
        self.ops, self.bytes, self.busy, self.ranks, self.have = np.zeros((5, windows))

    def add(self, tables: _Tables, usual: _Usual) -> None:
        """Add some ranks."""
        alike = usual.alike(tables)
        shortest = np.where(alike, tables["min_ns"], np.nan)
        self.least = np.fmin(self.least, np.fmin.reduce(shortest, axis=0))
        times = np.where(alike, tables["median_ns"], np.nan)
        self.lowest = np.fmin(self.lowest, np.fmin.reduce(times, axis=0))
        self.most = np.fmax(self.most, np.fmax.reduce(times, axis=0))
        self.have += np.count_nonzero(tables["ops"] > 0, axis=0)
        self.ranks += np.count_nonzero(alike, axis=0)
        self.busy += np.where(alike, tables["busy_ns"], 0.0).sum(axis=0)
        ops = np.where(alike, tables["ops"], 0.0)
        busiest, columns = ops.argmax(axis=0), np.arange(ops.shape[1])
        most = ops[busiest, columns]
        better = most > self.ops
        self.bytes = np.where(better, tables["bytes"][busiest, columns], self.bytes)
        self.ops = np.where(better, most, self.ops)


def _notes(nranks: int, lines: int, sums: _Sums) -> tuple[str, ...]:
    notes = []
    if lines < nranks:
        notes.append(f"{nranks - lines} of {nranks} ranks without a time line")
    used = sums.ranks[sums.ranks > 0]
    lacking = int(np.count_nonzero(used < lines))
    if lacking:
        notes.append(
            f"{lacking} of {len(used)} windows not of all ranks that have a line: "
            f"at least {int(used.min())} of {lines}"
        )
    other = int(np.count_nonzero((sums.have > 0) & (sums.ranks == 0)))
    if other:
        notes.append(f"{other} windows left out: their ranks tell of different operations")
    return tuple(notes)


def _distinct(lines: Sequence[Columns]) -> tuple[list[Columns], tuple[str, ...]]:
    """Return one line for each rank; of two (an id that was used again) the busier one."""
    by_rank: dict[int, Columns] = {}
    for line in lines:
        known = by_rank.get(line.rank)
        if known is None or line.busy_ns.sum() > known.busy_ns.sum():
            by_rank[line.rank] = line
    twice = len(lines) - len(by_rank)
    notes = (f"{twice} time lines left out: their rank has another one",) if twice else ()
    return list(by_rank.values()), notes


def make_track(given: Sequence[Columns], nranks: int, windows_max: int = WINDOWS_MAX) -> Track:
    """Return the series of at least one line of one kind; `nranks` is that of its communicator."""
    lines, notes = _distinct(given)
    window_s = coarsest_s(lines, windows_max)
    lines = [coarsen(line, window_s) for line in lines]
    grid = _grid(lines, window_s)
    some = _Tables(grid, _sample(grid, lines))
    usual, sums = _Usual(some), _Sums(grid.windows)
    if len(some.lines) == len(lines) <= _RANKS_AT_ONCE:
        sums.add(some, usual)
    else:
        for at in range(0, len(lines), _RANKS_AT_ONCE):
            sums.add(_Tables(grid, lines[at : at + _RANKS_AT_ONCE]), usual)
    typical = _middle(np.where(usual.alike(some), some["median_ns"], np.nan))
    return Track(
        kind=lines[0].kind,
        nranks=nranks,
        window_s=window_s,
        start_s=grid.start_s,
        time_ns=typical if FUNCS[lines[0].kind[1]] in P2P else sums.least,
        typical_ns=typical,
        spread_ns=sums.most - sums.lowest,
        ops=sums.ops,
        bytes=sums.bytes,
        busy_ns=sums.busy / np.maximum(sums.ranks, 1),
        ranks=sums.ranks,
        members=tuple(line.member for line in lines),
        since_s=max(line.since_s for line in lines),
        notes=notes + _notes(nranks, len(lines), sums),
    )


def make_tracks(lines: Iterable[Columns], nranks: dict[int, int]) -> list[Track]:
    """Return the series of all kinds, the busiest first; `nranks` is by communicator's id.

    Lines of communicators that are not in `nranks`, or without a known rank, are left out.
    """
    kinds: dict[Kind, list[Columns]] = defaultdict(list)
    for line in lines:
        if line.kind[0] in nranks and line.rank >= 0:
            kinds[line.kind].append(line)
    tracks = [make_track(found, nranks[kind[0]]) for kind, found in kinds.items()]
    return sorted(tracks, key=lambda track: (-float(track.busy_ns.sum()), track.kind))
