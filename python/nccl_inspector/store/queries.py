# SPDX-License-Identifier: Apache-2.0
"""Queries of the index: jobs by their verdicts, jobs on slow nodes, similar jobs.

No user's jobs displace those of another. Similar jobs of the same user are queried separately.
Where jobs of many users are looked at, each user gets a share.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Column, Connection, Select, Text, and_, case, cast, func, not_, or_, select

from nccl_inspector.analysis.history.baseline import JOBS_MAX, PastKind
from nccl_inspector.analysis.history.slow_nodes import ScoredJob, ScoredJobs, Seats
from nccl_inspector.analysis.kinds import KindKey
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import CAUSES, CRASHED, FAILED, STATUSES
from nccl_inspector.store.card_rows import JobRow
from nccl_inspector.store.tables import JOB_NODES, JOBS, KINDS, NODES

_JOB_COLUMNS = [JOBS.c[field.name] for field in fields(JobRow)]
_KEY_COLUMNS = [KINDS.c[field.name] for field in fields(KindKey)]
_PAST_MAX = 400  # for one kind: those of the same key, and those of the same function and size
_OWN_JOBS = 2000  # the latest of one user, in which similar ones are searched
_NEAR_JOBS = 5000  # the latest of all users
_OTHERS_ROWS_MAX = 4000
_FAILED = (FAILED, CRASHED)
_SUCCESSFUL = or_(
    JOBS.c.state == "COMPLETED", and_(JOBS.c.state == "", JOBS.c.status.not_in(_FAILED))
)
_ENDED = JOBS.c.end_s.is_not(None)
_AT_ONCE = 500  # jobs whose rows are asked for at a time; some SQLite take 999 values
_SHARES = 4  # times more jobs that are looked at, to give each user a share


class Owner(NamedTuple):
    """The user of a job; the name matters because a uid may have been given to somebody else."""

    uid: int | None
    user: str


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to find; empty or None means any.

    `since_s` and `until_s`: jobs that ended from then on, and before.
    """

    user: str = ""
    partition: str = ""
    verdict: str = ""  # one of STATUSES or CAUSES
    since_s: float | None = None
    limit: int = 50
    cluster: str = ""
    until_s: float | None = None
    job_ids: tuple[int, ...] = ()


def _has_verdict(words: str) -> Any:
    """Return the condition for a verdict or cause, in any case."""
    for column, known in ((JOBS.c.status, STATUSES), (JOBS.c.cause, CAUSES)):
        for one in known:
            if one.casefold() == words.casefold():
                return column == one
    raise InspectorError(f"not a verdict: {words}")


def find_jobs(index: Connection, wanted: JobFilter) -> list[JobRow]:
    """Return the latest jobs that match, the latest first."""
    query = select(*_JOB_COLUMNS).where(_ENDED)
    for name in ("user", "partition", "cluster"):
        if value := getattr(wanted, name):
            query = query.where(JOBS.c[name] == value)
    if wanted.verdict:
        query = query.where(_has_verdict(wanted.verdict))
    if wanted.since_s is not None:
        query = query.where(JOBS.c.end_s >= wanted.since_s)
    if wanted.until_s is not None:
        query = query.where(JOBS.c.end_s < wanted.until_s)
    if wanted.job_ids:
        query = query.where(JOBS.c.job_id.in_(wanted.job_ids))
    query = query.order_by(JOBS.c.end_s.desc(), JOBS.c.key.desc()).limit(wanted.limit)
    return [JobRow(*row) for row in index.execute(query)]


def _latest(limit: int, cluster: str) -> Select[Any]:
    """Return the query for the latest job of each user, then the second latest of each, and so on.

    It gives keys.
    """
    known = select(JOBS.c.key, JOBS.c.uid, JOBS.c.user, JOBS.c.end_s).where(_ENDED)
    if cluster:
        known = known.where(JOBS.c.cluster == cluster)
    known = known.order_by(JOBS.c.end_s.desc(), JOBS.c.key.desc()).limit(limit * _SHARES)
    last = known.subquery()
    order = (last.c.end_s.desc(), last.c.key.desc())
    place = func.row_number().over(partition_by=(last.c.uid, last.c.user), order_by=order)
    placed = select(last.c.key, last.c.end_s, place.label("place")).subquery()
    return (
        select(placed.c.key)
        .order_by(placed.c.place, placed.c.end_s.desc(), placed.c.key.desc())
        .limit(limit)
    )


