# SPDX-License-Identifier: Apache-2.0
"""Decide whether a late rank called late, or its GPU began late what was called in time.

About once a second the plugin looks how many operations were called and have not begun. By Little's
law that number is their rate times the wait of each, so the mean wait is known without reading a
clock in any call. All hosts run ahead of their GPUs, so only the difference from the peers counts:
a rank that begins late by L, and whose operations waited D longer between call and begin than its
peers', called late by L - D.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import median_low

from nccl_inspector.analysis.join import JoinedComm, Member
from nccl_inspector.model.card import UNKNOWN
from nccl_inspector.model.process import FUNCS, Key, OpKind

HOST, GPU = "host", "gpu"
LOOKS_MIN = 30
LOOK_NS = 0.94e9  # from one look to the next, on average (plugin/beat/beat.c)
_SIGMAS = 2.0
# If none of n looks found any, they were queued less than 3 / n of the time with 95 % chance. At
# least half of the operations are late themselves, otherwise their median would not be.
_NONE_SEEN = 2 * 3.0
# Share of the looks that would find some if all operations waited that long. With fewer, a few
# operations waited very long.
_FOUND_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class LateCall:
    """A kind of operation in which one rank of a communicator was late, and by how much."""

    comm: JoinedComm
    rank: int
    kind: OpKind
    late_ns: float


@dataclass(frozen=True, slots=True)
class Queued:
    """The mean time that a process's late calls waited for its GPU, and that of its peers' (ns)."""

    late_ns: float  # of the same operations
    wait_ns: float
    peers_ns: float
    error_ns: float  # error of the difference, two sigma
    is_steady: bool  # False: only a few operations waited very long
    looks: int  # how many looks it is based on

    @property
    def kind(self) -> str:
        """Where most of the lateness comes from: host or gpu; unknown if it cannot be decided."""
        more_ns = self.wait_ns - self.peers_ns
        if more_ns + self.error_ns <= self.late_ns / 2:
            return HOST
        if more_ns - self.error_ns >= self.late_ns / 2 and self.is_steady:
            return GPU
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class _Waits:
    """Several kinds of operation of ranks taken together."""

    ops: int
    queued_ns: int
    found: int  # looks that found some, for the kind with most: the other kinds had the same looks
    looks: int

    @property
    def wait_ns(self) -> float:
        return self.queued_ns / self.ops

    @property
    def error_ns(self) -> float:
        """The error of `wait_ns`, two sigma.

        If k of n looks found some, their share p is known to sqrt((1 - p) / k) of itself. The
        number that each look found is known about as well as the mean of k numbers whose spread
        equals their size.
        """
        found = min(self.found, self.looks)
        if not found:
            return _NONE_SEEN * LOOK_NS / self.ops
        return self.wait_ns * _SIGMAS * sqrt((2 - found / self.looks) / found)


def _key(member: Member, call: LateCall) -> Key | None:
    """Return a rank's operations; None: too few looks, or some operations have no time."""
    if member.comm.looks < LOOKS_MIN:
        return None
    for key in member.keys:
        if (FUNCS[key.func], key.size_class, key.algo_proto) == call.kind:
            return key if key.ops and not key.untimed_ops else None
    return None


def _together(parts: Sequence[tuple[Key, int]]) -> _Waits:
    return _Waits(
        sum(key.ops for key, _ in parts),
        sum(key.queued_ns for key, _ in parts),
        max(key.queued_looks for key, _ in parts),
        max(looks for _, looks in parts),
    )


def queue_of(calls: Iterable[LateCall]) -> Queued | None:
    """Return the waits over all of a process's late calls; None: too few looks, or no peers."""
    mine, others = [], []  # for each call: the rank's operations, and those of the median peer
    late_ns = 0.0
    for call in calls:
        member = call.comm.members[call.rank]
        own = _key(member, call)
        peers = [
            (key.queued_ns / key.ops, rank, key, one.comm.looks)
            for rank, one in call.comm.members.items()
            if rank != call.rank and (key := _key(one, call))
        ]
        if own is None or 2 * len(peers) < len(call.comm.members) - 1 or not peers:
            continue
        _, _, key, looks = median_low(peers)
        mine.append((own, member.comm.looks))
        others.append((key, looks))
        late_ns += own.ops * call.late_ns
    if not mine:
        return None
    waits, usual = _together(mine), _together(others)
    late_ns /= waits.ops
    # If each operation waits half of the lateness, this many looks find one; at most all of them.
    wanted = min(1.0, waits.ops * late_ns / 2 / (waits.looks * LOOK_NS)) * waits.looks
    return Queued(
        late_ns, waits.wait_ns, usual.wait_ns, hypot(waits.error_ns, usual.error_ns),
        waits.found >= _FOUND_SHARE_MIN * wanted / len(mine), waits.looks,
    )  # fmt: skip
