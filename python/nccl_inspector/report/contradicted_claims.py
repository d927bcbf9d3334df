# SPDX-License-Identifier: Apache-2.0
"""Remove from a job's summaries what its processes claim and Slurm contradicts."""

from collections.abc import Iterator
from dataclasses import replace

from nccl_inspector.analysis.claims import Allocation, bound_ranks
from nccl_inspector.model.process import Process
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary


def allocation_of(loaded: Loaded, given: JobContext) -> Allocation:
    """Return the job's size by Slurm: from its record, else from what root's hooks were told.

    For a heterogeneous job, Slurm's record is of one component; the nodes are those of all.
    Summaries made from something else (JSON lines) may cover only a part of the nodes, and then
    tell nothing about the job's size.
    """
    record = given.record
    heads = {one.head.job_id: one.head for one in loaded.summaries}
    if not given.from_boxes or not all(head.by_slurm for head in heads.values()):
        return Allocation()
    nodes = sum(head.num_nodes for head in heads.values())
    if record is None:
        return Allocation(nodes)
    return Allocation(max(nodes, record.num_nodes or 0), record.tasks or 0, record.gpus or 0)


def believable(loaded: Loaded, given: JobContext) -> Loaded:
    """Return what was loaded, with only communicators that the job can have.

    Impossible claims become problems of the data, which the report lists.
    """
    processes = [process for one in loaded.summaries for process in one.processes]
    bounded = bound_ranks(processes, allocation_of(loaded, given))
    problems = (*loaded.problems, *_claimed_tasks(loaded, given), *bounded.problems)
    if not bounded.problems:
        return replace(loaded, problems=problems)
    rest = iter(bounded.processes)
    summaries = tuple(_with_processes(one, rest) for one in loaded.summaries)
    return replace(loaded, summaries=summaries, problems=problems)


def _claimed_tasks(loaded: Loaded, given: JobContext) -> Iterator[str]:
    """Yield a text if processes claim to be of another array task than Slurm says."""
    record = given.record
    if record is None or not record.by_slurm:
        return
    said = {one.head.array_task for one in loaded.summaries} - {"", record.array_task}
    if said:
        is_task = f"it is {record.array_task}" if record.array_task else "it is no task of an array"
        yield f"processes claim that the job is {sorted(said)[0]}; Slurm says that {is_task}"


def _with_processes(summary: NodeSummary, rest: Iterator[Process]) -> NodeSummary:
    return replace(summary, processes=tuple(next(rest) for _ in summary.processes))
