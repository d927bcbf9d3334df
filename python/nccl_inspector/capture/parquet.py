# SPDX-License-Identifier: Apache-2.0
"""The operations of a capture as one Parquet file; its columns are `members.columns()`."""

import os
import tempfile
from pathlib import Path

import duckdb

from nccl_inspector.capture.engine import Capture
from nccl_inspector.capture.members import columns
from nccl_inspector.capture.schema import quoted
from nccl_inspector.errors import InspectorError


def write_parquet(capture: Capture, path: Path) -> None:
    """Write all operations with all members of their lines; the capture must have `everything`.

    A temporary file is written and then renamed. The column `file` has the path below the
    directory, `kind` has coll or p2p.

    Raises:
        InspectorError: the file cannot be written.
    """
    chosen = [name for name, _, _ in columns() if name != "file"]
    capture.sql.execute("create or replace temp table files (number integer, file varchar)")
    capture.sql.executemany("insert into files values (?, ?)", list(enumerate(capture.files)))
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".parquet")
        os.close(handle)
        try:
            capture.sql.execute(
                f"copy (select files.file, {', '.join(f'ops.{name}' for name in chosen)} "
                f"from ops join files on files.number = ops.file) to {quoted(beside)} "
                "(format parquet, compression zstd)"
            )
            Path(beside).replace(path)
        finally:
            Path(beside).unlink(missing_ok=True)
    except (OSError, duckdb.Error) as err:
        raise InspectorError(f"{path}: cannot be written: {str(err).splitlines()[0]}") from err
