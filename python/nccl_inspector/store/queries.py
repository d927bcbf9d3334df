# SPDX-License-Identifier: Apache-2.0
"""Queries of the index: jobs by their verdicts, jobs on slow nodes, similar jobs.

No user's jobs displace those of another. Similar jobs of the same user are queried separately.
Where jobs of many users are looked at, each user gets a share.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

from nccl_inspector.analysis.history.baseline import JOBS_MAX, PastKind
from nccl_inspector.analysis.history.slow_nodes import ScoredJob
from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.store.card_rows import JobRow
from nccl_inspector.store.index import JOB_COLUMNS

_KEY_COLUMNS = tuple(f"kinds.{field.name}" for field in fields(KindKey))
_KEYS = ",".join(_KEY_COLUMNS)
_PAST_MAX = 400  # for one kind: those of the same key, and those of the same function and size
_OWN_JOBS = 2000  # the latest of one user, in which similar ones are searched
_NEAR_JOBS = 5000  # the latest of all users
_OTHERS_ROWS_MAX = 4000
_SUCCESSFUL = "(jobs.state = 'COMPLETED' OR (jobs.state = '' AND jobs.status != 'FAILED'))"
_SHARES = 4  # times more jobs that are looked at, to give each user a share
# The latest job of each user, then the second latest of each, and so on.
_LATEST = """
SELECT key FROM (
  SELECT key, end_s, row_number() OVER (PARTITION BY uid, user ORDER BY end_s DESC) AS place
  FROM (SELECT key, uid, user, end_s FROM jobs WHERE end_s IS NOT NULL
        ORDER BY end_s DESC LIMIT ?)
) ORDER BY place, end_s DESC LIMIT ?
"""


class Owner(NamedTuple):
    """The user of a job; the name matters because a uid may have been given to somebody else."""

    uid: int | None
    user: str


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to find; empty or None means any. `since_s`: jobs that ended then or later."""

    user: str = ""
    partition: str = ""
    verdict: str = ""  # one of STATUSES or CAUSES
    since_s: float | None = None
    limit: int = 50


def find_jobs(index: sqlite3.Connection, wanted: JobFilter) -> list[JobRow]:
    """Return the latest jobs that match, the latest first."""
    where: list[str] = ["end_s IS NOT NULL"]
    values: list[object] = []
    for column, value in (("user", wanted.user), ("partition", wanted.partition)):
        if value:
            where.append(f"{column} = ?")
            values.append(value)
    if wanted.verdict:
        where.append("(status = ? COLLATE NOCASE OR cause = ? COLLATE NOCASE)")
        values += [wanted.verdict, wanted.verdict]
    if wanted.since_s is not None:
        where.append("end_s >= ?")
        values.append(wanted.since_s)
    words = f"SELECT {','.join(JOB_COLUMNS)} FROM jobs WHERE {' AND '.join(where)}"
    rows = index.execute(f"{words} ORDER BY end_s DESC, key DESC LIMIT ?", (*values, wanted.limit))
    return [JobRow(*row) for row in rows]


def last_jobs(index: sqlite3.Connection, limit: int) -> list[ScoredJob]:
    """Return the last jobs with their nodes, the latest first, with a share for each user.

    If there are more than `limit` jobs, the latest of each user are chosen.
    """
    index.execute("CREATE TEMP TABLE chosen (key INTEGER PRIMARY KEY)")
    index.execute(f"INSERT INTO chosen {_LATEST}", (limit * _SHARES, limit))
    latest = index.execute(
        "SELECT key, job_id, uid, user FROM jobs JOIN chosen USING (key) ORDER BY end_s DESC"
    ).fetchall()
    names = dict(index.execute("SELECT id, name FROM nodes"))
    local: dict[int, dict[str, float]] = defaultdict(dict)
    named: dict[int, set[str]] = defaultdict(set)
    for job, node, value, is_named in index.execute(
        "SELECT job, node, local, named FROM job_nodes JOIN chosen ON job = chosen.key"
    ):
        local[job][names[node]] = value
        if is_named:
            named[job].add(names[node])
    kinds: dict[int, list[tuple[KindKey, float, float]]] = defaultdict(list)
    words = f"SELECT job, bus_gbs, busy_ns, {','.join(_KEY_COLUMNS)} FROM kinds"
    for job, gbs, busy_ns, *key in index.execute(
        f"{words} JOIN chosen ON job = chosen.key WHERE bus_gbs > 0"
    ):
        kinds[job].append((KindKey(*key), gbs, busy_ns))
    index.execute("DROP TABLE chosen")
    return [
        ScoredJob(job_id, local[key], frozenset(named[key]), tuple(kinds[key]), _owner(uid, user))
        for key, job_id, uid, user in latest
    ]


