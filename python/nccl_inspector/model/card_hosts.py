# SPDX-License-Identifier: Apache-2.0
"""The part of a card that the host's time in NCCL gives (setting `host_time`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a process's threads took for calls of NCCL, and for launches of its kernels.

    A call is from the begin of ncclGroupEnd, or of a call outside any group, until it returns: with
    the launch, and with whatever blocks it.
    """

    process: str
    node: str
    calls: int
    call_s: float  # in all
    call_max_s: float
    launches: int
    launch_s: float
    launch_max_s: float

    @property
    def mean_s(self) -> float:
        """Return how long a call took on average."""
        return self.call_s / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Those whose calls take longest on average, of so many processes that were measured."""

    processes: tuple[HostTime, ...]
    measured: int
    usual_call_s: float  # the average of the process in the middle
