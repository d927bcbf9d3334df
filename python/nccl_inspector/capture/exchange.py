# SPDX-License-Identifier: Apache-2.0
"""Tables as Parquet files, by which tasks on several hosts exchange them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import duckdb

from nccl_inspector.capture.line_schema import quoted
from nccl_inspector.capture.reader import parquet

# Parquet has no type for DuckDB's sums of whole numbers, and DuckDB would make them inexact.
_SUM, _STORED_SUM = "HUGEINT", "DECIMAL(38,0)"


def _columns(sql: duckdb.DuckDBPyConnection, rows: str, type_: str, as_type: str) -> str:
    described = sql.execute(f"describe from {rows}").fetchall()
    return ", ".join(
        f"{name}::{as_type} as {name}" if known == type_ else name for name, known, *_ in described
    )


def write_tables(sql: duckdb.DuckDBPyConnection, names: Iterable[str], folder: Path) -> None:
    """Write each of these tables to the file `<name>.parquet` in a folder."""
    for name in names:
        columns = _columns(sql, name, _SUM, _STORED_SUM)
        path = quoted(str(folder / f"{name}.parquet"))
        sql.execute(f"copy (select {columns} from {name}) to {path} (format parquet)")


def read_tables(
    sql: duckdb.DuckDBPyConnection,
    names: Iterable[str],
    folders: Sequence[Path],
    made: str = "table",
) -> None:
    """Make tables of what was written to these folders; `made`: table, or view."""
    for name in names:
        rows = parquet([str(folder / f"{name}.parquet") for folder in folders])
        columns = _columns(sql, rows, _STORED_SUM, _SUM)
        sql.execute(f"create or replace {made} {name} as select {columns} from {rows}")
