# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.large_index JOBS [ENGINE [NODES]]`: ask an index of millions of jobs.

It takes minutes and some 1.5 GB for each million of jobs, so `make bench` leaves it out. Each job
has two kinds of operation and so many NODES: 2, another number, or `mix`, which is of 1 to 512. The
database makes the rows by itself.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from sqlalchemy import Connection, text

from nccl_inspector.analysis.history.slow_nodes import score_nodes
from nccl_inspector.model.card import HEALTHY, NVLINK
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.store.index import put, reading, writing
from nccl_inspector.store.place import IndexPlace
from nccl_inspector.store.queries import (
    JobFilter,
    Owner,
    find_jobs,
    last_jobs,
    others_past,
    own_past,
)
from nccl_inspector.store.tables import METADATA
from tests.support.postgres import Postgres, server
from tests.support.stored_cards import UID, card

NODES, USERS, PUTS = 10_000, 500, 100
_BEGAN_S = 1_700_000_000
# How many of 100 jobs have so many nodes: most are small, and most of the nodes are in large ones.
_MIX = {1: 20, 2: 20, 4: 15, 8: 15, 16: 10, 32: 8, 64: 5, 128: 4, 256: 2, 512: 1}
# One job in 5,000 had a slow node; 40 partitions; two clusters.
_JOBS = f"""
INSERT INTO jobs (key, cluster, job_id, restart, uid, "user", account, partition, name, array_task,
  script, state, start_s, end_s, num_nodes, nodelist, ranks, status, cause, confidence, summary,
  criticals, warnings, infos, cost_s, mixed_gbs, waiting_share, switches_asked)
SELECT n, CASE n / {USERS} % 10 WHEN 0 THEN 'west' ELSE 'c1' END, n, 0, {UID} + n % {USERS},
  'u' || n % {USERS}, 'phys', 'p' || n % 40, 'train', '', '', 'COMPLETED',
  {_BEGAN_S} + n * 10.0, {_BEGAN_S} + 3600 + n * 10.0, __SIZE__, 'n[1-2]', 8 * __SIZE__,
  CASE n % 100 WHEN 0 THEN 'DEGRADED' ELSE '{HEALTHY}' END,
  CASE n % 100 WHEN 0 THEN CASE n % 5000 WHEN 0 THEN '{NVLINK}' ELSE 'network' END ELSE '' END,
  'medium', 'all network paths are as fast as in similar jobs', 0, 0, 1, 0.0,
  300.0 + n % 7, 0.1, '' FROM numbers
"""
_NODES = f"INSERT INTO nodes (id, name) SELECT n, 'n' || n FROM numbers WHERE n <= {NODES}"
# One node in five has been compared with others of its job.
_JOB_NODES = f"""
INSERT INTO job_nodes (job, node, local, named)
SELECT n, 1 + (n * 2 + k - 1) % {NODES},
  CASE (n + k) % 5 WHEN 0 THEN ((n * 31 + k * 17) % 11 - 5) * 0.001 ELSE 0.0 END, 0
FROM numbers, places WHERE k <= __SIZE__
"""
_KINDS = "".join(
    f"""{" UNION ALL " if at else ""}
SELECT n, 'mixed', '{func}', 26, 8 * __SIZE__, __SIZE__, 'H100', '2.30', 'RING', 5000000.0,
  295.0 + (n * {at + 3}) % 11, 0.1, 1e12 FROM numbers"""
    for at, func in enumerate(("AllReduce", "AllGather"))
)
_KINDS = f"""INSERT INTO kinds (job, transport, func, size_class, nranks, nnodes, gpu, nccl, algo,
  time_ns, bus_gbs, waiting_share, busy_ns) {_KINDS}"""


def _size(nodes: str) -> str:
    """Return the SQL for the number of nodes of job n."""
    if nodes != "mix":
        return str(int(nodes))
    ends = accumulate(_MIX.values())
    whens = " ".join(
        f"WHEN n * 37 % 100 < {end} THEN {size}" for size, end in zip(_MIX, ends, strict=True)
    )
    return f"(CASE {whens} END)"


