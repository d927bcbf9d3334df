# SPDX-License-Identifier: Apache-2.0
"""Names for processes that a reader of the report can find again."""

from collections import Counter
from collections.abc import Sequence

from nccl_inspector.model import COMM_FOLDED, Process


def _in_largest(process: Process) -> str:
    """Return the rank in the largest communicator, for processes that share a Slurm task."""
    comms = [comm for comm in process.comms if comm.state != COMM_FOLDED]
    if not comms:
        return f"process {process.facts.name}"
    largest = max(comms, key=lambda comm: (comm.nranks, comm.nnodes, -comm.index))
    return f"rank {largest.rank} of {largest.name or hex(largest.id)}"


def _name_within(processes: Sequence[Process]) -> list[str]:
    """Return words for each process of one job.

    `rank N` is SLURM_PROCID. Where a launcher starts several processes in one task they all
    inherit one number, so their rank in a communicator says it; several steps say theirs.
    """
    tasks = Counter((process.facts.step, process.facts.procid) for process in processes)
    steps = {process.facts.step for process in processes}
    names = []
    for process in processes:
        step, procid = process.facts.step, process.facts.procid
        alone = procid is not None and tasks[step, procid] == 1
        words = f"rank {procid}" if alone else _in_largest(process)
        if len(steps) > 1:
            words = f"step {'?' if step is None else step} {words}"
        names.append(words)
    return names


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
