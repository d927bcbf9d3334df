# SPDX-License-Identifier: Apache-2.0
"""Check what a box claims against what Slurm knows: how many ranks a communicator has.

The job's user can write any number into a box. Therefore loops and memory of the analysis are
bounded only by records that exist, never by a claim; and a claim that is impossible for the job is
not used.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nccl_inspector.model.process import COMM_FOLDED, Comm, Process

RANKS_MAX = 1 << 20  # for a communicator, whatever Slurm says about the job
RANKS_A_NODE_MAX = 256  # the most boxes that a job may have on a node
_NAMED_MAX = 16  # the most ranks that are named one by one
_TOLD_MAX = 8  # the most communicators that are named in a report

# The first and the last of consecutive ranks.
Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Slurm says about the whole job; 0: not known."""

    nodes: int = 0
    tasks: int = 0
    gpus: int = 0

    @property
    def ranks_max(self) -> int:
        """The most ranks that a communicator of the job can have."""
        if not self.nodes:
            return RANKS_MAX
        return min(RANKS_MAX, max(self.nodes * RANKS_A_NODE_MAX, self.tasks, self.gpus))


@dataclass(frozen=True, slots=True)
class Bounded:
    """Processes without impossible claims, and texts about what was claimed."""

    processes: list[Process]
    problems: tuple[str, ...]


def gaps(numbers: Collection[int], count: int) -> tuple[Run, ...]:
    """Return the runs of numbers from 0 to `count` - 1 that are not among `numbers`.

    The time depends on how many numbers there are, not on `count`.
    """
    known = sorted(one for one in numbers if 0 <= one < count)
    return tuple(
        (before + 1, after - 1)
        for before, after in pairwise((-1, *known, count))
        if after - before > 1
    )


def name_runs(runs: Sequence[Run]) -> Iterator[str]:
    """Yield `rank 5` for each of a few ranks, or `ranks 5-4095` for the runs of many."""
    one_by_one = sum(last - first + 1 for first, last in runs) <= _NAMED_MAX
    for first, last in runs:
        if one_by_one:
            yield from (f"rank {rank}" for rank in range(first, last + 1))
        else:
            yield f"rank {first}" if first == last else f"ranks {first}-{last}"


def bound_ranks(processes: Sequence[Process], allocation: Allocation) -> Bounded:
    """Return the processes with only believable claims.

    A communicator that claims more ranks than the job can have, and more than it has records, gets
    0 ranks, which means that the number is not known.
    """
    most = allocation.ranks_max
    if all(comm.nranks <= most for one in processes for comm in one.comms):
        return Bounded(list(processes), ())
    # More ranks than Slurm's numbers allow are believed if each of them has left a record.
    seen: dict[int, set[int]] = defaultdict(set)
    for process in processes:
        for comm in process.comms:
            if comm.state != COMM_FOLDED:
                seen[comm.id].add(comm.rank)
    refused: Counter[tuple[int, str, int]] = Counter()

    def believed(comm: Comm) -> Comm:
        if comm.nranks <= max(most, min(len(seen[comm.id]), RANKS_MAX)):
            return comm
        refused[comm.id, comm.name, comm.nranks] += 1
        return replace(comm, nranks=0, nnodes=0)

    found = [replace(one, comms=tuple(map(believed, one.comms))) for one in processes]
    return Bounded(found, tuple(_said(refused, allocation)))


def _said(refused: Counter[tuple[int, str, int]], allocation: Allocation) -> Iterator[str]:
    nodes = allocation.nodes
    of = f"a job of {nodes:,} {'node' if nodes == 1 else 'nodes'}" if nodes else "a job"
    for (comm_id, name, nranks), count in refused.most_common(_TOLD_MAX):
        who = f"{count:,} {'process claims' if count == 1 else 'processes claim'}"
        yield (
            f"communicator {name or hex(comm_id)}: {who} that it has {nranks:,} ranks; {of} has "
            f"{allocation.ranks_max:,} at most, so its size is taken as unknown"
        )
    if len(refused) > _TOLD_MAX:
        yield f"{len(refused) - _TOLD_MAX:,} more communicators claim an impossible number of ranks"
