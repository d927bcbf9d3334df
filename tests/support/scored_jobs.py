# SPDX-License-Identifier: Apache-2.0
"""Jobs as the history of nodes judges them, each written with its own nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nccl_inspector.analysis.history import slow_nodes
from nccl_inspector.analysis.history.node_score import NodeScore
from nccl_inspector.analysis.history.slow_nodes import ScoredJobs, Seats
from nccl_inspector.analysis.kinds import KindKey


@dataclass(frozen=True, slots=True)
class ScoredJob:
    """One job: scores of its nodes within it, nodes with warnings, its kinds of operation."""

    job_id: int
    local: Mapping[str, float]
    named: frozenset[str]
    kinds: tuple[tuple[KindKey, float, float], ...]
    owner: str = ""


def together(jobs: Sequence[ScoredJob]) -> ScoredJobs:
    nodes = sorted({node for job in jobs for node in job.local})
    rows = [
        (nodes.index(node), at, value, node in job.named)
        for at, job in enumerate(jobs)
        for node, value in job.local.items()
    ]
    node, job, value, named = zip(*rows, strict=True) if rows else ((),) * 4
    seats = Seats(
        np.array(node, np.int64), np.array(job, np.int64), np.array(value, np.float64),
        np.array(named, np.bool_),
    )  # fmt: skip
    bare = [slow_nodes.ScoredJob(one.job_id, one.kinds, one.owner) for one in jobs]
    return ScoredJobs(bare, nodes, seats)


def score_nodes(jobs: Sequence[ScoredJob], *, each_job: bool = False) -> list[NodeScore]:
    return slow_nodes.score_nodes(together(jobs), each_job=each_job)
