# SPDX-License-Identifier: Apache-2.0
"""Which ranks and communicators have the same part in the program."""

from collections.abc import Sequence

import numpy as np

from nccl_inspector.analysis.replay.arrays import (
    Ints,
    Mask,
    distinct_pairs,
    first_rows,
    number_rows,
)
from nccl_inspector.analysis.replay.records import Records
from nccl_inspector.model.process import FUNCS, PEER_NONE

_SEND, _RECV = FUNCS.index("Send"), FUNCS.index("Recv")
_EXCHANGE_SHARE = 0.98  # kernels with both / kernels with Sends or Recvs


class Sets:
    """Sets of numbers (union-find)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, at: int) -> int:
        """Return the number that stands for the set of `at`."""
        while self._parent[at] != at:
            self._parent[at] = self._parent[self._parent[at]]
            at = self._parent[at]
        return at

    def join(self, members: Sequence[int]) -> None:
        """Merge the sets of some numbers."""
        for other in members[1:]:
            self._parent[self.root(other)] = self.root(members[0])

    def numbers(self) -> Ints:
        """Return for each number the number of its set."""
        return number_rows(np.array([self.root(at) for at in range(len(self._parent))], np.int64))


def stages(records: Records, kernel: Ints) -> Ints:
    """Return for each process the number of its stage.

    Ranks that are connected by Sends and Recvs, directly or over others, are stages of one
    pipeline. All others that share a communicator do the same work, unless the communicator
    contains two stages of a pipeline.
    """
    pipelines, stages = Sets(records.members), Sets(records.members)
    for one, others in _partners(records, kernel).items():
        pipelines.join((one, *others))
    for comm in records.comms:
        if len({pipelines.root(one) for one in comm.members}) == len(comm.members):
            stages.join(comm.members)
    return stages.numbers()


def _partners(records: Records, kernel: Ints) -> dict[int, set[int]]:
    """Return for each process those with which it works in a pipeline.

    Ranks that always send and receive in one call, round a ring or back and forth, are not stages:
    all do the same. A pipeline fills and empties, one direction at a time.
    """
    paired = (records.peer != PEER_NONE) & np.isin(records.func, (_SEND, _RECV))
    size = int(kernel.max()) + 1
    sends = np.bincount(kernel[paired & (records.func == _SEND)], minlength=size) > 0
    gets = np.bincount(kernel[paired & (records.func == _RECV)], minlength=size) > 0
    comm_of = records.comm[first_rows(kernel)]
    count = len(records.comms)
    some = np.bincount(comm_of[sends | gets], minlength=count)
    both = np.bincount(comm_of[sends & gets], minlength=count)
    in_line = (some > 0) & (both < _EXCHANGE_SHARE * some)
    rows = np.flatnonzero(paired & in_line[records.comm])
    found: dict[int, set[int]] = {}
    order = rows[np.argsort(records.joined[rows], kind="stable")]
    same = records.joined[order][1:] == records.joined[order][:-1]
    pairs = distinct_pairs(records.member[order[:-1]][same], records.member[order[1:]][same])
    for one, other in zip(*(side.tolist() for side in pairs), strict=True):
        if one != other:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def parts_of_job(records: Records, joining: Mask | None = None) -> Ints:
    """Return for each process the number of its part of the job: no communicator joins parts.

    `joining`: which communicators count; None: all.
    """
    parts = Sets(records.members)
    for number, comm in enumerate(records.comms):
        if joining is None or joining[number]:
            parts.join(comm.members)
    return parts.numbers()


def comm_classes(records: Records) -> Ints:
    """Return for each communicator its class; those with the same part in the program share one."""
    sizes = np.array([comm.nranks for comm in records.comms], np.int64)
    ordinals = np.array([comm.ordinal for comm in records.comms], np.int64)
    return number_rows(sizes, ordinals)
