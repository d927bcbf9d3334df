# SPDX-License-Identifier: Apache-2.0
"""Report cards as the store and its readers need them, and an index of many jobs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import insert

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
from nccl_inspector.store.card_rows import JobRow, rows_of
from nccl_inspector.store.index import put, reading, writing
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import JobFilter, find_jobs
from nccl_inspector.store.tables import JOB_NODES, JOBS, KINDS, NODES
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


def store_in(folder: Path, url: str = "") -> IndexPlace:
    """Make a store that any user may pass through, as the service's account leaves it."""
    store = folder / "store"
    store.mkdir()
    store.chmod(0o711)
    return IndexPlace(store, url, "c1" if url else "")


def keep(place: IndexPlace, *cards: Card, gid: int | None = None) -> None:
    """Put cards into an index."""
    with writing(place, gid) as index:
        for one in cards:
            put(index, rows_of(one))


def ids(place: IndexPlace, wanted: JobFilter) -> list[int]:
    """The jobs that are found, in their order."""
    with reading(place) as (index, _):
        return [job.job_id for job in find_jobs(index, wanted)]


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


def fill_index(place: IndexPlace, jobs: int, nodes: int, seed: int) -> None:
    """Write an index of so many jobs on so many nodes at once, as the service does one by one."""
    chance = fixed_chance(seed)
    keys = {count: _keys(count) for count in _SIZES}
    job_rows: list[dict[str, Any]] = []
    node_rows: list[dict[str, Any]] = []
    kind_rows: list[dict[str, Any]] = []
    for number in range(1, jobs + 1):
        count = chance.choice(_SIZES)
        gbs = chance.gauss(300, 9)
        job = _job_row(number, 1.7e9 + 60 * number, count, gbs, f"u{chance.randrange(200)}")
        job_rows.append({"key": number, **asdict(job)})
        node_rows += [
            {"job": number, "node": node, "local": 0.0, "named": 0}
            for node in chance.sample(range(1, nodes + 1), count)
        ]
        kind_rows += [
            {
                "job": number, **asdict(key), "time_ns": 5e6,
                "bus_gbs": gbs * chance.gauss(1, 0.02), "waiting_share": 0.1, "busy_ns": 1e12,
            }
            for key in keys[count]
        ]  # fmt: skip
    with writing(place, None) as index:
        names = [{"id": at, "name": f"n{at:04}"} for at in range(1, nodes + 1)]
        for table, rows in (
            (NODES, names), (JOBS, job_rows), (JOB_NODES, node_rows), (KINDS, kind_rows),
        ):  # fmt: skip
            index.execute(insert(table), rows)
