# SPDX-License-Identifier: Apache-2.0
"""Sparse histograms of times, with the buckets of plugin/box/histogram.h."""

from bisect import bisect_left
from itertools import accumulate, compress
from math import sqrt

from nccl_inspector.box.layout import HIST_BUCKETS
from nccl_inspector.model.process import Histogram

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS
_FIRST_BITS = 10
_LAST_BITS = 37


def bucket_of(ns: int) -> int:
    """Return the bucket of a time in ns."""
    if ns < 1 << _FIRST_BITS:
        return ns >> (_FIRST_BITS - _SUB_BITS)
    log2 = ns.bit_length() - 1
    if log2 >= _LAST_BITS:
        return _SUB * (1 + _LAST_BITS - _FIRST_BITS) - 1
    return _SUB * (1 + log2 - _FIRST_BITS) + ((ns >> (log2 - _SUB_BITS)) & (_SUB - 1))


def lower_ns(bucket: int) -> int:
    """Return the lower bound of a bucket, in ns."""
    if bucket < _SUB:
        return bucket << (_FIRST_BITS - _SUB_BITS)
    log2 = bucket // _SUB - 1 + _FIRST_BITS
    return (_SUB + bucket % _SUB) << (log2 - _SUB_BITS)


# The lower bound of each bucket, and the upper bound of the last.
_LOWER_NS = tuple(map(lower_ns, range(HIST_BUCKETS + 1)))


def quantile_ns(histogram: Histogram, share: float) -> float:
    """Return the time below which `share` of the operations lie; 0 for an empty histogram.

    Operations are assumed to lie evenly inside their bucket. So the error is at most the bucket's
    width, which is 3.1 % of the time, and half of that for a time in the middle of its bucket.
    """
    sums = list(accumulate(histogram.counts))
    if not sums or not sums[-1]:
        return 0.0
    wanted = share * sums[-1]
    place = min(bisect_left(sums, wanted), len(sums) - 1)
    bucket, count = histogram.buckets[place], histogram.counts[place]
    low, high = _LOWER_NS[bucket], _LOWER_NS[bucket + 1]
    return low + (high - low) * (wanted - sums[place] + count) / count


def median_ns(histogram: Histogram) -> float:
    """Return the median time; 0 without operations."""
    return quantile_ns(histogram, 0.5)


def median_error_ns(histogram: Histogram) -> float:
    """Return the standard error of the median, from the middle half of the times; 0 for none.

    For a normal distribution it is 1.253 sigma / sqrt(n), with sigma = middle half / 1.349.
    """
    total = sum(histogram.counts)
    if not total:
        return 0.0
    middle_ns = quantile_ns(histogram, 0.75) - quantile_ns(histogram, 0.25)
    return 1.253 * middle_ns / 1.349 / sqrt(total)


def quantile_error_ns(histogram: Histogram, share: float) -> float:
    """Return the standard error of a quantile; 0 without operations.

    It is how far the quantile moves if chance adds or takes sqrt(n share (1 - share)) operations.
    """
    total = sum(histogram.counts)
    if not total:
        return 0.0
    chance = sqrt(share * (1 - share) / total)
    low, high = max(0.0, share - chance), min(1.0, share + chance)
    return (quantile_ns(histogram, high) - quantile_ns(histogram, low)) / 2


class HistogramSum:
    """A sum of histograms."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._counts = [0] * HIST_BUCKETS

    def add(self, histogram: Histogram) -> None:
        """Add one."""
        counts = self._counts
        for bucket, count in zip(*histogram, strict=True):
            counts[bucket] += count

    def total(self) -> Histogram:
        """Return the sum."""
        buckets = compress(range(HIST_BUCKETS), self._counts)
        return Histogram(tuple(buckets), tuple(filter(None, self._counts)))
