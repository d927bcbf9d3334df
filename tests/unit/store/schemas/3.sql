-- SPDX-License-Identifier: Apache-2.0
-- The index as it was before it could be in PostgreSQL.
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
CREATE INDEX jobs_by_id ON jobs (job_id);
ALTER TABLE kinds ADD COLUMN nic TEXT NOT NULL DEFAULT '';
PRAGMA user_version=3;
