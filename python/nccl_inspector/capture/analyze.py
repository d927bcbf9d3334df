# SPDX-License-Identifier: Apache-2.0
"""Make a report card from a directory of JSON lines."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.system.printable import visible

if TYPE_CHECKING:
    from nccl_inspector.capture.engine import Progress


@contextmanager
def _nothing() -> "Iterator[Progress | None]":
    yield None


def analyze_directory(
    directory: Path,
    parquet: Path | None,
    bar: "AbstractContextManager[Progress | None] | None" = None,
) -> Card:
    """Return the card of the JSON lines below a directory; write Parquet if asked.

    `bar` gives a function that is called with how much has been read.

    Raises:
        InspectorError: nothing in the directory can be read, there is no room, or the Parquet file
            cannot be written.
    """
    import duckdb

    from nccl_inspector.capture.card import as_card
    from nccl_inspector.capture.engine import DISK_FULL, load
    from nccl_inspector.capture.joined import WINDOW_S, join
    from nccl_inspector.capture.parquet import write_parquet
    from nccl_inspector.capture.processes import as_summaries
    from nccl_inspector.capture.samples import sample_lines

    try:
        with (
            bar or _nothing() as progress,
            load(directory, parquet is not None, progress) as capture,
        ):
            if parquet is not None:
                write_parquet(capture, parquet)
            joined = join(capture)
            sampled = sample_lines(capture)
            window_s = joined.timeline.window_s or WINDOW_S
            summaries = as_summaries(capture, window_s, sampled)
            return as_card(capture, joined, summaries, sampled.why_not)
    except (OSError, duckdb.Error) as err:
        said = str(err).splitlines()[0]
        raise InspectorError(
            f"{directory}: not analysed, with {tempfile.gettempdir()} as TMPDIR: "
            f"{DISK_FULL if DISK_FULL in said else visible(said)}"
        ) from err
