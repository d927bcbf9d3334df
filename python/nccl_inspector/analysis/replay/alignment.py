# SPDX-License-Identifier: Apache-2.0
"""Put the clocks of all processes on one time line, from the operations that they have in common.

A collective ends on all its ranks within microseconds, so its ends tell how the ranks' clocks
differ, better than any daemon could; nothing else is believed. This does not hold while a link is
slow: the ranks behind it in a ring end a chunk later, which may be 20 ms. Then the ends contradict
each other, so for such a time the clocks are taken from the times around it.
"""

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


@dataclass(frozen=True, slots=True)
class _NodeLinks:
    """For each node of the alignment, the nodes it shares operations with, and its lead over each.

    A node is a process in one piece of time, because two clocks drift apart over an hour.
    """

    bounds: Ints  # where the links of each node begin, and the end
    other: Ints
    ns: Ints
    noise: Floats  # by node: the spread of its differences, ns; NaN: not known


def _links(node: Ints, sure: Mask, joined: Ints, end: Ints) -> _NodeLinks:
    rows = np.flatnonzero(sure)
    # A node has each operation once.
    rows = rows[np.argsort(joined[rows] * (int(node.max()) + 1) + node[rows])]
    new = np.append(True, joined[rows][1:] != joined[rows][:-1])[: len(rows)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    head, own, delta = node[rows[first]], node[rows], end[rows[first]] - end[rows]
    differ = head != own
    head, own, delta = head[differ], own[differ], delta[differ]
    pairs = number_rows(head, own)
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


def align(member: Ints, end: Ints, sure: Mask, joined: Ints, piece: Ints) -> Ints:
    """Return for each row how much must be added to its process's clock for common time, in ns.

    `sure`: rows of operations that end on all ranks at once; `joined`: rows of one operation share
    it. From process to process, the correction is the median difference of the ends that two have
    in common. If nothing connects two parts of a job, each part keeps a time of its own.
    """
    node = number_rows(piece, member)
    links = _links(node, sure, joined, end)
    lacks = np.zeros(int(node.max()) + 1, np.int64)
    known = np.diff(links.bounds) == 0
    member_of = member[first_rows(node)]
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
    ends = medians(node, end.astype(float), int(node.max()) + 1)
    one = first_rows(node)
    return _steady(lacks, ends, member_of, piece[one], links.noise)[node]


def _steady(lacks: Ints, when: Floats, member: Ints, piece: Ints, noise: Floats) -> Ints:
    """Return the corrections by node; those of noisy pieces are derived from quiet ones.

    Between two quiet pieces a clock drifts evenly; before the first and after the last it drifts as
    it does over all of them. `when`: the time of a node, ns. If half of the pieces are noisy, that
    is normal for the job, and nothing is changed.
    """
    pieces = number_rows(piece)
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
