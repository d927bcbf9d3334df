# SPDX-License-Identifier: Apache-2.0
"""What is known of a capture: tables made of its operations, and what else its files say."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.end_files import End
from nccl_inspector.capture.line_records import Json

Process = tuple[str, int]  # host name and pid


@dataclass(frozen=True, slots=True)
class Bursts:
    """The operations that are judged: those that end in the first 2^length of each 2^period ns."""

    length_bits: int
    period_bits: int


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be read."""

    directory: Path
    files: Sequence[CaptureFile]
    everything: bool  # also columns that the analysis does not need


@dataclass
class Capture:
    """What was read from a directory of JSON lines.

    `sql` has the tables of first_look.py and second_look.py. If one process does all, or if
    `everything` was read, it also has `ops`, with a row for each operation of one rank.
    """

    sql: duckdb.DuckDBPyConnection
    files: tuple[str, ...]
    everything: bool  # whether all columns were read
    refused: Counter[str] = field(default_factory=Counter)  # lines, by reason
    dropped: Counter[str] = field(default_factory=Counter)  # operations without a line, by reason
    unknown: Counter[str] = field(default_factory=Counter)  # members not in members.py
    first: dict[Process, Json] = field(default_factory=dict)  # metadata of the first record
    lost: dict[Process, int] = field(default_factory=dict)  # operations without a line
    ends: dict[Process, End] = field(default_factory=dict)  # what each process told at its end
    # Processes with operations that have no line: it was lost, or removed with an old file.
    holed: set[Process] = field(default_factory=set)
    window_s: int = 0  # length of the windows of time lines
    bursts: Bursts | None = None  # None: there are no records to judge, `why_no_bursts` tells why
    why_no_bursts: str = ""

    def arrays(self, query: str) -> dict[str, NDArray[Any]]:
        """Return the columns that a query gives, which have no NULL."""
        found = self.sql.execute(query).fetchnumpy()
        return {name: np.ma.getdata(column) for name, column in found.items()}
