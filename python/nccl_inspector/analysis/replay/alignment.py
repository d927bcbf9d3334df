# SPDX-License-Identifier: Apache-2.0
"""Put the clocks of all processes on one time line, from the operations that they have in common.

A collective ends on all its ranks within microseconds, so its ends tell how the ranks' clocks
differ, better than any daemon could; nothing else is believed. The shortest operations tell it
best. This does not hold while a link is slow: the ranks behind it in a ring end a chunk later,
which may be 20 ms. Then the ends contradict each other, so for such a time the clocks are taken
from the times around it.

Clocks drift apart, by up to some hundred microseconds a second. So a correction is exact at the
middle of a piece of time, and between two middles it changes evenly.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Floats,
    Ints,
    Mask,
    first_rows,
    medians,
    number_rows,
    order_groups,
    quantiles,
)

_NOISE_QUANTILE = 0.75  # quantile of the distances of a node's differences from their median
_NOISE_FAR = 4.0  # a piece is noisy above this many times the usual noise,
_NOISE_NS_MIN = 100_000.0  # and above this; then its ends do not tell how clocks differ
_SHORT_QUANTILE = 0.25  # quantile of T: the ends of these operations are compared
_ROUNDS = 2  # the second round finds what drift within pieces hid from the first
_DRIFT_MAX = 1e-3  # ns per ns; a clock that changes faster was set
_FINE_PIECES = 4  # a job of fewer pieces is cut into this many times as many


@dataclass(frozen=True, slots=True)
class _NodeLinks:
    """For each node of the alignment, the nodes it shares operations with, and its lead over each.

    A node is a process in one piece of time, because two clocks drift apart over an hour.
    """

    bounds: Ints  # where the links of each node begin, and the end
    other: Ints
    ns: Ints
    noise: Floats  # by node: the spread of its differences, ns; NaN: not known


def _links(node: Ints, sure: Mask, joined: Ints, end: Ints, taken: Floats) -> _NodeLinks:
    rows = np.flatnonzero(sure)
    # A node has each operation once.
    rows = rows[np.argsort(joined[rows] * (int(node.max()) + 1) + node[rows])]
    new = np.append(True, joined[rows][1:] != joined[rows][:-1])[: len(rows)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    head, own, delta = node[rows[first]], node[rows], end[rows[first]] - end[rows]
    differ = head != own
    taken = taken[rows[differ]]
    head, own, delta = head[differ], own[differ], delta[differ]
    pairs = number_rows(head, own)
    many = int(pairs.max(initial=-1)) + 1
    short = taken <= quantiles(pairs, taken, many, _SHORT_QUANTILE)[pairs]
    head, own, delta, pairs = head[short], own[short], delta[short], pairs[short]
    middle = medians(pairs, delta.astype(float), int(pairs.max(initial=-1)) + 1)
    one = first_rows(pairs)
    ns = np.rint(middle).astype(np.int64)
    # Each link in both directions, in the order of pairs.
    here, there = (np.stack(both, axis=1).ravel() for both in (
        (head[one], own[one]), (own[one], head[one]),
    ))  # fmt: skip
    order = order_groups(here)
    bounds = np.searchsorted(here[order], np.arange(int(node.max()) + 2))
    apart = np.abs(delta - middle[pairs])
    noise = quantiles(own, apart, int(node.max()) + 1, _NOISE_QUANTILE)
    return _NodeLinks(bounds, there[order], np.stack((ns, -ns), axis=1).ravel()[order], noise)


def _spread_out(links: _NodeLinks, start: int, lacks: Ints, known: Mask) -> Ints:
    """Fill in `lacks` for all nodes connected with `start`; return these nodes."""
    known[start] = True
    found = [np.array([start], np.int64)]
    while len(found[-1]):
        at = found[-1]
        size = links.bounds[at + 1] - links.bounds[at]
        inside = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        edge = np.repeat(links.bounds[at], size) + inside
        origin = np.repeat(at, size)
        fresh = np.flatnonzero(~known[links.other[edge]])
        # The first link that reaches a node counts.
        other, place = np.unique(links.other[edge[fresh]], return_index=True)
        place = np.sort(place)
        edge, origin = edge[fresh[place]], origin[fresh[place]]
        other = links.other[edge]
        known[other] = True
        lacks[other] = lacks[origin] + links.ns[edge]
        found.append(other)
    return np.concatenate(found)


def align(
    member: Ints, begin: Ints, end: Ints, sure: Mask, joined: Ints, piece: Ints
) -> tuple[Ints, Ints]:
    """Return begins and ends in common time, in ns.

    `sure`: rows of operations that end on all ranks at once; `joined`: rows of one operation share
    it. From process to process, the correction is the median difference of the ends that two have
    in common. If nothing connects two parts of a job, each part keeps a time of its own. The order
    of what one process did stays as it is.
    """
    taken = np.full(int(joined.max()) + 1, np.inf)
    np.minimum.at(taken, joined, (end - begin).astype(float))
    if int(number_rows(piece).max()) + 1 < _FINE_PIECES:
        piece = _cut(piece, joined, end)
    node = number_rows(piece, member)
    one = first_rows(node)
    places = _Places(member[one], number_rows(piece)[one])
    by_member, of_member = _split(member), _split(places.member)
    for _ in range(_ROUNDS):
        links = _links(node, sure, joined, end, taken[joined])
        low = int(end.min())
        middle = medians(node, (end - low).astype(float), int(node.max()) + 1)
        lacks = _steady(_corrections(links, places.member), places, middle, links.noise)
        begin, end = begin.copy(), end.copy()
        for rows, own in zip(by_member, of_member, strict=True):
            if len(rows):
                line = _line(middle[own], lacks[own])
                for times in (begin, end):
                    since = (times[rows] - low).astype(float)
                    times[rows] += np.rint(line(since)).astype(np.int64)
    return begin, end


@dataclass(frozen=True, slots=True)
class _Places:
    """For each node of the alignment its process, and its piece of time."""

    member: Ints
    piece: Ints


def _split(member: Ints) -> list[Ints]:
    """Return the rows of each process."""
    return np.split(order_groups(member), np.cumsum(np.bincount(member))[:-1])


def _cut(piece: Ints, joined: Ints, end: Ints) -> Ints:
    """Return finer pieces; rows of one operation stay in one piece."""
    when = (end - int(end.min())).astype(float)
    when = medians(joined, when, int(joined.max()) + 1)[joined]
    pieces = number_rows(piece)
    first, last = np.full(int(pieces.max()) + 1, np.inf), np.zeros(int(pieces.max()) + 1)
    np.minimum.at(first, pieces, when)
    np.maximum.at(last, pieces, when)
    part = _FINE_PIECES * (when - first[pieces]) / np.maximum(last - first, 1.0)[pieces]
    finer: Ints = pieces * _FINE_PIECES + np.minimum(part, _FINE_PIECES - 1).astype(np.int64)
    return finer


def _corrections(links: _NodeLinks, member_of: Ints) -> Ints:
    """Return the correction of each node, in ns; `member_of`: its process."""
    lacks = np.zeros(len(member_of), np.int64)
    known = np.diff(links.bounds) == 0
    before: dict[int, int] = {}  # by process: its correction in the last piece
    for start in np.flatnonzero(~known).tolist():
        if not known[start]:
            part = _spread_out(links, start, lacks, known)
            members = member_of[part].tolist()
            same = [at for at, one in enumerate(members) if one in before]
            # The median clock is nearest to the true time, and continues from the last piece.
            went_on = lacks[part[same]] - np.array([before[members[at]] for at in same], np.int64)
            lacks[part] -= round(float(np.median(went_on if same else lacks[part])))
            before.update(zip(members, lacks[part].tolist(), strict=True))
    return lacks


def _line(when: Floats, lacks: Ints) -> Callable[[Floats], Floats]:
    """Return the correction of a process at any time, from those at some times; all in ns.

    It changes evenly between them, and goes on so before and after. If a clock was set, it changes
    at once.
    """
    order = np.argsort(when)
    order = order[np.append(True, np.diff(when[order]) > 0)]
    x, y = when[order], lacks[order].astype(float)
    drift = np.diff(y) / np.diff(x)
    was_set = np.flatnonzero(np.abs(drift) > _DRIFT_MAX)
    drift[was_set] = 0.0
    first, last = (drift[0], drift[-1]) if len(drift) else (0.0, 0.0)
    half = (x[was_set] + x[was_set + 1]) / 2
    at = np.repeat(was_set + 1, 2)
    knots = np.insert(x, at, np.stack((half, half + 1), axis=1).ravel())
    values = np.insert(y, at, np.stack((y[was_set], y[was_set + 1]), axis=1).ravel())

    def line(time: Floats) -> Floats:
        before, after = np.minimum(time - x[0], 0.0), np.maximum(time - x[-1], 0.0)
        found: Floats = np.interp(time, knots, values) + before * first + after * last
        return found

    return line


def _steady(lacks: Ints, places: _Places, when: Floats, noise: Floats) -> Ints:
    """Return the corrections by node; those of noisy pieces are derived from quiet ones.

    Between two quiet pieces a clock drifts evenly; before the first and after the last it drifts as
    it does over all of them. `when`: the middle of a node, ns. If half of the pieces are noisy,
    that is normal for the job, and nothing is changed.
    """
    pieces, member = places.piece, places.member
    told = np.flatnonzero(~np.isnan(noise))
    by_piece = medians(pieces[told], noise[told], int(pieces.max()) + 1)
    if np.isnan(by_piece).all():
        return lacks
    limit = max(_NOISE_FAR * float(np.nanmedian(by_piece)), _NOISE_NS_MIN)
    noisy = by_piece[pieces] > limit
    if not noisy.any():
        return lacks
    found = lacks.copy()
    for one in np.unique(member[noisy]).tolist():
        mine = np.flatnonzero(member == one)
        quiet, rest = mine[~noisy[mine]], mine[noisy[mine]]
        if len(quiet) < 2:
            continue
        quiet = quiet[np.argsort(when[quiet])]
        x, y = when[quiet], lacks[quiet].astype(float)
        slope = (y[-1] - y[0]) / max(x[-1] - x[0], 1.0)
        beyond = when[rest] - np.clip(when[rest], x[0], x[-1])
        found[rest] = np.rint(np.interp(when[rest], x, y) + slope * beyond).astype(np.int64)
    return found
