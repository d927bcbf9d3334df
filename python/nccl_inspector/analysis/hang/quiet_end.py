# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks all stopped calling operations long before it was ended, or still do nothing.

No operation is in flight, so no rank waits for another one in NCCL, and nobody can be accused. Such
a job is stuck outside of NCCL or in the setup of a communicator, or it does something else for
longer than it ever did before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.model.process import COMM_LIVE, KILLED, NS_PER_S, RUNNING, Process
from nccl_inspector.summary.unpacked_samples import UnionColumns

QUIET_S = 300.0
PAUSE_TIMES = 10.0  # so many times longer than every pause before it
ACTIVE_S = 120.0  # a job that used NCCL for less time does not tell what is usual for it
# With an older interface a graph's replays are not told, so quiet does not mean idle.
_API_MIN = 4
_WHOLE_LIFE = 0.9  # share of the job that a process must have had operations in


@dataclass(frozen=True, slots=True)
class QuietEnd:
    """The time in which no rank was in an operation.

    `since_s`: Unix time of the last operation's end. `pause_s`: no earlier pause was longer.
    """

    since_s: float
    lasted_s: float
    pause_s: float


def _could_call(process: Process) -> bool:
    """Tell whether an operation of this process would have been seen until the end."""
    facts = process.facts
    return (
        facts.state in (KILLED, RUNNING)
        and facts.api_version >= _API_MIN
        and not (facts.silent or facts.silent_ns or facts.sampled_ns)
        and facts.sampling <= 1
        and any(one.state == COMM_LIVE and one.nranks > 1 for one in process.comms)
    )


def _last_end_ns(processes: Iterable[Process]) -> int:
    """Return when the last operation ended, as Unix time; 0: none has ended."""
    return max((comm.last_progress_ns for one in processes for comm in one.comms), default=0)


def longest_pause_s(unions: Sequence[UnionColumns]) -> tuple[float, float]:
    """Return a bound of a process's longest time without operations, and how long it had any.

    Windows tell in which times operations ended, and not when within them. So a pause may be longer
    than the windows without operations by nearly two windows. Both are in seconds.
    """
    parts = [one for one in unions if len(one.start_s)]
    if not parts:
        return 0.0, 0.0
    starts = np.concatenate([one.start_s for one in parts])
    lengths = np.concatenate([np.full(len(one.start_s), one.window_s) for one in parts])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate((starts + lengths)[order])
    gap_s = float((starts[1:] - ends[:-1]).max(initial=0))
    return gap_s + 2.0 * float(lengths.max()), float(ends[-1] - starts[0])


def is_quiet(processes: Sequence[Process], ending: Ending) -> bool:
    """Tell whether nothing is in flight, although all processes lived and could have called.

    A job that ended by itself was not stuck. `processes` are in common time (analysis/clocks.py).
    """
    if not processes or (ending.is_over and (not ending.state or ending.was_by_itself)):
        return False
    if any(one.operations for one in processes) or not all(map(_could_call, processes)):
        return False
    return _quiet_s(processes, ending) >= QUIET_S


def _quiet_s(processes: Sequence[Process], ending: Ending) -> float:
    """Return for how long all lived after the last operation's end, until the job was ended."""
    last_ns = _last_end_ns(processes)
    alive_ns = min(min(one.facts.beat_ns for one in processes), ending.until_ns)
    return (alive_ns - last_ns) / NS_PER_S if last_ns else 0.0


def find_quiet_end(
    processes: Sequence[Process], ending: Ending, unions: Iterable[Sequence[UnionColumns]]
) -> QuietEnd | None:
    """Return the time without operations at the end of a job, or None if it is not remarkable.

    Call it for jobs that are quiet (`is_quiet`). `unions`: of each process, or of some. A pause of
    the job is one of each of its processes, so the process with the shortest pauses bounds it,
    whatever the nodes' clocks say. Without unions it is not known what is usual.
    """
    lasted_s = _quiet_s(processes, ending)
    found = [(pause_s, active_s) for pause_s, active_s in map(longest_pause_s, unions) if active_s]
    active_s = max((one for _, one in found), default=0.0)
    if active_s < ACTIVE_S:
        return None
    pause_s = min(pause for pause, active in found if active >= _WHOLE_LIFE * active_s)
    if lasted_s < max(QUIET_S, PAUSE_TIMES * pause_s):
        return None
    return QuietEnd(_last_end_ns(processes) / NS_PER_S, lasted_s, pause_s)