def _with_keys(
    index: Connection, query: Select[Any], column: Column[Any], keys: Sequence[int]
) -> Iterator[Any]:
    """Yield the rows with these keys. So a database needs no plan for all jobs."""
    for first in range(0, len(keys), _AT_ONCE):
        yield from index.execute(query.where(column.in_(keys[first : first + _AT_ONCE]))).all()


def nodes_query(dialect: str) -> Select[Any]:
    """Return the query for nodes of jobs: one row for each job, with its nodes as texts.

    The columns are the job, the nodes' ids, in their order the scores within the job, and the ids
    of those that are named. The last jobs of a large site have a million nodes together, and a row
    for each would take most of the time.
    """
    is_postgresql = dialect == "postgresql"
    joined = func.string_agg if is_postgresql else func.group_concat
    node, local = cast(JOB_NODES.c.node, Text), JOB_NODES.c.local
    # Both are exact. SQLite's own conversion has 15 digits.
    text = cast(local, Text) if is_postgresql else func.printf("%!.17g", local)
    exact = case((local == 0, "0"), else_=text)
    named = case((JOB_NODES.c.named != 0, node))
    columns = (joined(one, ",") for one in (node, exact, named))
    return select(JOB_NODES.c.job, *columns).group_by(JOB_NODES.c.job)


def _seats(index: Connection, keys: Sequence[int]) -> tuple[list[str], Seats]:
    """Return names of nodes, and in which of these jobs they were; both by their positions."""
    query = nodes_query(index.dialect.name)
    place = {key: at for at, key in enumerate(keys)}
    none = np.zeros(0, np.int64)
    jobs, ids, values, flags = [none], [none], [np.zeros(0)], [np.zeros(0, np.bool_)]
    for key, nodes, local, named in _with_keys(index, query, JOB_NODES.c.job, keys):
        own = np.array(nodes.split(","), np.int64)
        jobs.append(np.full(len(own), place[key], np.int64))
        ids.append(own)
        values.append(np.array(local.split(","), np.float64))
        of_named = np.array(named.split(","), np.int64) if named else none
        flags.append(np.isin(own, of_named))
    known, node = np.unique(np.concatenate(ids), return_inverse=True)
    names = select(NODES.c.id, NODES.c.name)
    name_of = dict(map(tuple, _with_keys(index, names, NODES.c.id, known.tolist())))
    seats = Seats(
        node.astype(np.int64), np.concatenate(jobs), np.concatenate(values), np.concatenate(flags)
    )
    return [name_of[at] for at in known.tolist()], seats


def last_jobs(index: Connection, limit: int, cluster: str = "") -> ScoredJobs:
    """Return the last jobs with their nodes, the latest first, with a share for each user.

    If there are more than `limit` jobs, the latest of each user are chosen. `cluster`: of this one
    only; nodes of another may have the same names.
    """
    chosen = _latest(limit, cluster)
    jobs = select(JOBS.c.key, JOBS.c.job_id, JOBS.c.uid, JOBS.c.user)
    latest = index.execute(
        jobs.where(JOBS.c.key.in_(chosen)).order_by(JOBS.c.end_s.desc(), JOBS.c.key.desc())
    ).all()
    keys = [one.key for one in latest]
    nodes, seats = _seats(index, keys)
    kinds: dict[int, list[tuple[KindKey, float, float]]] = defaultdict(list)
    measured = select(KINDS.c.job, KINDS.c.bus_gbs, KINDS.c.busy_ns, *_KEY_COLUMNS)
    measured = measured.where(KINDS.c.bus_gbs > 0)
    for job, gbs, busy_ns, *key in _with_keys(index, measured, KINDS.c.job, keys):
        kinds[job].append((KindKey(*key), gbs, busy_ns))
    scored = [
        ScoredJob(job_id, tuple(kinds[key]), _owner(uid, user)) for key, job_id, uid, user in latest
    ]
    return ScoredJobs(scored, nodes, seats)


