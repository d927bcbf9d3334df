# SPDX-License-Identifier: Apache-2.0
"""How long operations wait in a GPU's queue: whether who is late was late in calling, or its GPU.

The plugin looks some 60 times a minute how many operations were called and have not begun. By
Little's law that number is their rate times what each waits, so the mean wait is known without a
clock in any call. Who comes late by L, and waited Q between call and begin, called late by L - Q.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from nccl_inspector.analysis.join import Member
from nccl_inspector.card.model import UNKNOWN
from nccl_inspector.model import FUNCS

HOST, GPU = "host", "gpu"
LOOKS_MIN = 30
LOOK_NS = 0.94e9  # from one look to the next, on average (plugin/writer.c)
# A launch by itself takes as long: who waited no longer was late in calling.
LAUNCH_NS = 50e3
_SIGMAS = 2.0
# Of n looks none found any: with 95 % chance they would in less than 3 / n of the time. Half of the
# operations at least are late each by itself, or their median were not.
_NONE_SEEN = 2 * 3.0


@dataclass(frozen=True, slots=True)
class LateCall:
    """A kind of operation in which one process was late: who, what, and by how much."""

    member: Member
    kind: tuple[str, int, str]  # function, size class, algorithm and protocol
    late_ns: float


@dataclass(frozen=True, slots=True)
class Queued:
    """What a process's late calls waited in its GPU's queue, at the mean, and bounds of it (ns)."""

    late_ns: float  # of the same operations
    wait_ns: float
    low_ns: float
    high_ns: float
    looks: int  # that it stands on

    @property
    def kind(self) -> str:
        """Host or gpu: where most of the lateness is from; unknown: it cannot be told."""
        if self.high_ns <= max(LAUNCH_NS, self.late_ns / 2):
            return HOST
        if self.low_ns >= max(2 * LAUNCH_NS, self.late_ns / 2):
            return GPU
        return UNKNOWN


def queue_of(calls: Iterable[LateCall]) -> Queued | None:
    """Return it for all of a process's late calls together; None: too few looks.

    Of n looks k found some; their share p = k / n is known to sqrt((1 - p) / k), and how many each
    found about as well as that of k numbers which differ as much as they are large. Kinds with
    operations that have no time are left out: these never begin.
    """
    ops = queued_ns = 0
    late_ns, looks, found = 0.0, 0, 0
    for call in calls:
        for key in call.member.keys:
            if (
                FUNCS[key.func],
                key.size_class,
                key.algo_proto,
            ) == call.kind and not key.untimed_ops:
                ops += key.ops
                queued_ns += key.queued_ns
                found = max(found, key.queued_looks)  # of the same moments
                late_ns += key.ops * call.late_ns
                looks = max(looks, call.member.comm.looks)
    if looks < LOOKS_MIN or not ops:
        return None
    wait_ns = queued_ns / ops
    error = _SIGMAS * sqrt((2 - found / looks) / found) if found else 0.0
    high_ns = wait_ns * (1 + error) + _NONE_SEEN * LOOK_NS / ops
    return Queued(late_ns / ops, wait_ns, wait_ns * max(0.0, 1 - error), high_ns, looks)
