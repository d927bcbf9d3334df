# SPDX-License-Identifier: Apache-2.0
"""Times in which one process, or all of a node, stood still while the others waited for it.

Exact records are of bursts or pieces, and a stop that is rare is in few of them or in none. But for
each window of the whole job it is known how long each GPU was in operations. While one process
stands still, the others wait in an operation: it is outside for longer than usual, and they are
inside for longer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from nccl_inspector.analysis.chance import binomial_tail
from nccl_inspector.analysis.replay.arrays import Floats, Ints, Mask
from nccl_inspector.analysis.replay.cause import LATE, TOLD_MIN, Cause
from nccl_inspector.analysis.replay.costs import WHOLE
from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.analysis.slow_times.union_windows import UnionWindows, on_grid
from nccl_inspector.model.process import NS_PER_S
from nccl_inspector.summary.unpacked_samples import UnionColumns

# Quantile over the processes of what all have in common. If a node of two stands still, half of the
# processes do.
_COMMON = 0.25
# Shares of a window from which on being late in it may be a stop. Where work is uneven, everybody
# is late by the smaller one here and there, and a stop among that is not seen as one. It is seen
# among windows in which somebody was late by the larger one, and compared with the others' ones.
_LEAST, _MUCH = 0.02, 0.3
_SHORT = 0.05  # share of a window that is too short for a stop
_ALIKE = 0.1  # share of a window within which the middle half of the usual ones is
# Stops are told if they are this many times as long as the longest of the others: those of random
# length reach twice that. Of the others, this quantile, because some may be late themselves.
_TIMES, _OTHERS = 4.0, 0.75
# Shorter ones are told if it cannot be chance that nearly all are the same one's.
_CHANCE_MAX = 1e-4
_LONG_SHARE = 0.3  # long stops: least share of the longest one
_SAME = 0.5  # share of its stops at the times of others' stops that makes them the same seconds
# Share of the time that was replayed, from which on the replay missed none; of a cost, how much of
# it the replay then has seen if it has seen it at all: a stop may reach over borders of pieces.
_WHOLE_SEEN, _SEEN_OF_IT = 0.9, 0.5
_NODE_SHARE = 0.7  # of the stops of its worst process that makes it the node's
# A stop fills its windows, but for those at its ends: it is in at most this many times as many as
# it is long, and some more. What is spread thinly over more is slowness, which the replay tells.
_DENSE, _AT_ENDS = 1.2, 3
_RARE = 0.5  # share of the windows; who stops more often than that is late all the time
_NO_LONGER = 1.1  # times a stop: others' delays at its time up to this length are that stop
_ERROR = 0.05  # of the lost seconds, by the trials


@dataclass(frozen=True, slots=True)
class Stop:
    """A time (Unix) in which somebody stood still; `lost_s`: for so long the others waited."""

    start_s: int
    end_s: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class LoneStops:
    """The stops of one process, or of all processes of a node, in order of time."""

    members: tuple[int, ...]
    node: str  # empty: it is one process
    stops: tuple[Stop, ...]

    @property
    def lost_s(self) -> float:
        """For how long the others waited in all."""
        return sum(one.lost_s for one in self.stops)

    def cause(self, active_s: float, leader: int, ranks: int) -> Cause:
        """Return them as a cause; `ranks`: how many wait, if not all of the job; else 0."""
        start, end = self.stops[0].start_s, self.stops[-1].end_s
        share = min(self.lost_s / active_s, 1.0)
        return Cause(
            LATE,
            share,
            _ERROR * share,
            start * NS_PER_S,
            end * NS_PER_S,
            end - start >= WHOLE * active_s,
            members=self.members,
            among=LateSet(self.members, Sort.NODE, self.node) if self.node else None,
            late_ns=float(np.median([one.lost_s for one in self.stops])) * NS_PER_S,
            rare=True,
            once=len(self.stops) == 1,
            times=len(self.stops),
            leader=self.members == (leader,),
            saved_s=self.lost_s,
            part=ranks,
        )


def find_lone_stops(
    unions: Sequence[Sequence[UnionColumns]],
    members: Sequence[int],
    nodes: Sequence[str],
    parts: Sequence[int],
) -> tuple[LoneStops, ...]:
    """Return who stood still while others waited, the most costly first.

    `members`: the processes that the unions are of; `nodes` and `parts` (of the job, between which
    nobody waits) are by process of the job.
    """
    windows = on_grid(unions)
    low = windows.low() if windows is not None else None
    if windows is None or low is None or low.all():
        return ()
    outside, inside = windows.longer_s(~low)
    # What comes before the first usual window is the job's begin; after the last one is its end.
    usual = np.flatnonzero(~low)
    within = max(int(usual[0]), 1), min(int(usual[-1]) + 1, len(low) - 1)
    who = np.array([members[place] for place in windows.places.tolist()])
    of_part = np.array([parts[one] for one in who.tolist()])
    found: list[LoneStops] = []
    for part in np.unique(of_part).tolist():
        mine = np.flatnonzero((of_part == part) & np.isfinite(outside).all(axis=1))
        if len(mine) > 1:
            names = [nodes[one] for one in who[mine].tolist()]
            for least in (_LEAST, _MUCH):
                found += _of_part(
                    windows, within, outside[mine], inside[mine], who[mine], names, least
                )
    return _once_each(sorted(found, key=lambda one: -one.lost_s))


def _once_each(found: Sequence[LoneStops]) -> tuple[LoneStops, ...]:
    """Return the stops without those at the times of others, so that no second counts twice."""
    kept: list[LoneStops] = []
    taken: list[Stop] = []
    for one in found:
        again = sum(
            stop.lost_s for stop in one.stops
            if any(stop.start_s < other.end_s and other.start_s < stop.end_s for other in taken)
        )  # fmt: skip
        if again <= _SAME * one.lost_s:
            kept.append(one)
            taken += one.stops
    return tuple(kept)


def with_lone_stops(
    causes: Sequence[Cause],
    stops: Sequence[LoneStops],
    active_s: float,
    replayed_s: float,
    leader: int,
    parts: Sequence[int],
) -> tuple[Cause, ...]:
    """Return the causes with those of stops, the most costly first.

    Stops are of the whole job, so they replace what a few pieces say of the same processes' rare
    delays. Of what else is said of them, the more costly one is kept; if the whole job was
    replayed, the replay knows better. `replayed_s`: for how long there are exact records. `leader`,
    `parts`: as in late_causes.py.
    """
    found = list(causes)
    whole = replayed_s >= _WHOLE_SEEN * active_s
    several = len(set(parts)) > 1
    for one in stops:
        ranks = list(parts).count(parts[one.members[0]]) if several else 0
        own = one.cause(active_s, leader, ranks)
        alike = [
            other for other in found
            if other.kind == LATE and not set(other.members).isdisjoint(one.members)
        ]  # fmt: skip
        kept = [
            other
            for other in alike
            if other.cost_share >= own.cost_share * (_SEEN_OF_IT if whole else 1.0)
            if not other.doubtful and (whole or not other.rare)
        ]
        if own.cost_share < TOLD_MIN:
            continue
        waited = [
            other for other in found
            if other not in alike
            and _waited_then(other, one)
            and parts[other.members[0]] == parts[one.members[0]]
        ]  # fmt: skip
        gone, more = (waited, []) if kept else ([*waited, *alike], [own])
        found = [*(other for other in found if other not in gone), *more]
    return tuple(sorted(found, key=lambda other: -other.cost_share))


def _waited_then(other: Cause, stops: LoneStops) -> bool:
    """Tell whether what was seen once of others are the same seconds, in which they only waited.

    While one stands still the others are in an operation, so their next one comes late, too. If the
    records of that time are in two pieces, the replay does not know what they waited for.
    """
    return (
        other.kind == LATE
        and other.once
        and other.times == 0
        and any(
            other.start < one.end_s * NS_PER_S
            and one.start_s * NS_PER_S < other.end
            and other.late_ns <= _NO_LONGER * one.lost_s * NS_PER_S
            for one in stops.stops
        )
    )


def _of_part(
    windows: UnionWindows,
    within: tuple[int, int],
    outside: Floats,
    inside: Floats,
    who: Ints,
    nodes: Sequence[str],
    least: float,
) -> list[LoneStops]:
    common = np.quantile(outside, _COMMON, axis=0, method="lower")
    of_rows = partial(
        _Candidate, outside=outside, common=common, within=within, window_s=windows.window_s,
        least_s=least * windows.window_s,
    )  # fmt: skip
    singles = _Sort([of_rows([row]) for row in range(len(who))])
    by_node: dict[str, list[int]] = defaultdict(list)
    for row, node in enumerate(nodes):
        by_node[node].append(row)
    groups = _Sort([of_rows(rows) for rows in by_node.values() if len(rows) > 1])
    found, of_node = [], set()
    for one in groups.candidates:
        stops = _told(windows, one, groups, inside)
        worst_s = max(singles.candidates[row].sum_s for row in one.rows)
        if stops and one.sum_s >= _NODE_SHARE * worst_s:
            members = tuple(who[one.rows].tolist())
            found.append(LoneStops(members, nodes[one.rows[0]], stops))
            of_node.update(one.rows)
    for one in singles.candidates:
        stops = _told(windows, one, singles, inside) if one.rows[0] not in of_node else ()
        if stops:
            found.append(LoneStops((int(who[one.rows[0]]),), "", stops))
    return found


class _Times(NamedTuple):
    """Times in which somebody was late: first and last window of each, and the seconds."""

    first: Ints
    last: Ints
    length_s: Floats

    def of(self, which: Mask) -> "_Times":
        return _Times(self.first[which], self.last[which], self.length_s[which])

    def dense(self, window_s: int) -> Mask:
        windows = self.last - self.first + 1
        return np.asarray(windows <= _DENSE * self.length_s / window_s + _AT_ENDS)


def _always(own: Floats, window_s: int) -> float:
    """Return by how much windows without stops differ from what was taken as usual; 0: not known.

    It is a mean, because sums are made of it, of the middle half: few windows may be far off.
    """
    if not len(own):
        return 0.0
    low, high = np.quantile(own, (0.25, 0.75))
    if high - low > _ALIKE * window_s:
        return 0.0
    middle = own[(low <= own) & (own <= high)]
    return float(middle.mean() if len(middle) else np.median(own))  # of two, none is between


class _Candidate:
    """A process or a node, by rows of the tables, and when it was late."""

    def __init__(
        self, rows: list[int], outside: Floats, common: Floats, within: tuple[int, int],
        window_s: int, least_s: float,
    ) -> None:  # fmt: skip
        first, last = within
        self.rows = rows
        # What most of them have in common.
        own = np.median(outside[rows], axis=0) if len(rows) > 1 else outside[rows[0]]
        late = own - common
        # Where stops are many, what is usual was found from windows with stops in them, too.
        others = own[first:last][late[first:last] < _LEAST * window_s]
        own = own - _always(others, window_s)
        late[:first] = late[last:] = 0.0
        self.windows = len(late)
        # What is spread thinly is no stop to be told, but others have it, too: it is how long
        # somebody may be late in a row by chance.
        times = _times(late, own, window_s, least_s)
        times = times.of(times.length_s >= _SHORT * window_s)
        self.lengths = times.length_s
        self.stops = times.of(times.dense(window_s))

    @property
    def longest_s(self) -> float:
        return float(self.stops.length_s.max(initial=0.0))

    @property
    def sum_s(self) -> float:
        return float(self.stops.length_s.sum())


class _Sort:
    """Candidates that are compared with each other: all processes or all nodes."""

    def __init__(self, candidates: Sequence[_Candidate]) -> None:
        self.candidates = candidates
        self._longest = np.array([one.lengths.max(initial=0.0) for one in candidates])
        self._lengths = np.sort(np.concatenate([np.empty(0), *(one.lengths for one in candidates)]))

    def usual_s(self, one: _Candidate) -> float:
        """Return how long most of the others were late at most."""
        others = [other is not one for other in self.candidates]
        return float(np.quantile(self._longest[others], _OTHERS))

    def longer(self, one: _Candidate, length_s: float) -> int:
        """Return how many times the others were late for so long."""
        every = len(self._lengths) - int(np.searchsorted(self._lengths, length_s))
        return every - int((one.lengths >= length_s).sum())


def _told(windows: UnionWindows, one: _Candidate, sort: _Sort, inside: Floats) -> tuple[Stop, ...]:
    """Return the stops of one of a sort (processes or nodes) that are not chance."""
    count, stops = len(sort.candidates), one.stops
    # What comes in most windows is no stop.
    if not len(stops.first) or count < 2 or len(stops.first) > _RARE * one.windows:
        return ()
    least_s = _TIMES * sort.usual_s(one)
    long_s = _LONG_SHARE * one.longest_s
    mine = int((stops.length_s >= long_s).sum())
    every = mine + sort.longer(one, long_s)
    if min(1.0, count * binomial_tail(mine, every, 1 / count)) <= _CHANCE_MAX:
        least_s = 0.0
    rest = np.ones(len(inside), dtype=bool)
    rest[one.rows] = False
    found = []
    for first, last, length_s in zip(*stops.of(stops.length_s >= least_s), strict=True):
        # The windows next to it may have some of the waiting.
        waited = np.median(inside[rest, max(first - 1, 0) : last + 2], axis=0)
        lost_s = min(float(length_s), float(np.maximum(waited, 0.0).sum()))
        if lost_s > 0:
            at_s = windows.start_s + int(first) * windows.window_s
            end_s = at_s + int(last - first + 1) * windows.window_s
            found.append(Stop(at_s, end_s, lost_s))
    return tuple(found)


def _times(late: Floats, own: Floats, window_s: int, least_s: float) -> _Times:
    """Return when somebody was late, in order.

    An operation that began in the window before counts in the window in which it ended, so the
    windows on both sides belong to it. `late`: for how much longer than the others it was outside
    operations, `own`: than usual. The smaller one counts, because while the others wait in an
    operation some go on with work that they would otherwise do outside.
    """
    at = np.flatnonzero(late >= least_s)
    sums = np.cumsum([np.append(0.0, late), np.append(0.0, own)], axis=1)
    whole, parts = _in_a_row(at, 2, sums), _in_a_row(at, 1, sums)
    of_whole = np.searchsorted(whole.first, parts.first, side="right") - 1
    # Stops that follow each other closely are counted one by one.
    has_stops = np.bincount(of_whole[parts.dense(window_s)], minlength=len(whole.first)) > 0
    split = has_stops & ~whole.dense(window_s)
    some, more = whole.of(~split), parts.of(split[of_whole])
    first = np.append(some.first, more.first)
    order = np.argsort(first)
    last, length_s = np.append(some.last, more.last), np.append(some.length_s, more.length_s)
    return _Times(first[order], last[order], length_s[order])


def _in_a_row(at: Ints, apart: int, sums: Floats) -> _Times:
    """Return windows in groups, between which more than so many windows lie.

    `sums`: of how long somebody was late, each from the first window on.
    """
    breaks = np.flatnonzero(np.diff(at) > apart)
    first = at[np.append(0, breaks + 1)] if len(at) else at
    last = at[np.append(breaks, len(at) - 1)] if len(at) else at
    begin, end = np.maximum(first - 1, 0), np.minimum(last + 2, sums.shape[1] - 1)
    return _Times(first, last, (sums[:, end] - sums[:, begin]).min(axis=0))
