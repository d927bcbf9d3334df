# SPDX-License-Identifier: Apache-2.0
"""Make a report card from a directory of JSON lines."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import duckdb

from nccl_inspector.capture.contents import Capture
from nccl_inspector.capture.engine import Progress, Workers, load
from nccl_inspector.capture.exact_card import as_card
from nccl_inspector.capture.joined import join
from nccl_inspector.capture.line_schema import quoted
from nccl_inspector.capture.members import columns
from nccl_inspector.capture.processes import as_summaries
from nccl_inspector.capture.reader import reason_of
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card


@contextmanager
def _nothing() -> Iterator[Progress | None]:
    yield None


def _write_parquet(capture: Capture, path: Path) -> None:
    """Write all operations, with everything that their lines say; the capture has `everything`.

    The columns are `members.columns()`. Written beside, then renamed. `file` is the name below the
    directory, `kind` coll or p2p.

    Raises:
        InspectorError: it cannot be written.
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


def analyze_directory(
    directory: Path,
    parquet: Path | None,
    bar: AbstractContextManager[Progress | None] | None = None,
    workers: Workers | None = None,
) -> Card:
    """Return the card of the JSON lines below a directory; write Parquet if asked.

    `bar` gives a function that is called with how much has been read. Without `workers` all is
    done in this process.

    Raises:
        InspectorError: nothing in the directory can be read, there is no room, or the Parquet file
            cannot be written.
    """
    try:
        with (
            bar or _nothing() as progress,
            load(directory, parquet is not None, progress, workers) as capture,
        ):
            summaries = as_summaries(capture)
            if parquet is not None:
                _write_parquet(capture, parquet)
            return as_card(capture, join(capture), summaries)
    except (OSError, duckdb.Error) as err:
        raise InspectorError(
            f"{directory}: not analysed, with {tempfile.gettempdir()} as TMPDIR: {reason_of(err)}"
        ) from err
