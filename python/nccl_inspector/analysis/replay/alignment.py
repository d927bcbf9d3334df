# SPDX-License-Identifier: Apache-2.0
"""Put the clocks of all processes on one time line, by the operations that they have in common.

A collective ends on all its ranks within microseconds, so its ends tell how their clocks stand to
each other: better than any daemon could, and nothing else is believed. While a link is slow that
does not hold: the ranks behind it in a ring end a chunk later, which may be 20 ms. The ends of such
a time contradict each other, so what clocks lack then is taken from the times around it.
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

_NOISE_QUANTILE = 0.75  # of how far a node's differences are from their middle
_NOISE_FAR = 4.0  # times the usual, and
_NOISE_NS_MIN = 100_000.0  # more than this, and a piece's ends do not tell how clocks stand


@dataclass(frozen=True, slots=True)
class _NodeLinks:
    """By node of the alignment, those with which it shares operations, and its lead over each.

    A node is a process in one piece of time: two clocks drift apart over an hour.
    """

    bounds: Ints  # where those of each node begin, and the end
    other: Ints
    ns: Ints
    noise: Floats  # by node: how far apart its differences are, ns; NaN: not known


def _links(node: Ints, sure: Mask, joined: Ints, end: Ints) -> _NodeLinks:
    rows = np.flatnonzero(sure)
    # No node has an operation twice.
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
    # Both ways, in the order of pairs.
    here, there = (np.stack(both, axis=1).ravel() for both in (
        (head[one], own[one]), (own[one], head[one]),
    ))  # fmt: skip
    order = order_groups(here)
    bounds = np.searchsorted(here[order], np.arange(int(node.max()) + 2))
    apart = np.abs(delta - middle[pairs])
    noise = quantiles(own, apart, int(node.max()) + 1, _NOISE_QUANTILE)
    return _NodeLinks(bounds, there[order], np.stack((ns, -ns), axis=1).ravel()[order], noise)


def _spread_out(links: _NodeLinks, start: int, lacks: Ints, known: Mask) -> Ints:
    """Find what all nodes lack that are connected with one; return these nodes."""
    known[start] = True
    found = [np.array([start], np.int64)]
    while len(found[-1]):
        at = found[-1]
        size = links.bounds[at + 1] - links.bounds[at]
        inside = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        edge = np.repeat(links.bounds[at], size) + inside
        origin = np.repeat(at, size)
        fresh = np.flatnonzero(~known[links.other[edge]])
        # The first that reaches a node counts.
        other, place = np.unique(links.other[edge[fresh]], return_index=True)
        place = np.sort(place)
        edge, origin = edge[fresh[place]], origin[fresh[place]]
        other = links.other[edge]
        known[other] = True
        lacks[other] = lacks[origin] + links.ns[edge]
        found.append(other)
    return np.concatenate(found)


def align(member: Ints, end: Ints, sure: Mask, joined: Ints, piece: Ints) -> Ints:
    """Return for each row what its process's clock lacks to the common one, ns.

    `sure`: rows of operations that end on all ranks at once; `joined`: those of one share it.
    It goes from process to process by the middle difference of the ends that two have in common.
    Where nothing connects two parts of a job, each keeps a time of its own.
    """
    node = number_rows(piece, member)
    links = _links(node, sure, joined, end)
    lacks = np.zeros(int(node.max()) + 1, np.int64)
    known = np.diff(links.bounds) == 0
    member_of = member[first_rows(node)]
    before: dict[int, int] = {}  # by process: what it lacked in the piece before
    for start in np.flatnonzero(~known).tolist():
        if not known[start]:
            part = _spread_out(links, start, lacks, known)
            members = member_of[part].tolist()
            same = [at for at, one in enumerate(members) if one in before]
            # The middle clock is nearest to the true time, and goes on as it went.
            went_on = lacks[part[same]] - np.array([before[members[at]] for at in same], np.int64)
            lacks[part] -= round(float(np.median(went_on if same else lacks[part])))
            before.update(zip(members, lacks[part].tolist(), strict=True))
    ends = medians(node, end.astype(float), int(node.max()) + 1)
    one = first_rows(node)
    return _steady(lacks, ends, member_of, piece[one], links.noise)[node]


def _steady(lacks: Ints, when: Floats, member: Ints, piece: Ints, noise: Floats) -> Ints:
    """Return what clocks lack, by node, where noisy pieces are read off the quiet ones.

    Between two of these a clock drifts evenly, and before the first and after the last as it does
    over all of them. `when`: the time of a node, ns. Where half of the pieces are noisy, that is
    how the job is, and nothing is changed.
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
