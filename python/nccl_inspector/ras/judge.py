# SPDX-License-Identifier: Apache-2.0
"""What one or two answers of RAS tell of a job: dead ranks, errors, ranks that are behind.

Two looks some seconds apart tell a rank that is behind for good from one that is only slower: what
RAS counts, launches, goes up on both sides otherwise. That all counts stand still does not mean
that the job hangs: it may compute.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nccl_inspector.nccl_log.results import IN_PROGRESS
from nccl_inspector.ras.status import MissingRank, RasComm, RasRank, RasStatus


class State(StrEnum):
    """What is wrong with a rank, the worst first."""

    DEAD = "dead"
    UNRESPONSIVE = "gives no answer"
    ERROR = "error"
    BEHIND = "is behind, and launches nothing"
    NOT_READY = "is not initialized"
    WELL = ""


@dataclass(frozen=True, slots=True)
class JudgedRank:
    """A rank with what it launched. `moved`: since the first look; None: there was only one."""

    rank: int
    host: str
    pid: int
    gpu: int
    state: State
    launched: int | None
    moved: int | None
    behind: int  # collectives fewer than the rank that launched most
    behind_in: str  # the function in which it is furthest behind
    result: int  # ncclResult_t of an error


@dataclass(frozen=True, slots=True)
class JudgedComm:
    """A communicator with its ranks in order; `stands_still`: none launched between two looks."""

    hash: int
    size: int
    ranks: tuple[JudgedRank, ...]
    stands_still: bool

    @property
    def unwell(self) -> tuple[JudgedRank, ...]:
        """The ranks with which something is wrong."""
        return tuple(one for one in self.ranks if one.state is not State.WELL)


def _most(comm: RasComm) -> dict[str, int]:
    most: dict[str, int] = {}
    for rank in comm.ranks:
        for function, count in rank.launched.items():
            most[function] = max(count, most.get(function, 0))
    return most


def _state(rank: RasRank, behind: int, moved: int | None) -> State:
    for result in (rank.async_error, rank.init_state):
        if result not in (0, IN_PROGRESS):
            return State.ERROR
    if rank.init_state == IN_PROGRESS:
        return State.NOT_READY
    # Without a second look the rank may just have been about to launch.
    return State.BEHIND if behind and moved == 0 and not rank.is_ending else State.WELL


def _judged(rank: RasRank, most: Mapping[str, int], before: RasRank | None) -> JudgedRank:
    launched = sum(rank.launched.values())
    moved = None if before is None else launched - sum(before.launched.values())
    gaps = {name: count - rank.launched.get(name, 0) for name, count in most.items()}
    worst = max(gaps, key=lambda name: gaps[name], default="")
    behind = sum(gaps.values())
    result = next((one for one in (rank.async_error, rank.init_state) if one), 0)
    return JudgedRank(
        rank.rank, rank.host, rank.pid, rank.gpu, _state(rank, behind, moved), launched, moved,
        behind, worst if behind else "", result,
    )  # fmt: skip


def _lost(rank: MissingRank) -> JudgedRank:
    state = State.DEAD if rank.is_dead else State.UNRESPONSIVE
    return JudgedRank(rank.rank, rank.host, rank.pid, rank.gpu, state, None, None, 0, "", 0)


def _ranks(comm: RasComm, before: RasComm | None) -> Iterator[JudgedRank]:
    most = _most(comm)
    earlier = {one.rank: one for one in before.ranks} if before else {}
    for rank in comm.ranks:
        yield _judged(rank, most, earlier.get(rank.rank))
    yield from map(_lost, comm.missing)


def judge(first: RasStatus, second: RasStatus | None = None) -> list[JudgedComm]:
    """Return the communicators of the latest look, those with something wrong first."""
    latest = second or first
    earlier = {comm.hash: comm for comm in first.comms} if second else {}
    found = []
    for comm in latest.comms:
        ranks = tuple(sorted(_ranks(comm, earlier.get(comm.hash)), key=lambda one: one.rank))
        moves = [one.moved for one in ranks if one.moved is not None]
        found.append(JudgedComm(comm.hash, comm.size, ranks, bool(moves) and not any(moves)))
    order = list(State)
    return sorted(
        found,
        key=lambda comm: (
            min((order.index(one.state) for one in comm.ranks), default=len(order)),
            -comm.size,
            comm.hash,
        ),
    )
