# SPDX-License-Identifier: Apache-2.0
"""The tables of the index, and how an older index is upgraded.

SQLite's user_version is the schema's version. A change adds a step to MIGRATIONS and never alters
an existing one. An older index is upgraded step by step; an index of a newer release is not
touched.
"""

import sqlite3
from collections.abc import Sequence

from nccl_inspector.errors import InspectorError

_FIRST = """
CREATE TABLE jobs (
  key INTEGER PRIMARY KEY,
  cluster TEXT NOT NULL, job_id INTEGER NOT NULL, restart INTEGER NOT NULL,
  uid INTEGER, user TEXT NOT NULL, account TEXT NOT NULL, partition TEXT NOT NULL,
  name TEXT NOT NULL, array_task TEXT NOT NULL, script TEXT NOT NULL, state TEXT NOT NULL,
  start_s REAL, end_s REAL, num_nodes INTEGER, nodelist TEXT NOT NULL, ranks INTEGER NOT NULL,
  status TEXT NOT NULL, cause TEXT NOT NULL, confidence TEXT NOT NULL, summary TEXT NOT NULL,
  criticals INTEGER NOT NULL, warnings INTEGER NOT NULL, infos INTEGER NOT NULL,
  cost_s REAL, cost_share REAL, mixed_gbs REAL, net_gbs REAL, nvlink_gbs REAL,
  waiting_share REAL, switches_asked TEXT NOT NULL, segment_asked INTEGER, switches_used INTEGER,
  UNIQUE (cluster, job_id, restart)
);
CREATE INDEX jobs_by_end ON jobs (end_s);
CREATE INDEX jobs_by_uid ON jobs (uid, end_s);
CREATE INDEX jobs_by_user ON jobs (user, end_s);
CREATE TABLE nodes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE job_nodes (
  job INTEGER NOT NULL, node INTEGER NOT NULL, local REAL NOT NULL, named INTEGER NOT NULL,
  PRIMARY KEY (job, node)
) WITHOUT ROWID;
CREATE TABLE entities (
  job INTEGER NOT NULL, rule TEXT NOT NULL, severity TEXT NOT NULL,
  kind TEXT NOT NULL, name TEXT NOT NULL
);
CREATE INDEX entities_by_job ON entities (job);
CREATE TABLE kinds (
  job INTEGER NOT NULL, transport TEXT NOT NULL, func TEXT NOT NULL, size_class INTEGER NOT NULL,
  nranks INTEGER NOT NULL, nnodes INTEGER NOT NULL, gpu TEXT NOT NULL, nccl TEXT NOT NULL,
  algo TEXT NOT NULL, time_ns REAL NOT NULL, bus_gbs REAL, waiting_share REAL,
  busy_ns REAL NOT NULL
);
CREATE INDEX kinds_by_job ON kinds (job);
CREATE INDEX kinds_by_key
  ON kinds (func, size_class, transport, nranks, nnodes, gpu, nccl, algo, job);
"""

# When jobs are removed, they are looked up by job id alone.
_SECOND = "CREATE INDEX jobs_by_id ON jobs (job_id);"

# Network ports, from the agent's counters, also decide whether jobs are similar.
_THIRD = "ALTER TABLE kinds ADD COLUMN nic TEXT NOT NULL DEFAULT '';"

MIGRATIONS: Sequence[str] = (_FIRST, _SECOND, _THIRD)
VERSION = len(MIGRATIONS)


def version_of(index: sqlite3.Connection) -> int:
    """Return the version of an open index; 0: it is empty."""
    (version,) = index.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(index: sqlite3.Connection, path: str) -> None:
    """Upgrade an index to the present schema; each step is done completely or not at all.

    Raises:
        InspectorError: a newer release wrote it.
        sqlite3.Error: it cannot be written, or is not an index.
    """
    version = version_of(index)
    if version > VERSION:
        raise InspectorError(f"{path}: written by a newer release (schema {version})")
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        index.executescript(f"BEGIN IMMEDIATE;{step};PRAGMA user_version={number};COMMIT;")
