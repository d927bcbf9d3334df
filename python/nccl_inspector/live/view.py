# SPDX-License-Identifier: Apache-2.0
"""What a live view shows, from boxes or from a Prometheus."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from nccl_inspector.model.process import P2P as P2P_FUNCS
from nccl_inspector.model.transport import MIXED, NET, transport_by_shape

# The columns of figures: the transport as far as a communicator's size tells it, what stays on one
# node, and Sends and Recvs.
LOCAL, P2P = "local", "p2p"
CLASSES = (LOCAL, NET, MIXED, P2P)


def class_of(func: str, nranks: int, nnodes: int) -> str:
    """Return the class of an operation; unknown if NCCL (before 2.27) tells no sizes."""
    if func in P2P_FUNCS:
        return P2P
    if nranks > 0 and nnodes == 1:
        return LOCAL
    return transport_by_shape(nranks, nnodes)


class TroubleKind(IntEnum):
    """Kinds of trouble, the worst first; views are sorted by them."""

    STILL = 0  # of a job: nothing completes any more
    LOST = 1
    STOPPED = 2
    ABSENT = 3  # others wait for it, and it calls nothing
    HUNG = 4  # it waits
    LATE = 5
    DROPS = 6
    UNMEASURED = 7
    NONE = 8


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with a rank or a job; within a kind, a larger `weight` is worse."""

    kind: TroubleKind
    weight: float
    words: str


@dataclass(frozen=True, slots=True)
class Flow:
    """What completed in a span of time, for one process or summed over several."""

    operations_per_s: float = 0.0
    bus_bytes: dict[str, float] = field(default_factory=dict)  # by class
    busy_s: dict[str, float] = field(default_factory=dict)  # by class, for the same operations
    waiting_s: float = 0.0  # the part of waitable_s spent waiting for the last rank
    waitable_s: float = 0.0  # in collectives where all ranks wait for all and can be compared

    @classmethod
    def of(cls, flows: Iterable["Flow"]) -> Self:
        """Return the sum of the flows."""
        total = cls()
        for flow in flows:
            for mine, other in (
                (total.bus_bytes, flow.bus_bytes),
                (total.busy_s, flow.busy_s),
            ):
                for word, value in other.items():
                    mine[word] = mine.get(word, 0.0) + value
            total = cls(
                total.operations_per_s + flow.operations_per_s,
                total.bus_bytes,
                total.busy_s,
                total.waiting_s + flow.waiting_s,
                total.waitable_s + flow.waitable_s,
            )
        return total

    def gbs(self) -> dict[str, float]:
        """Return by class the mean bus bandwidth of a rank while in operations, GB/s (1e9)."""
        return {
            word: self.bus_bytes[word] / busy_s / 1e9
            for word, busy_s in self.busy_s.items()
            if busy_s > 0 and word in self.bus_bytes
        }

    @property
    def waiting(self) -> float | None:
        """The share of the ranks' time that was waiting; None: nothing can be compared."""
        return self.waiting_s / self.waitable_s if self.waitable_s > 0 else None


@dataclass(frozen=True, slots=True)
class LiveRank:
    """One process of a job, or what a Prometheus has about one GPU."""

    name: str
    node: str
    gpu: str
    flow: Flow | None  # None: not known yet, or no longer known
    oldest_s: float | None  # age of the oldest operation in flight; None: none
    oldest: str  # what it is
    beat_s: float | None  # time since its last beat; None: it does not beat
    drops: int | None
    troubles: tuple[Trouble, ...]


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job as the source sees it: on one node, or on all."""

    id: int
    cluster: str
    user: str
    partition: str
    nodes: int
    alive: int  # processes that are alive and beat
    expected: int  # processes that are alive, or died without finalizing
    flow: Flow | None
    oldest_s: float | None
    drops: int | None
    troubles: tuple[Trouble, ...]
    ranks: tuple[LiveRank, ...]  # empty if only the job was asked for

    @property
    def order(self) -> tuple[int, float, float, int]:
        """The sort key of jobs: the worst first, then those that wait most."""
        waiting = self.flow.waiting if self.flow else None
        return (*order_of(self.troubles), -(waiting or 0.0), self.id)


@dataclass(frozen=True, slots=True)
class View:
    """Everything at one time."""

    where: str
    unix_s: float
    span_s: float | None  # the time that rates are over; None: there are none yet
    jobs: tuple[LiveJob, ...]
    unread: tuple[str, ...]  # what could not be read, and why
    notes: tuple[str, ...]  # how to read the view


def natural(name: str) -> tuple[int | str, ...]:
    """Return the sort key of a name, which puts `rank 9` before `rank 10`."""
    parts = re.split("([0-9]+)", name)  # texts and numbers alternate
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def order_of(troubles: Iterable[Trouble]) -> tuple[int, float]:
    """Return the sort key of something with these troubles."""
    return min(
        ((trouble.kind, -trouble.weight) for trouble in troubles), default=(TroubleKind.NONE, 0.0)
    )


def gather(ranks: Iterable[LiveRank]) -> tuple[Trouble, ...]:
    """Return of each kind of trouble the worst one of the ranks, and how many ranks have it."""
    found: dict[TroubleKind, list[tuple[Trouble, LiveRank]]] = {}
    for rank in ranks:
        for trouble in rank.troubles:
            found.setdefault(trouble.kind, []).append((trouble, rank))
    gathered = []
    for kind, pairs in sorted(found.items()):
        worst, rank = max(pairs, key=lambda pair: pair[0].weight)
        place = ", ".join(word for word in (rank.node, rank.gpu) if word)
        words = f"{rank.name} ({place}) {worst.words}" if place else f"{rank.name} {worst.words}"
        others = len({id(one) for _, one in pairs}) - 1
        if others:
            words += f"; and {others} more"
        gathered.append(Trouble(kind, worst.weight, words))
    return tuple(gathered)
