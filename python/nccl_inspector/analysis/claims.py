# SPDX-License-Identifier: Apache-2.0
"""What a box claims, beside what Slurm knows of the job: how many ranks a communicator has.

The job's user can write any number into a box. So no loop and no memory of the analysis is bounded
by a claim, only by records that exist; and a claim that the job cannot make true is not used.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nccl_inspector.model.process import COMM_FOLDED, Comm, Process

RANKS_MAX = 1 << 20  # of a communicator, whatever Slurm says of the job
RANKS_A_NODE_MAX = 256  # as many as a job may have boxes on a node
_NAMED_MAX = 16  # ranks that are named one by one
_TOLD_MAX = 8  # communicators that are named in a report

# The first and the last of ranks that follow on each other.
Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Slurm says of the whole job; 0: it did not say."""

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
    """Processes without impossible claims, and what was claimed, as text."""

    processes: list[Process]
    problems: tuple[str, ...]


def gaps(numbers: Collection[int], count: int) -> tuple[Run, ...]:
    """Return the runs of numbers from 0 to `count` - 1 that are not among `numbers`.

    The time it takes depends on how many numbers there are, not on `count`.
    """
    known = sorted(one for one in numbers if 0 <= one < count)
    return tuple(
        (before + 1, after - 1)
        for before, after in pairwise((-1, *known, count))
        if after - before > 1
    )


def name_runs(runs: Sequence[Run]) -> Iterator[str]:
    """Yield `rank 5` for each of a few ranks, `ranks 5-4095` for the runs of many."""
    one_by_one = sum(last - first + 1 for first, last in runs) <= _NAMED_MAX
    for first, last in runs:
        if one_by_one:
            yield from (f"rank {rank}" for rank in range(first, last + 1))
        else:
            yield f"rank {first}" if first == last else f"ranks {first}-{last}"


def bound_ranks(processes: Sequence[Process], allocation: Allocation) -> Bounded:
    """Return the processes as they can be believed.

    A communicator that claims more ranks than the job can have, and than it has records, counts as
    one whose number of ranks is not known (0).
    """
    most = allocation.ranks_max
    if all(comm.nranks <= most for one in processes for comm in one.comms):
        return Bounded(list(processes), ())
    # More ranks than Slurm's numbers allow are there when they have all left a record.
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
