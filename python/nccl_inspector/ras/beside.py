# SPDX-License-Identifier: Apache-2.0
"""The plugin's counts to show beside those of RAS, for the ranks of this node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.live.node_look import look
from nccl_inspector.model.process import Process


@dataclass(frozen=True, slots=True)
class OwnCounts:
    """Operations of one rank of a communicator, Sends and Recvs too."""

    enqueued: int
    started: int
    completed: int  # without those that have no time


def own_counts(processes: Iterable[Process]) -> dict[tuple[int, int], OwnCounts]:
    """Return the counts by communicator id and rank."""
    return {
        (comm.id, comm.rank): OwnCounts(
            comm.enqueued, comm.started + comm.untimed, comm.completed + comm.untimed
        )
        for process in processes
        for comm in process.comms
    }


def counts_of_node(run_dir: Path, job_id: int) -> Mapping[tuple[int, int], OwnCounts]:
    """Return the counts of a job's processes on this node, as far as the caller may read them."""
    try:
        jobs = look(run_dir, job_id).jobs
    except OSError:
        return {}
    return own_counts(box.process for job in jobs for box in job.boxes)
