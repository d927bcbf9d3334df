# SPDX-License-Identifier: Apache-2.0
"""Whether who is late called late, or its GPU came late to what was called in time.

The plugin looks about once a second how many operations were called and have not begun. By
Little's law that number is their rate times what each waits, so the mean wait is known without a
clock in any call. Hosts run ahead of their GPUs, all ranks' alike, so only the difference from
the peers tells: who begins late by L, and waited D longer than they between call and begin, called
late by L - D.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import median_low

from nccl_inspector.analysis.join import Communicator, Member
from nccl_inspector.model.card import UNKNOWN
from nccl_inspector.model.process import FUNCS, Key

HOST, GPU = "host", "gpu"
LOOKS_MIN = 30
LOOK_NS = 0.94e9  # from one look to the next, on average (plugin/beat/beat.c)
_SIGMAS = 2.0
# Of n looks none found any: with 95 % chance they would in less than 3 / n of the time. Half of the
# operations at least are late each by itself, or their median were not.
_NONE_SEEN = 2 * 3.0
# Of the looks that would find some if all waited so long. Else it is few that waited very long.
_FOUND_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class LateCall:
    """A kind of operation in which one rank of a communicator was late, and by how much."""

    comm: Communicator
    rank: int
    kind: tuple[str, int, str]  # function, size class, algorithm and protocol
    late_ns: float


@dataclass(frozen=True, slots=True)
class Queued:
    """What a process's late calls waited for its GPU at the mean, and their peers' (ns)."""

    late_ns: float  # of the same operations
    wait_ns: float
    peers_ns: float
    error_ns: float  # of the difference, two sigma
    is_steady: bool  # it is not a few operations that waited very long
    looks: int  # that it stands on

    @property
    def kind(self) -> str:
        """Host or gpu: where most of the lateness is from; unknown: it cannot be told."""
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
    found: int  # looks that found some, of the kind with most: the others are of the same moments
    looks: int

    @property
    def wait_ns(self) -> float:
        return self.queued_ns / self.ops

    @property
    def error_ns(self) -> float:
        """Of n looks k found some; their share p is known to sqrt((1 - p) / k), and how many each
        found about as well as that of k numbers which differ as much as they are large."""
        found = min(self.found, self.looks)
        if not found:
            return _NONE_SEEN * LOOK_NS / self.ops
        return self.wait_ns * _SIGMAS * sqrt((2 - found / self.looks) / found)


def _key(member: Member, call: LateCall) -> Key | None:
    """Return a rank's operations; None: too few looks, or some never begin, without a time."""
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
    """Return it for all of a process's late calls together; None: too few looks, or no peers."""
    mine, others = [], []  # of each call its rank's operations, and those of the middle peer
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
    # Each op that waits for half of it is found by so many looks; never by more than there are.
    wanted = min(1.0, waits.ops * late_ns / 2 / (waits.looks * LOOK_NS)) * waits.looks
    return Queued(
        late_ns, waits.wait_ns, usual.wait_ns, hypot(waits.error_ns, usual.error_ns),
        waits.found >= _FOUND_SHARE_MIN * wanted / len(mine), waits.looks,
    )  # fmt: skip
