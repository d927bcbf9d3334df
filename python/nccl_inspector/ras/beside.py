# SPDX-License-Identifier: Apache-2.0
"""What this node knows of the job beside RAS: its user, and the plugin's counts of its ranks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nccl_inspector.live.node_look import look
from nccl_inspector.model.process import Process


@dataclass(frozen=True, slots=True)
class OwnCounts:
    """Operations of one rank of a communicator, Sends and Recvs too."""

    enqueued: int
    started: int
    completed: int  # without those that have no time


OwnByRank = Mapping[tuple[int, int], OwnCounts]  # by communicator id and rank


@dataclass(frozen=True, slots=True)
class JobHere:
    """A job on this node, as far as the caller may read it."""

    uid: int | None = None  # None: the job is not measured here
    counts: OwnByRank = field(default_factory=dict)


def own_counts(processes: Iterable[Process]) -> dict[tuple[int, int], OwnCounts]:
    """Return the counts by communicator id and rank."""
    return {
        (comm.id, comm.rank): OwnCounts(
            comm.enqueued, comm.started + comm.untimed, comm.completed + comm.untimed
        )
        for process in processes
        for comm in process.comms
    }


def read_job_here(run_dir: Path, job_id: int) -> JobHere:
    """Return what is known of a job's processes on this node."""
    try:
        jobs = look(run_dir, job_id).jobs
    except OSError:
        return JobHere()
    if not jobs:
        return JobHere()
    return JobHere(jobs[0].manifest.uid, own_counts(box.process for box in jobs[0].boxes))
