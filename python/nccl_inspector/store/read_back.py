# SPDX-License-Identifier: Apache-2.0
"""Read all rows of an index back, job by job, as they were put into it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Table, select

from nccl_inspector.analysis.kinds import KindKey, KindRow
from nccl_inspector.store.card_rows import CardRows, EntityRow, JobRow, NodeRow
from nccl_inspector.store.tables import ENTITIES, JOB_NODES, JOBS, KINDS, NODES

_BATCH = 500


def _columns(table: Table, kind: type) -> list[Any]:
    return [table.c[field.name] for field in fields(kind)]


def all_rows(index: Connection, cluster: str = "") -> Iterator[CardRows]:
    """Yield the rows of each job (`cluster`: of this one only), in the order of their entry."""
    last = 0
    while True:
        jobs = select(JOBS.c.key, *_columns(JOBS, JobRow)).where(JOBS.c.key > last)
        if cluster:
            jobs = jobs.where(JOBS.c.cluster == cluster)
        found = index.execute(jobs.order_by(JOBS.c.key).limit(_BATCH)).all()
        if not found:
            return
        keys = [row.key for row in found]
        nodes, entities, kinds = _nodes(index, keys), _entities(index, keys), _kinds(index, keys)
        for key, *row in found:
            yield CardRows(JobRow(*row), tuple(nodes[key]), tuple(entities[key]), tuple(kinds[key]))
        last = keys[-1]


def _nodes(index: Connection, keys: list[int]) -> dict[int, list[NodeRow]]:
    found: dict[int, list[NodeRow]] = defaultdict(list)
    query = select(JOB_NODES.c.job, NODES.c.name, JOB_NODES.c.local, JOB_NODES.c.named)
    query = query.join(NODES, NODES.c.id == JOB_NODES.c.node).where(JOB_NODES.c.job.in_(keys))
    for job, name, local, named in index.execute(query):
        found[job].append(NodeRow(name, local, bool(named)))
    return found


def _entities(index: Connection, keys: list[int]) -> dict[int, list[EntityRow]]:
    found: dict[int, list[EntityRow]] = defaultdict(list)
    query = select(ENTITIES.c.job, *_columns(ENTITIES, EntityRow))
    for job, *row in index.execute(query.where(ENTITIES.c.job.in_(keys))):
        found[job].append(EntityRow(*row))
    return found


def _kinds(index: Connection, keys: list[int]) -> dict[int, list[KindRow]]:
    found: dict[int, list[KindRow]] = defaultdict(list)
    measured = [KINDS.c[name] for name in ("time_ns", "bus_gbs", "waiting_share", "busy_ns")]
    query = select(KINDS.c.job, *measured, *_columns(KINDS, KindKey))
    for job, time_ns, gbs, waiting, busy_ns, *key in index.execute(
        query.where(KINDS.c.job.in_(keys))
    ):
        found[job].append(KindRow(KindKey(*key), time_ns, gbs, waiting, busy_ns))
    return found
