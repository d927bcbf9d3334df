# SPDX-License-Identifier: Apache-2.0
"""When an operation in flight is so old that it may never end.

How old that is depends on how the job ended (`looks_for`), and on the job's own past: on how long
operations of the same kind, or of the same communicator, took before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.histogram import lower_ns, quantile_ns
from nccl_inspector.model.bandwidth import size_class
from nccl_inspector.model.process import NS_PER_S, Operation, Process

# An operation is suspect if it is older than both of these.
SUSPECT_S = 60.0  # above Slurm's KillWait (30 s): a job that is being ended looks as if it hung
SUSPECT_TIMES = 20.0  # of the 99th percentile of its kind
# A job that failed by itself gave up what its ranks were in; watchdogs wait for 5 s or longer.
GIVEN_UP_S = 4.0
# A job of which it is not known what ended it: longer than beats are apart and signals take.
UNKNOWN_END_S = 10.0
# Longer than any operation of the communicator before, by this factor. The few longest ones do not
# count: the first operations of a communicator set up its connections.
UNUSUAL_TIMES, SETUPS = 3.0, 2


class Measure(Enum):
    """What the age of an operation is compared with, besides a number of seconds."""

    OF_ITS_KIND = "times of its kind"
    OF_ITS_COMMUNICATOR = "times of its communicator"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Look:
    """One search for operations that do not end; searches go from the surest to the least sure.

    `least_s`: the least age. `measure`: what else the age is compared with. `names`: only hangs
    that name who it was count. `lived_on`: and only if that process lived while the others waited.
    `all_wait`: and only if nearly all other ranks wait for it. `before_end`: and only if most of
    those that wait were gone before the job was ended from outside.
    """

    least_s: float
    measure: Measure
    names: bool = True
    lived_on: bool = False
    all_wait: bool = False
    before_end: bool = False


_LONG = Look(SUSPECT_S, Measure.OF_ITS_KIND, names=False)
_GIVEN_UP = Look(GIVEN_UP_S, Measure.OF_ITS_COMMUNICATOR)
_UNKNOWN_END = Look(UNKNOWN_END_S, Measure.OF_ITS_COMMUNICATOR, lived_on=True)
_GAVE_UP_BEFORE = Look(GIVEN_UP_S, Measure.OF_ITS_COMMUNICATOR, before_end=True)
_CRASH = Look(0.0, Measure.NOTHING, all_wait=True)


def looks_for(ending: Ending) -> tuple[Look, ...]:
    """Return the searches that the end of a job allows, in order.

    A job that was ended from outside may have been at work: whoever had not come to an operation
    yet is no suspect, unless those that waited had given up by themselves before. If a process of
    the job failed, it is the one that all others wait for, at whatever age.
    """
    if not ending.is_over:
        return (_LONG,)
    if ending.was_from_outside:
        return _LONG, _GAVE_UP_BEFORE
    if ending.has_failed:
        return _LONG, _GIVEN_UP, _CRASH
    return _LONG, _UNKNOWN_END


def _usual_ns(operation: Operation, process: Process) -> float:
    """Return the 99th percentile of the operation's kind."""
    same = (
        key
        for key in process.keys
        if (key.comm, key.func, key.algo, key.proto, key.size_class)
        == (operation.comm, operation.func, operation.algo, operation.proto,
            size_class(operation.bytes))
    )  # fmt: skip
    return max((quantile_ns(key.histogram, 0.99) for key in same), default=0.0)


def _longest_first(process: Process, comm: int) -> Iterator[tuple[int, int]]:
    """Yield (bucket, count) of the times in a communicator, the longest first."""
    rows = [row for key in process.keys if key.comm == comm for row in key.histogram.pairs()]
    yield from sorted(rows, reverse=True)


def longest_ns(process: Process, comm: int) -> float:
    """Return how long operations of a communicator took at most, without the SETUPS longest."""
    seen = 0
    for bucket, count in _longest_first(process, comm):
        seen += count
        if seen > SETUPS:
            return lower_ns(bucket)
    return 0.0


def is_unusual(operation: Operation, process: Process) -> bool:
    """Tell whether an operation is much older than any of its communicator has been before."""
    return operation.age_ns > UNUSUAL_TIMES * longest_ns(process, operation.comm)


def is_suspect(operation: Operation, age: float, process: Process, look: Look = _LONG) -> bool:
    """Tell whether an operation of this age (seconds) is so old that it may never end."""
    if look.measure is Measure.NOTHING:
        return True
    if age <= look.least_s:
        return False
    if look.measure is Measure.OF_ITS_COMMUNICATOR:
        return is_unusual(operation, process)
    return age > SUSPECT_TIMES * _usual_ns(operation, process) / NS_PER_S
