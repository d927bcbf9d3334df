# SPDX-License-Identifier: Apache-2.0
"""Names for processes that a reader of the report can find again."""

from collections import Counter
from collections.abc import Sequence

from nccl_inspector.model.process import COMM_FOLDED, Comm, Process


def _largest(process: Process) -> Comm | None:
    comms = [comm for comm in process.comms if comm.state != COMM_FOLDED]
    return max(comms, key=lambda comm: (comm.nranks, comm.nnodes, -comm.index), default=None)


def _in_largest(process: Process) -> str:
    """Return the rank in the largest communicator, as text: for processes of one Slurm task."""
    largest = _largest(process)
    if largest is None:
        return f"process {process.facts.name}"
    return f"rank {largest.rank} of {largest.name or hex(largest.id)}"


def _world_of(process: Process) -> int | str:
    """Return the largest communicator's id, which the processes of one application have in common.

    A process without a communicator has only its own name.
    """
    largest = _largest(process)
    return process.facts.name if largest is None else largest.id


def _name_alone(processes: Sequence[Process]) -> list[str]:
    """Return a name for each process that does not mention its step.

    `rank N` is SLURM_PROCID. A launcher may start several processes in one task, and mpirun starts
    some in the batch step and some in another step. Then task numbers are not ranks. In that case
    all processes of the application are named by their rank in the communicator, also those that
    are alone in their task.
    """
    tasks = Counter((process.facts.step, process.facts.procid) for process in processes)
    steps: dict[int | str, set[int | None]] = {}
    launched: set[int | str] = set()
    for process in processes:
        world, step = _world_of(process), process.facts.step
        steps.setdefault(world, set()).add(step)
        shared = process.facts.procid is None or tasks[step, process.facts.procid] > 1
        if shared or len(steps[world]) > 1:
            launched.add(world)
    return [
        _in_largest(process) if _world_of(process) in launched else f"rank {process.facts.procid}"
        for process in processes
    ]


def _name_within(processes: Sequence[Process]) -> list[str]:
    """Return a different name for each process of one job, with its step only if necessary."""
    names = _name_alone(processes)
    steps: dict[str, set[int | None]] = {}
    for process, name in zip(processes, names, strict=True):
        steps.setdefault(name, set()).add(process.facts.step)
    if any(len(found) > 1 for found in steps.values()):
        names = [
            f"{'batch step' if process.facts.step is None else f'step {process.facts.step}'} {name}"
            for process, name in zip(processes, names, strict=True)
        ]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name} (process {process.facts.name})"
        for process, name in zip(processes, names, strict=True)
    ]


def name_processes(processes: Sequence[tuple[int, Process]]) -> list[str]:
    """Return a name for each process, in the same order; each process comes with its job's id.

    The components of a heterogeneous job are jobs of their own. One srun over several components
    numbers SLURM_PROCID through all of them; several sruns each begin at 0. Then names repeat, and
    the job's id is added.
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
