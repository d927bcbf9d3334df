# SPDX-License-Identifier: Apache-2.0
"""Make the tables in an SQLite file, and upgrade an older file.

SQLite's user_version is the schema's version. A change of store/tables.py adds a step to UPGRADES
and never alters an existing one. An older index is upgraded step by step; an index of a newer
release is not touched.
"""

import sqlite3
from collections.abc import Mapping

from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from nccl_inspector.errors import InspectorError
from nccl_inspector.store.tables import METADATA, VERSION

# By the version that they upgrade. Before the first of these there was no release.
UPGRADES: Mapping[int, str] = {
    3: """
CREATE INDEX jobs_by_cluster ON jobs (cluster, end_s);
CREATE INDEX jobs_by_partition ON jobs (partition, end_s);
CREATE INDEX jobs_by_status ON jobs (status, end_s);
CREATE INDEX jobs_by_cause ON jobs (cause, end_s);
""",
}


def version_of(index: sqlite3.Connection) -> int:
    """Return the version of an open index; 0: it is empty."""
    (version,) = index.execute("PRAGMA user_version").fetchone()
    return int(version)


def _whole_schema() -> str:
    made: list[ExecutableDDLElement] = []
    for table in METADATA.sorted_tables:
        made += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=str))]
    return ";".join(str(one.compile(dialect=dialect())) for one in made)


def migrate(index: sqlite3.Connection, path: str) -> None:
    """Make or upgrade an index; each step is done completely or not at all.

    Raises:
        InspectorError: another release wrote it, which this one cannot upgrade.
        sqlite3.Error: it cannot be written, or is not an index.
    """
    while (version := version_of(index)) != VERSION:
        if version > VERSION:
            raise InspectorError(f"{path}: written by a newer release (schema {version})")
        if version and version not in UPGRADES:
            raise InspectorError(f"{path}: written by a release too old (schema {version})")
        index.execute("BEGIN IMMEDIATE")
        try:
            if version_of(index) == version:  # else another process was faster
                _step(index, version)
            index.execute("COMMIT")
        except sqlite3.Error:
            index.rollback()
            raise


def _step(index: sqlite3.Connection, version: int) -> None:
    for statement in (UPGRADES[version] if version else _whole_schema()).split(";"):
        index.execute(statement)
    index.execute(f"PRAGMA user_version={version + 1 if version else VERSION}")
