# SPDX-License-Identifier: Apache-2.0
"""Names for processes that a reader of the report can find again."""

from collections import Counter
from collections.abc import Sequence

from nccl_inspector.model import COMM_FOLDED, Comm, Process


def _largest(process: Process) -> Comm | None:
    comms = [comm for comm in process.comms if comm.state != COMM_FOLDED]
    return max(comms, key=lambda comm: (comm.nranks, comm.nnodes, -comm.index), default=None)


def _in_largest(process: Process) -> str:
    """Return the rank in the largest communicator, for processes that share a Slurm task."""
    largest = _largest(process)
    if largest is None:
        return f"process {process.facts.name}"
    return f"rank {largest.rank} of {largest.name or hex(largest.id)}"


def _in_one_world(processes: Sequence[Process]) -> bool:
    """Return whether one communicator has all of them, each under a rank of its own."""
    worlds = [comm for comm in map(_largest, processes) if comm]
    places = {(comm.id, comm.rank) for comm in worlds}
    return len(places) == len(processes) and len({comm.id for comm in worlds}) == 1


def _name_within(processes: Sequence[Process]) -> list[str]:
    """Return words for each process of one job.

    `rank N` is SLURM_PROCID. Where a launcher starts several processes in one task they all
    inherit one number, so their rank in a communicator says it. mpirun starts some in the batch
    step and some in a step of its own: one world, in which the numbers of tasks say nothing.
    Else several steps are said where a name would be in two of them.
    """
    tasks = Counter((process.facts.step, process.facts.procid) for process in processes)
    names = []
    steps: dict[str, set[int | None]] = {}
    for process in processes:
        step, procid = process.facts.step, process.facts.procid
        alone = procid is not None and tasks[step, procid] == 1
        names.append(f"rank {procid}" if alone else _in_largest(process))
        steps.setdefault(names[-1], set()).add(step)
    if all(len(found) == 1 for found in steps.values()):
        return names
    if _in_one_world(processes):
        return [_in_largest(process) for process in processes]
    return [
        f"{'batch step' if process.facts.step is None else f'step {process.facts.step}'} {name}"
        for process, name in zip(processes, names, strict=True)
    ]


def name_processes(processes: Sequence[tuple[int, Process]]) -> list[str]:
    """Return words for each process, in the order given; each comes with its job's id.

    The components of a heterogeneous job are jobs of their own. One srun over several
    counts SLURM_PROCID through; several count anew in each: then the job's id is said.
    """
    names = [""] * len(processes)
    owners: dict[str, set[int]] = {}
    for job_id in {job_id for job_id, _ in processes}:
        places = [at for at, (owner, _) in enumerate(processes) if owner == job_id]
        words = _name_within([processes[at][1] for at in places])
        for at, name in zip(places, words, strict=True):
            names[at] = name
            owners.setdefault(name, set()).add(job_id)
    if any(len(jobs) > 1 for jobs in owners.values()):
        return [f"job {job} {name}" for (job, _), name in zip(processes, names, strict=True)]
    return names
