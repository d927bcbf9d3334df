# SPDX-License-Identifier: Apache-2.0
"""Where a series of rates was lower than usual, by penalised least squares after the fact.

The logarithms of the values, after a running median of three against single spikes, are cut into
pieces of one level each. The cut has the least sum of squares plus a penalty per piece, and is
found exactly. The noise is estimated from differences of neighbours, which steps do not change. All
series are cut together, because a job may have thousands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA

WINDOWS_MIN = 12  # with fewer values a series is not judged
SEGMENT_MIN = 3  # windows with a value
VALUES_MIN = 384  # the least number for the penalty: in a shorter series chance dips are not rarer
PENALTY = 4.0  # times ln(n), in units of the noise's variance
NOISE_MIN = 0.005
BASELINE_SHARE = 0.7  # share of the time in which the level is at most the baseline
DEPTH_MIN = 0.05
# Two would do for a piece chosen in advance, but this one was chosen because it is low, and
# neighbouring values are correlated. In seeded trials, 5 loses 0.2 % of the dips of 10 % and
# removes half of the false ones.
ERRORS_MIN = 5.0
_CHUNK = 64  # series cut together: their data fit the cache
_MEDIAN_ERROR = 1.2533  # standard error of a median, in units of sigma / sqrt(n)
# Of normal differences: the share that is taken, of the smaller ones, and its mean / sigma.
_SMALLER, _SMALLER_MEAN = 0.8, 0.5586


@dataclass(frozen=True, slots=True)
class Dip:
    """Windows from `first` to before `end`; `depth` is a negative share of the baseline."""

    first: int
    end: int
    depth: float
    level: float  # median, in the unit of the series


@dataclass(frozen=True, slots=True)
class Segmentation:
    """The result for one series; `levels` are in the series' unit, `noise` is a share.

    If `too_short` is set, the other fields are empty.
    """

    too_short: bool
    baseline: float = 0.0
    noise: float = 0.0
    cuts: tuple[int, ...] = ()  # where the pieces begin, and the end of the last one
    levels: tuple[float, ...] = ()
    dips: tuple[Dip, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The values of one series: their places, their logarithms, and these scaled by the noise."""

    places: NDArray[np.intp]
    logs: Floats
    scaled: Floats
    weight: float
    noise: float


def running_median(values: Floats) -> Floats:
    """Return the median of each value and its two neighbours; the first and last value stay."""
    if len(values) < 3:
        return values
    found = values.copy()
    one, two, three = values[:-2], values[1:-1], values[2:]
    found[1:-1] = np.maximum(np.minimum(one, two), np.minimum(np.maximum(one, two), three))
    return found


def noise_of(logs: Floats) -> float:
    """Return the noise as a standard deviation, from the median of neighbours' differences.

    Times of a box are middles of buckets 3 % wide, so the median difference may be 0 although there
    is noise. The mean of the smaller differences is not 0 then.
    """
    apart = np.sort(np.abs(np.diff(logs)))
    small = apart[: max(int(_SMALLER * len(apart)), 1)]
    by_mean = float(small.mean()) / _SMALLER_MEAN
    return max(MAD_TO_SIGMA * float(np.median(apart)), by_mean) / 2**0.5


def _prepare(values: Floats, weight: float) -> _Prepared | None:
    """Return what is needed of a series; None: too few values. NaN and 0 count as no value."""
    places = np.flatnonzero(values > 0)
    if len(places) * weight < WINDOWS_MIN:
        return None
    logs = np.log(values[places])
    noise = max(noise_of(logs[:: max(round(1 / weight), 1)]), NOISE_MIN)
    scaled = (running_median(logs) - np.median(logs)) / noise
    return _Prepared(places, logs, scaled, weight, noise)


