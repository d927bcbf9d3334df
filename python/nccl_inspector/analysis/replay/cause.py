# SPDX-License-Identifier: Apache-2.0
"""One cause of lost time that the replay found, and the costs from which on it is reported."""

from dataclasses import dataclass

from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.analysis.replay.paths import Where

COST_MIN = 0.01  # share of the job's time from which on a cause is a warning
HABIT_TIMES = 3  # what happens this often is part of the program
TOLD_MIN = 0.004  # share from which on it is information
LATE, TRANSFER, OUTSIDE = "late", "transfer", "outside"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of lost time; times are ns of Unix time, shares are of the job's time."""

    kind: str  # LATE, TRANSFER or OUTSIDE
    cost_share: float
    error_share: float
    start: int
    end: int
    whole: bool  # it lasted for (nearly) all of the job
    members: tuple[int, ...] = ()  # processes that cause it; of TRANSFER: those on the slow paths
    among: LateSet | None = None  # what late processes have in common; None: it is one process
    uneven: bool = False  # they are late only where they compute on what they were sent
    where: Where | None = None  # of TRANSFER: what the slow paths have in common
    inside: bool = False  # of TRANSFER: the paths are within nodes
    ratio: float = 1.0  # T, or own gaps, compared with what is usual
    late_ns: float = 0.0
    late_share: float = 0.0
    victims: tuple[int, ...] = ()  # processes that were late because they waited for it
    rare: bool = False  # seldom and long, like checkpoints; of OUTSIDE: again and again
    once: bool = False
    doubtful: bool = False  # it may be chance
    times: int = 0  # how often it happened; 0: not counted
    starting: bool = False  # nearly all of it was in the job's first steps
    leader: bool = False  # it is rank 0 of the largest communicator, which logs and saves for all
    saved_s: float = 0.0  # time saved in the replayed pieces
    part: int = 0  # number of processes in the part of the job that it delays; 0: there is one part
    still: bool = False  # of OUTSIDE: no usual operation ended in that time
    evenly: bool = False  # of OUTSIDE: all parts of a step became longer in proportion

    @property
    def node(self) -> str:
        """The node all of whose processes are late; empty: it is something else."""
        return self.among.name if self.among is not None and self.among.sort == Sort.NODE else ""
