# SPDX-License-Identifier: Apache-2.0
"""One cause of lost time, as the replay found it, and from which cost on it is told."""

from dataclasses import dataclass

from nccl_inspector.analysis.replay.paths import Where

COST_MIN = 0.01  # of the job's time, from which on a cause is a warning
HABIT_TIMES = 3  # what comes so often is part of the program
TOLD_MIN = 0.004  # from which on it is information
LATE, TRANSFER, OUTSIDE = "late", "transfer", "outside"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of lost time. Times are ns of Unix time; shares are of the job's time."""

    kind: str  # LATE, TRANSFER or OUTSIDE
    cost_share: float
    error_share: float
    start: int
    end: int
    whole: bool  # it lasted for (nearly) all of the job
    members: tuple[int, ...] = ()  # whose doing it is; of TRANSFER those on the slow paths
    node: str = ""  # all processes of that node are late
    where: Where | None = None  # of TRANSFER
    inside: bool = False  # of TRANSFER: within nodes
    ratio: float = 1.0  # of T, or of own gaps, beside what is usual
    late_ns: float = 0.0
    late_share: float = 0.0
    victims: tuple[int, ...] = ()  # who were late because they waited for it
    rare: bool = False  # seldom and long, as checkpoints are; of OUTSIDE: again and again
    once: bool = False
    starting: bool = False  # nearly all of it in the job's first steps
    leader: bool = False  # rank 0 of the largest communicator, which logs and saves for all
    saved_s: float = 0.0  # in the pieces that were replayed
    part: int = 0  # processes of the part of the job that it costs time; 0: of all
    still: bool = False  # of OUTSIDE: no usual operation ended in that time
    evenly: bool = False  # of OUTSIDE: all parts of a step took longer by as much
