# SPDX-License-Identifier: Apache-2.0
"""The part of a card about the host's time in NCCL (setting `host_time`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTime:
    """How long a process's threads were in calls of NCCL, and in launches of its kernels.

    A call lasts from the start of ncclGroupEnd, or of a call outside any group, until it returns.
    That includes the launch and anything that blocks the call.
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
        """The average length of a call; 0 without calls."""
        return self.call_s / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class HostTimes:
    """`processes`: those with the longest average call, of `measured` processes in all."""

    processes: tuple[HostTime, ...]
    measured: int
    usual_call_s: float  # the median of the processes' averages
