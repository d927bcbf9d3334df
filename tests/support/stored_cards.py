# SPDX-License-Identifier: Apache-2.0
"""Report cards as the store and its readers need them, and an index of many jobs."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    DEGRADED,
    HEALTHY,
    MEDIUM,
    STRAGGLER,
    WARNING,
    Card,
    Communicator,
    DataQuality,
    Entity,
    Environment,
    Finding,
    Job,
    Operations,
    Verdict,
)
from nccl_inspector.store.card_rows import JobRow
from nccl_inspector.store.index import JOB_COLUMNS, writing
from tests.support.boxes import fixed_chance

UID = 4711
MS = 1e6
_SIZES = (1, 2, 4, 8, 16)  # nodes of a job


def operations(
    comm: str = "0x7", gbs: float = 100.0, time_ms: float = 5.0, error: float | None = 0.001
) -> Operations:
    """`error` of the time, a fraction."""
    return Operations(
        comm, "AllReduce", 26, "RING_SIMPLE", 1000, time_ms * MS, gbs, 0.1,
        time_error_ns=None if error is None else error * time_ms * MS,
    )  # fmt: skip


def communicator(
    comm: str = "0x7", nodes: Sequence[str] = ("n1", "n2"), name: str = "world"
) -> Communicator:
    return Communicator(comm, name, "mixed", 8 * len(nodes), len(nodes), tuple(nodes), 16)


def card(
    job_id: int = 42,
    *,
    gbs: float = 100.0,
    named: str = "",
    nodes: str = "n[1-2]",
    communicators: Sequence[Communicator] = (communicator(),),
    **job: object,
) -> Card:
    """Return a card of a job with one kind of operation in each of its communicators."""
    words: dict[str, object] = {
        "user": "amy", "uid": UID, "cluster": "c1", "partition": "gpu", "state": "COMPLETED",
        "start_s": 1000.0, "end_s": 2000.0, "nodelist": nodes,
    } | job  # fmt: skip
    finding = Finding(
        rules.STRAGGLER.id, WARNING, MEDIUM, "late", "late", entities=(Entity("node", named),)
    )
    verdict = Verdict(DEGRADED, STRAGGLER, MEDIUM, "late")
    return Card(
        Job(job_id, **words),  # type: ignore[arg-type]  # words of its fields
        verdict if named else Verdict(HEALTHY, "", MEDIUM, "all is well"),
        Environment(nccl=("2.30.7",), gpu_models=("H100",), gpus=16),
        DataQuality(16, 16, (), (), {}, {}, "gpu", (), ()),
        (finding,) if named else (),
        tuple(communicators),
        tuple(operations(one.id, gbs) for one in communicators),
    )


def _job_row(job_id: int, end_s: float, nodes: int, mixed_gbs: float, user: str) -> JobRow:
    return JobRow(
        "c1", job_id, 0, UID, user, "phys", "gpu", "train", "", f"{job_id % 50:x}", "COMPLETED",
        end_s - 3600, end_s, nodes, f"n[1-{nodes}]", 8 * nodes, HEALTHY, "", MEDIUM, "all is well",
        0, 0, 0, None, None, mixed_gbs, None, None, 0.1, "", None, None,
    )  # fmt: skip


def _keys(nodes: int) -> list[KindKey]:
    return [
        KindKey("mixed", func, 26, 8 * nodes, nodes, "H100", "2.30", "RING")
        for func in ("AllReduce", "AllGather", "ReduceScatter")
    ]


def fill_index(path: Path, jobs: int, nodes: int, seed: int) -> None:
    """Write an index of so many jobs on so many nodes at once, as the service does one by one."""
    chance = fixed_chance(seed)
    keys = {count: _keys(count) for count in _SIZES}
    job_rows: list[tuple[object, ...]] = []
    node_rows: list[tuple[object, ...]] = []
    kind_rows: list[tuple[object, ...]] = []
    for number in range(1, jobs + 1):
        count = chance.choice(_SIZES)
        gbs = chance.gauss(300, 9)
        job = _job_row(number, 1.7e9 + 60 * number, count, gbs, f"u{chance.randrange(200)}")
        job_rows.append((number, *astuple(job)))
        node_rows += [(number, node, 0.0, 0) for node in chance.sample(range(nodes), count)]
        kind_rows += [
            (number, *astuple(key)[:8], 5e6, gbs * chance.gauss(1, 0.02), 0.1, 1e12, key.nic)
            for key in keys[count]
        ]
    with writing(path, None) as index:
        _insert(index, "nodes", 2, [(at, f"n{at:04}") for at in range(nodes)])
        _insert(index, "jobs", 1 + len(JOB_COLUMNS), job_rows)
        _insert(index, "job_nodes", 4, node_rows)
        _insert(index, "kinds", 14, kind_rows)


def _insert(
    index: sqlite3.Connection, table: str, columns: int, rows: Sequence[tuple[object, ...]]
) -> None:
    marks = ",".join("?" * columns)
    index.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # our names