def _owner(uid: int | None, user: str) -> str:
    return f"{'-' if uid is None else uid} {user}"


def _of_cluster(cluster: str) -> list[Any]:
    return [JOBS.c.cluster == cluster] if cluster else []


def own_past(
    index: Connection, keys: Sequence[KindKey], owner: Owner, job_id: int, cluster: str = ""
) -> dict[KindKey, list[PastKind]]:
    """Return a user's successful jobs with the function and size of each kind.

    The latest come first, and the job itself is left out. analysis/history/baseline.py chooses the
    similar ones.
    """
    found: dict[KindKey, list[PastKind]] = {key: [] for key in keys}
    if owner.uid is None:
        return found
    own = select(JOBS.c.key, JOBS.c.job_id, JOBS.c.uid, JOBS.c.user).where(
        JOBS.c.uid == owner.uid, JOBS.c.user == owner.user, JOBS.c.job_id != job_id, _ENDED,
        _SUCCESSFUL, *_of_cluster(cluster),
    )  # fmt: skip
    own = own.order_by(JOBS.c.end_s.desc(), JOBS.c.key.desc()).limit(_OWN_JOBS)
    jobs = {key: row for key, *row in index.execute(own)}
    measured = select(KINDS.c.job, KINDS.c.bus_gbs, KINDS.c.time_ns, *_KEY_COLUMNS).where(
        KINDS.c.bus_gbs > 0, KINDS.c.func.in_({key.func for key in found}),
        KINDS.c.size_class.in_({key.size_class for key in found}),
    )  # fmt: skip
    last_first = measured.order_by(KINDS.c.job.desc())
    room: dict[tuple[KindKey, bool], int] = defaultdict(lambda: _PAST_MAX)
    wanted: dict[tuple[str, int], list[KindKey]] = defaultdict(list)
    for key in found:
        wanted[key.func, key.size_class].append(key)
    rows = _with_keys(index, last_first, KINDS.c.job, sorted(jobs, reverse=True))
    for job, gbs, time_ns, *its_key in rows:
        number, uid, user = jobs[job]
        one = PastKind(KindKey(*its_key), number, gbs, time_ns, _owner(uid, user))
        for key in wanted.get((one.key.func, one.key.size_class), ()):
            room[key, one.key == key] -= 1
            if room[key, one.key == key] >= 0:
                found[key].append(one)
    return found


def others_past(
    index: Connection, keys: Sequence[KindKey], owner: Owner, job_id: int, cluster: str = ""
) -> dict[KindKey, list[PastKind]]:
    """Return other users' successful jobs of each kind; the latest ones of each user."""
    last = index.scalar(select(func.max(JOBS.c.key))) or 0
    found = {}
    for key in dict.fromkeys(keys):
        place = func.row_number().over(
            partition_by=(JOBS.c.uid, JOBS.c.user), order_by=KINDS.c.job.desc()
        )
        own = and_(JOBS.c.uid.is_not_distinct_from(owner.uid), JOBS.c.user == owner.user)
        alike = (
            select(
                JOBS.c.job_id, KINDS.c.bus_gbs, KINDS.c.time_ns, JOBS.c.uid, JOBS.c.user,
                KINDS.c.job, place.label("place"),
            )
            .join(JOBS, JOBS.c.key == KINDS.c.job)
            .where(
                *(column == getattr(key, column.name) for column in _KEY_COLUMNS),
                KINDS.c.job > last - _NEAR_JOBS, KINDS.c.bus_gbs > 0, JOBS.c.uid.is_not(None),
                not_(own), JOBS.c.job_id != job_id, _SUCCESSFUL, *_of_cluster(cluster),
            )
            .subquery()
        )  # fmt: skip
        first = select(alike).where(alike.c.place <= JOBS_MAX)
        first = first.order_by(alike.c.place, alike.c.job.desc()).limit(_OTHERS_ROWS_MAX)
        found[key] = [
            PastKind(key, number, gbs, time_ns, _owner(uid, user))
            for number, gbs, time_ns, uid, user, *_ in index.execute(first)
        ]
    return found