def fill(index: Connection, jobs: int, nodes: str = "2") -> None:
    """Make the rows, and the indexes after them."""
    indexes = [one for table in METADATA.sorted_tables for one in table.indexes]
    for one in indexes:
        one.drop(index)
    if index.dialect.name == "postgresql":
        index.execute(text("SET LOCAL statement_timeout = 0"))
        series = "SELECT generate_series(1, {}) AS n"
    else:
        series = (
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {}) "
            "SELECT n FROM s"
        )
    index.execute(text(f"CREATE TABLE numbers AS {series.format(max(jobs, NODES))}"))
    index.execute(text("CREATE TABLE places AS SELECT n AS k FROM numbers WHERE n <= 512"))
    index.execute(text(_NODES))
    index.execute(text(f"DELETE FROM numbers WHERE n > {jobs}"))
    for words in (_JOBS, _JOB_NODES, _KINDS):
        index.execute(text(words.replace("__SIZE__", _size(nodes))))
    for name in ("numbers", "places"):
        index.execute(text(f"DROP TABLE {name}"))
    for one in indexes:
        one.create(index)
    if index.dialect.name == "postgresql":
        index.execute(text("SELECT setval('jobs_key_seq', (SELECT max(key) FROM jobs))"))
        index.execute(text(f"SELECT setval('nodes_id_seq', {NODES})"))


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _nodes(index: Connection, last: int) -> object:
    return score_nodes(last_jobs(index, last, "c1"))


def questions(place: IndexPlace) -> Iterator[tuple[str, float]]:
    """Yield what was asked and how long the answer took, with the way to the database and back."""

    def ask(question: Callable[[Connection], object]) -> float:
        def work() -> None:
            with reading(place) as (index, _):
                question(index)

        work()  # a first time for the pages of the indexes
        return _seconds(work)

    filters = {
        "the latest 50": JobFilter(),
        "1000 of a user": JobFilter(user="u7", limit=1000),
        "of a partition": JobFilter(partition="p7"),
        "of a cluster": JobFilter(cluster="west"),
        "of a frequent verdict": JobFilter(verdict="degraded"),
        "of a rare cause": JobFilter(verdict=NVLINK, limit=1000),
        "of a cause that no job has": JobFilter(verdict="straggler"),
        "of a user who has none": JobFilter(user="nobody"),
    }
    for what, wanted in filters.items():
        yield f"history: {what}", ask(partial(find_jobs, wanted=wanted))
    for last in (1000, 10_000):
        yield f"nodes --last {last}", ask(partial(_nodes, last=last))
    (kind,) = rows_of(card(7)).kinds
    keys = [kind.key]
    yield (
        "similar jobs of the user",
        ask(lambda index: own_past(index, keys, Owner(UID + 7, "u7"), 7, "c1")),
    )
    yield (
        "similar jobs of others",
        ask(lambda index: others_past(index, keys, Owner(UID + 7, "u7"), 7, "c1")),
    )


def entries(place: IndexPlace, jobs: int) -> float:
    """Return the median time (s) to enter a report, with opening, and to commit."""

    def enter(number: int) -> None:
        with writing(place, None) as index:
            put(index, rows_of(card(jobs + number, named="n1")))

    return statistics.median(_seconds(partial(enter, at)) for at in range(1, PUTS + 1))


@contextmanager
def _places(engine: str, folder: Path) -> Iterator[tuple[IndexPlace, Postgres | None]]:
    if engine == "sqlite":
        yield IndexPlace(folder), None
        return
    with server(fsync=True) as postgres:
        yield IndexPlace(folder, postgres.url(postgres.new_database()), "c1"), postgres


def main(jobs: int, engine: str = "postgresql", nodes: str = "2") -> None:
    """Print a line for each question."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as name,
        _places(engine, Path(name)) as (place, postgres),
    ):
        begun = time.perf_counter()
        with writing(place, None) as index:
            fill(index, jobs, nodes)
        if postgres:
            postgres.run_sql(place.url.partition("@/")[2].partition("?")[0], "ANALYZE")
        made_s = time.perf_counter() - begun
        print(f"{engine}: {jobs:,} jobs of {nodes} nodes, made in {made_s:.0f} s", flush=True)
        for what, took_s in questions(place):
            print(f"{took_s * 1000:9.1f} ms  {what}", flush=True)
        if postgres:
            database = place.url.partition("@/")[2].partition("?")[0]
            postgres.run_sql(database, "CREATE ROLE u7 LOGIN")
            own = replace(place, url=postgres.url(database, "u7"))
            for what, took_s in questions(own):
                print(f"{took_s * 1000:9.1f} ms  as the user u7: {what}", flush=True)
        print(f"{entries(place, jobs) * 1000:9.1f} ms  entering a report (median of {PUTS})")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
