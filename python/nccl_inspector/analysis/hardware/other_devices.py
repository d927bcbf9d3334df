# SPDX-License-Identifier: Apache-2.0
"""A device's counter compared with that of all others of its kind in the job.

A large job has ten thousands of devices, so nothing is sorted for each of them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA, median_without

# A device stands out if it is this many spreads above the others, and this many times their median.
Z_MIN, TIMES_MIN = 5.0, 3.0


class OtherDevices:
    """The values of one counter on all devices; each can be compared with the others."""

    def __init__(self, values: Iterable[float], zeros: int = 0) -> None:
        """Take values of at least 0; `zeros`: as many more are 0."""
        self._ordered = [0.0] * zeros + sorted(values)
        # The median of the others is one of at most three values, whichever device is left out.
        self._apart: dict[float, Sequence[float]] = {}

    @property
    def count(self) -> int:
        """How many others a device has."""
        return len(self._ordered) - 1

    def median(self, value: float) -> float:
        """Return the median of the others of a device with this value; 0 if there are none."""
        return _median_of_others(self._ordered, value)

    def stands_out(self, value: float) -> bool:
        """Tell whether a device's value is much higher than those of the others."""
        if not self.count:
            return False
        middle = self.median(value)
        if value <= TIMES_MIN * middle:  # nearly all
            return False
        apart = self._apart.get(middle)
        if apart is None:
            apart = self._apart[middle] = sorted(abs(one - middle) for one in self._ordered)
        spread = MAD_TO_SIGMA * _median_of_others(apart, abs(value - middle))
        return value - middle > Z_MIN * spread


def _median_of_others(ordered: Sequence[float], value: float) -> float:
    if len(ordered) < 2:
        return 0.0
    return median_without(ordered, bisect_left(ordered, value))
