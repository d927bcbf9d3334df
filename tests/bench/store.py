# SPDX-License-Identifier: Apache-2.0
"""How long `history` and `nodes` take in a store of 100,000 jobs."""

import time
from collections.abc import Callable
from pathlib import Path

from nccl_inspector.analysis.history.slow_nodes import score_nodes
from nccl_inspector.store.index import reading
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import JobFilter, find_jobs, last_jobs
from tests.bench.figure import Figure
from tests.support.stored_cards import fill_index

JOBS, NODES = 100_000, 1000
LIMIT_S = 2.0


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(folder: Path, jobs: int) -> list[Figure]:
    """Fill an index at once and ask it."""
    fill_index(IndexPlace(folder), jobs, NODES, seed=1)

    def history() -> object:
        with reading(IndexPlace(folder)) as (index, _):
            return find_jobs(index, JobFilter(user="u7", limit=1000))

    def nodes(last: int) -> object:
        with reading(IndexPlace(folder)) as (index, _):
            return score_nodes(last_jobs(index, last))

    what = f"store of {jobs} jobs"
    return [
        Figure(f"{what}: history", "s", _seconds(history), LIMIT_S),
        Figure(f"{what}: nodes, last 1000", "s", _seconds(lambda: nodes(1000)), LIMIT_S),
        Figure(f"{what}: nodes, last 10000", "s", _seconds(lambda: nodes(10_000)), LIMIT_S),
    ]
