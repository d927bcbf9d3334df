# SPDX-License-Identifier: Apache-2.0
"""What is asked of the index: jobs by their verdicts, what slow nodes show in, similar jobs."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from nccl_inspector.analysis.baseline import JOBS_MIN, PastKind
from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.analysis.slownodes import JobSeen
from nccl_inspector.store.index import JOB_COLUMNS
from nccl_inspector.store.rows import JobRow

_KEY_COLUMNS = tuple(f"kinds.{field.name}" for field in fields(KindKey))
_PAST_MAX = 400
_NEAR_JOBS = 5000  # the latest, of which not everything is alike
_SUCCESSFUL = "(jobs.state = 'COMPLETED' OR (jobs.state = '' AND jobs.status != 'FAILED'))"
_LATEST = "SELECT key FROM jobs WHERE end_s IS NOT NULL ORDER BY end_s DESC LIMIT ?"


@dataclass(frozen=True, slots=True)
class Wish:
    """Which jobs; what is empty or None chooses nothing. `since_s`: that ended then or later."""

    user: str = ""
    partition: str = ""
    verdict: str = ""  # of STATUSES or CAUSES
    since_s: float | None = None
    limit: int = 50


def find_jobs(index: sqlite3.Connection, wish: Wish) -> list[JobRow]:
    """Return the latest jobs of a kind, the latest first."""
    where: list[str] = ["end_s IS NOT NULL"]
    values: list[object] = []
    for column, value in (("user", wish.user), ("partition", wish.partition)):
        if value:
            where.append(f"{column} = ?")
            values.append(value)
    if wish.verdict:
        where.append("(status = ? COLLATE NOCASE OR cause = ? COLLATE NOCASE)")
        values += [wish.verdict, wish.verdict]
    if wish.since_s is not None:
        where.append("end_s >= ?")
        values.append(wish.since_s)
    words = f"SELECT {','.join(JOB_COLUMNS)} FROM jobs WHERE {' AND '.join(where)}"
    rows = index.execute(f"{words} ORDER BY end_s DESC, key DESC LIMIT ?", (*values, wish.limit))
    return [JobRow(*row) for row in rows]


def last_jobs(index: sqlite3.Connection, limit: int) -> list[JobSeen]:
    """Return what the last jobs say of their nodes, the latest first."""
    latest = index.execute(
        f"SELECT key, job_id FROM jobs WHERE key IN ({_LATEST}) ORDER BY end_s DESC", (limit,)
    ).fetchall()
    names = dict(index.execute("SELECT id, name FROM nodes"))
    local: dict[int, dict[str, float]] = defaultdict(dict)
    named: dict[int, set[str]] = defaultdict(set)
    for job, node, value, is_named in index.execute(
        f"SELECT job, node, local, named FROM job_nodes WHERE job IN ({_LATEST})", (limit,)
    ):
        local[job][names[node]] = value
        if is_named:
            named[job].add(names[node])
    kinds: dict[int, list[tuple[KindKey, float, float]]] = defaultdict(list)
    words = f"SELECT job, bus_gbs, busy_ns, {','.join(_KEY_COLUMNS)} FROM kinds"
    for job, gbs, busy_ns, *key in index.execute(
        f"{words} WHERE bus_gbs > 0 AND job IN ({_LATEST})", (limit,)
    ):
        kinds[job].append((KindKey(*key), gbs, busy_ns))
    return [
        JobSeen(job_id, local[key], frozenset(named[key]), tuple(kinds[key]))
        for key, job_id in latest
    ]


def past_kinds(
    index: sqlite3.Connection, keys: Sequence[KindKey], job_id: int
) -> dict[KindKey, list[PastKind]]:
    """Return for each kind what successful jobs had of it, the latest first, not the job itself.

    Where too few had it, what the latest jobs had of its function and size: analysis/baseline.py
    chooses among them what may differ.
    """
    alike = " AND ".join(f"{column} = ?" for column in _KEY_COLUMNS)
    (last,) = index.execute("SELECT max(key) FROM jobs").fetchone()
    found = {}
    for key in dict.fromkeys(keys):
        past = _past(index, alike, (*astuple(key), job_id))
        if len({one.job_id for one in past}) < JOBS_MIN:
            near = "kinds.func = ? AND kinds.size_class = ? AND kinds.job > ?"
            past = _past(index, near, (key.func, key.size_class, (last or 0) - _NEAR_JOBS, job_id))
        found[key] = past
    return found


def _past(index: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[PastKind]:
    # Jobs get their keys as they end, or nearly so: the key's index gives them in order.
    rows = index.execute(
        f"SELECT {','.join(_KEY_COLUMNS)}, jobs.job_id, kinds.bus_gbs, kinds.time_ns"
        f" FROM kinds JOIN jobs ON jobs.key = kinds.job WHERE {where} AND kinds.bus_gbs > 0"
        f" AND jobs.job_id != ? AND {_SUCCESSFUL} ORDER BY kinds.job DESC LIMIT ?",
        (*values, _PAST_MAX),
    )
    return [PastKind(KindKey(*row[:8]), *row[8:]) for row in rows]