def _best_cuts(prepared: Sequence[_Prepared], looked_at: int) -> list[list[int]]:
    """Return for each series where its pieces begin, among its values, and where the last ends.

    best[t] is the least cost of the first t values: the minimum over all places s of the last cut
    of best[s] + the squares of s to t about their mean + the penalty.
    """
    rows, longest = len(prepared), max(len(one.logs) for one in prepared)
    weight = prepared[0].weight
    values, squares = np.zeros((rows, longest + 1)), np.zeros((rows, longest + 1))
    for row, one in enumerate(prepared):
        values[row, 1 : len(one.logs) + 1] = np.cumsum(weight * one.scaled)
        squares[row, 1 : len(one.logs) + 1] = np.cumsum(weight * one.scaled**2)
    penalty = np.array([PENALTY * log(max(len(one.logs) * weight, looked_at)) for one in prepared])
    rest = np.full((rows, longest + 1), np.inf)  # best minus the squares up to there
    rest[:, 0] = 0.0
    last = np.zeros((rows, longest + 1), dtype=np.intp)
    every, cost = np.arange(rows), np.empty((rows, longest))
    for end in range(SEGMENT_MIN, longest + 1):
        to = end - SEGMENT_MIN + 1
        costs = cost[:, :to]
        np.subtract(values[:, end, None], values[:, :to], out=costs)
        np.multiply(costs, costs, out=costs)
        np.multiply(costs, 1 / (weight * np.arange(end, end - to, -1)), out=costs)
        np.subtract(rest[:, :to], costs, out=costs)
        place = costs.argmin(axis=1)
        last[:, end] = place
        rest[:, end] = costs[every, place] + penalty
    return [_walk_back(last[row], len(one.logs)) for row, one in enumerate(prepared)]


def _walk_back(last: NDArray[np.intp], count: int) -> list[int]:
    cuts = [count]
    while cuts[-1] > 0:
        cuts.append(int(last[cuts[-1]]))
    return cuts[::-1]


def _baseline(levels: Sequence[float], lengths: Sequence[int]) -> float:
    """Return the level that is not exceeded in BASELINE_SHARE of the time."""
    wanted, seen = BASELINE_SHARE * sum(lengths), 0
    for level, length in sorted(zip(levels, lengths, strict=True)):
        seen += length
        if seen >= wanted:
            return level
    raise ValueError("no pieces")


def _dips(
    one: _Prepared, cuts: Sequence[int], levels: Sequence[float], baseline: float
) -> Iterator[Dip]:
    """Yield the pieces far enough below the baseline; neighbouring ones are merged."""
    found: list[list[int]] = []
    for (first, end), level in zip(pairwise(cuts), levels, strict=True):
        error = _MEDIAN_ERROR * one.noise / ((end - first) * one.weight) ** 0.5
        if level - baseline > log(1 - DEPTH_MIN) or baseline - level < ERRORS_MIN * error:
            continue
        if found and found[-1][1] == first:
            found[-1][1] = end
        else:
            found.append([first, end])
    for first, end in found:
        # Two neighbouring spikes also form a piece of three windows; they are no dip.
        if np.count_nonzero(one.logs[first:end] <= baseline + log(1 - DEPTH_MIN)) < SEGMENT_MIN:
            continue
        level = float(np.median(one.logs[first:end]))
        yield Dip(
            int(one.places[first]),
            int(one.places[end - 1]) + 1,
            exp(level - baseline) - 1,
            exp(level),
        )


def _judge(one: _Prepared, cuts: Sequence[int]) -> Segmentation:
    levels = [float(np.median(one.logs[first:end])) for first, end in pairwise(cuts)]
    lengths = [end - first for first, end in pairwise(cuts)]
    baseline = _baseline(levels, lengths)
    return Segmentation(
        too_short=False,
        baseline=exp(baseline),
        noise=one.noise,
        cuts=(*(int(one.places[cut]) for cut in cuts[:-1]), int(one.places[-1]) + 1),
        levels=tuple(map(exp, levels)),
        dips=tuple(_dips(one, cuts, levels, baseline)),
    )


def segment_all(
    series: Sequence[Floats], weight: float = 1.0, looked_at: int = VALUES_MIN
) -> list[Segmentation]:
    """Cut every series. A value that is NaN or not positive is a gap; its neighbours are joined.

    `weight`: how many independent values one window has, for example 1/6 if a value lasts for six.
    """
    prepared = [_prepare(values, weight) for values in series]
    found = [Segmentation(too_short=True) for _ in series]
    # Series of similar length are cut together, because the longest sets the work for all.
    known = [(place, one) for place, one in enumerate(prepared) if one is not None]
    known.sort(key=lambda pair: len(pair[1].logs))
    for at in range(0, len(known), _CHUNK):
        chunk = known[at : at + _CHUNK]
        all_cuts = _best_cuts([one for _, one in chunk], looked_at)
        for (place, one), cuts in zip(chunk, all_cuts, strict=True):
            found[place] = _judge(one, cuts)
    return found