def _owner(uid: int | None, user: str) -> str:
    return f"{'-' if uid is None else uid} {user}"


def _past(rows: Iterable[tuple[Any, ...]]) -> Iterator[PastKind]:
    for job_id, gbs, time_ns, uid, user, *key in rows:
        yield PastKind(KindKey(*key), job_id, gbs, time_ns, _owner(uid, user))


def own_past(
    index: sqlite3.Connection, keys: Sequence[KindKey], owner: Owner, job_id: int
) -> dict[KindKey, list[PastKind]]:
    """Return a user's successful jobs with the function and size of each kind.

    The latest come first, and the job itself is left out. analysis/history/baseline.py chooses the
    similar ones.
    """
    found: dict[KindKey, list[PastKind]] = {key: [] for key in keys}
    if owner.uid is None:
        return found
    rows = index.execute(
        "WITH own AS (SELECT key, job_id, uid, user FROM jobs"
        f" WHERE uid = ? AND user = ? AND job_id != ? AND end_s IS NOT NULL AND {_SUCCESSFUL}"
        " ORDER BY end_s DESC LIMIT ?)"
        f" SELECT own.job_id, kinds.bus_gbs, kinds.time_ns, own.uid, own.user, {_KEYS}"
        " FROM own CROSS JOIN kinds ON kinds.job = own.key"
        " WHERE kinds.bus_gbs > 0 ORDER BY own.key DESC",
        (*owner, job_id, _OWN_JOBS),
    )
    room: dict[tuple[KindKey, bool], int] = defaultdict(lambda: _PAST_MAX)
    wanted: dict[tuple[str, int], list[KindKey]] = defaultdict(list)
    for key in found:
        wanted[key.func, key.size_class].append(key)
    for one in _past(rows):
        for key in wanted.get((one.key.func, one.key.size_class), ()):
            room[key, one.key == key] -= 1
            if room[key, one.key == key] >= 0:
                found[key].append(one)
    return found


def others_past(
    index: sqlite3.Connection, keys: Sequence[KindKey], owner: Owner, job_id: int
) -> dict[KindKey, list[PastKind]]:
    """Return other users' successful jobs of each kind; the latest ones of each user."""
    alike = " AND ".join(f"{column} = ?" for column in _KEY_COLUMNS)
    (last,) = index.execute("SELECT max(key) FROM jobs").fetchone()
    question = (
        "SELECT * FROM (SELECT jobs.job_id, kinds.bus_gbs, kinds.time_ns, jobs.uid, jobs.user,"
        f" {_KEYS}, row_number() OVER (PARTITION BY jobs.uid, jobs.user ORDER BY kinds.job DESC)"
        " AS place FROM kinds JOIN jobs ON jobs.key = kinds.job"
        f" WHERE {alike} AND kinds.job > ? AND kinds.bus_gbs > 0 AND jobs.uid IS NOT NULL"
        f" AND NOT (jobs.uid IS ? AND jobs.user = ?) AND jobs.job_id != ? AND {_SUCCESSFUL})"
        " WHERE place <= ? ORDER BY place LIMIT ?"
    )
    found = {}
    for key in dict.fromkeys(keys):
        values = (*astuple(key), (last or 0) - _NEAR_JOBS, *owner, job_id, JOBS_MAX)
        rows = index.execute(question, (*values, _OTHERS_ROWS_MAX))
        found[key] = list(_past(row[:-1] for row in rows))
    return found
