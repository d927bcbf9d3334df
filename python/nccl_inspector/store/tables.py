# SPDX-License-Identifier: Apache-2.0
"""The tables of the index, for each engine that keeps it (SQLAlchemy)."""

from sqlalchemy import (
    REAL,
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

# SQLite counts a key up only if its type is INTEGER.
_WHOLE = BigInteger().with_variant(Integer, "sqlite")
_FRACTION: Double[float] = Double().with_variant(REAL, "sqlite")

VERSION = 4  # of these tables, whatever the engine
METADATA = MetaData()


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, _WHOLE, nullable=False)


JOBS = Table(
    "jobs", METADATA, Column("key", _WHOLE, primary_key=True),
    _text("cluster"), _number("job_id"), _number("restart"), Column("uid", _WHOLE),
    *map(_text, ("user", "account", "partition", "name", "array_task", "script", "state")),
    Column("start_s", _FRACTION), Column("end_s", _FRACTION), Column("num_nodes", _WHOLE),
    _text("nodelist"), _number("ranks"),
    *map(_text, ("status", "cause", "confidence", "summary")),
    *map(_number, ("criticals", "warnings", "infos")),
    *(Column(name, _FRACTION) for name in (
        "cost_s", "cost_share", "mixed_gbs", "net_gbs", "nvlink_gbs", "waiting_share",
    )),
    _text("switches_asked"), Column("segment_asked", _WHOLE), Column("switches_used", _WHOLE),
    UniqueConstraint("cluster", "job_id", "restart"),
)  # fmt: skip
Index("jobs_by_end", JOBS.c.end_s)
Index("jobs_by_uid", JOBS.c.uid, JOBS.c.end_s)
Index("jobs_by_user", JOBS.c.user, JOBS.c.end_s)
Index("jobs_by_id", JOBS.c.job_id)  # when jobs are removed
Index("jobs_by_cluster", JOBS.c.cluster, JOBS.c.end_s)
Index("jobs_by_partition", JOBS.c.partition, JOBS.c.end_s)
Index("jobs_by_status", JOBS.c.status, JOBS.c.end_s)
Index("jobs_by_cause", JOBS.c.cause, JOBS.c.end_s)

# Names only: those of several clusters may be the same.
NODES = Table(
    "nodes", METADATA, Column("id", _WHOLE, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)  # fmt: skip
JOB_NODES = Table(
    "job_nodes", METADATA,
    Column("job", _WHOLE, primary_key=True, autoincrement=False),
    Column("node", _WHOLE, primary_key=True, autoincrement=False),
    Column("local", _FRACTION, nullable=False), _number("named"),
    sqlite_with_rowid=False,
)  # fmt: skip
ENTITIES = Table(
    "entities", METADATA, _number("job"), *map(_text, ("rule", "severity", "kind", "name"))
)
Index("entities_by_job", ENTITIES.c.job)
KINDS = Table(
    "kinds", METADATA, _number("job"), *map(_text, ("transport", "func")),
    *map(_number, ("size_class", "nranks", "nnodes")), *map(_text, ("gpu", "nccl", "algo")),
    Column("time_ns", _FRACTION, nullable=False), Column("bus_gbs", _FRACTION),
    Column("waiting_share", _FRACTION), Column("busy_ns", _FRACTION, nullable=False),
    Column("nic", Text, nullable=False, server_default=""),
)  # fmt: skip
Index("kinds_by_job", KINDS.c.job)
Index(
    "kinds_by_key", KINDS.c.func, KINDS.c.size_class, KINDS.c.transport, KINDS.c.nranks,
    KINDS.c.nnodes, KINDS.c.gpu, KINDS.c.nccl, KINDS.c.algo, KINDS.c.job,
)  # fmt: skip

OF_JOB = (JOB_NODES, ENTITIES, KINDS)  # their rows belong to a job
