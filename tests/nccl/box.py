# SPDX-License-Identifier: Apache-2.0
"""What was called, and what the plugin counted, read by the product's own reader."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.box.reader import read_box
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import ALGOS, FUNCS, Comm, Process

Kind = tuple[str, str]  # communicator and function


@dataclass(frozen=True, slots=True)
class Called:
    """An operation that the plugin must count; of a group its Sends and Recvs, too."""

    comm: str
    func: str
    bytes: int
    peer: int = -1  # of a Send or Recv
    whole: bool = False  # a group of Sends and Recvs, which the plugin counts beside these


@dataclass
class Counts:
    """Operations of one kind; `bytes` are of both."""

    ops: int = 0
    untimed: int = 0
    bytes: int = 0


def find_box(boxes: Path, pid: int) -> Process | None:
    """Return the box of a process, None when there is none (yet)."""
    for path in boxes.glob(f"*_{pid}.box"):
        fd = os.open(path, os.O_RDONLY)
        try:
            return read_box(fd, path.stat().st_size, path.stem, alive=True)
        except RefusedError:
            return None  # it is being made
        finally:
            os.close(fd)
    return None


def in_flight(comm: Comm) -> int:
    """Return how many operations of a communicator are not over."""
    return comm.enqueued - comm.completed - comm.untimed - comm.lost


def sent_steps(process: Process | None) -> int:
    """Return how many steps of sending over the network a box has."""
    return sum(one.steps for one in process.nets if one.is_send) if process else 0


def counted(process: Process) -> dict[Kind, Counts]:
    """Return what a box has; the function of a group of Sends and Recvs is `group AlltoAll`."""
    names = {comm.index: comm.name for comm in process.comms}
    table: dict[Kind, Counts] = defaultdict(Counts)
    for key in process.keys:
        func = FUNCS[key.func]
        if ALGOS[key.algo] == "GROUP":
            func = f"group {func}"
        one = table[names.get(key.comm, "?"), func]
        one.ops += key.ops
        one.untimed += key.untimed_ops
        one.bytes += key.bytes + key.untimed_bytes
    return dict(table)


def all_ops(process: Process) -> int:
    """Return how many operations a box has."""
    return sum(one.ops + one.untimed for one in counted(process).values())


def called(calls: Iterable[Called]) -> dict[Kind, Counts]:
    """Return the same of what a rank called, all of it in `ops`."""
    table: dict[Kind, Counts] = defaultdict(Counts)
    for call in calls:
        one = table[call.comm, f"group {call.func}" if call.whole else call.func]
        one.ops += 1
        one.bytes += call.bytes
    return dict(table)


def pairs(calls: Iterable[Called], rank: int) -> Counter[tuple[str, str, int]]:
    """Return Sends and Recvs by communicator, function and peer, without those to oneself."""
    return Counter(
        (call.comm, call.func, call.peer) for call in calls if call.peer not in (-1, rank)
    )


def counted_pairs(process: Process) -> Counter[tuple[str, str, int]]:
    """Return the same of a box."""
    names = {comm.index: comm.name for comm in process.comms}
    found: Counter[tuple[str, str, int]] = Counter()
    for one in process.peers:
        found[names.get(one.comm, "?"), FUNCS[one.func], one.peer] += one.ops
    return found
