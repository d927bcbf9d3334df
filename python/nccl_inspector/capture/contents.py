# SPDX-License-Identifier: Apache-2.0
"""What is known of a capture: tables made of its operations, and what else its files say."""

from collections import Counter
from dataclasses import dataclass, field

import duckdb

from nccl_inspector.capture.end_files import End
from nccl_inspector.capture.line_records import Json

Process = tuple[str, int]  # host name and pid


@dataclass(frozen=True, slots=True)
class Bursts:
    """The operations that are judged: those that end in the first 2^length of each 2^period ns."""

    length_bits: int
    period_bits: int


@dataclass
class Capture:
    """What was read from a directory of JSON lines.

    `sql` has the tables of first_look.py and second_look.py. If one process read the lines, it also
    has `ops`, with a row for each operation of one rank, and `joined`, with a row for each
    collective of all ranks (collectives.py).
    """

    sql: duckdb.DuckDBPyConnection
    files: tuple[str, ...]
    everything: bool  # whether all columns were read
    refused: Counter[str] = field(default_factory=Counter)  # lines, by reason
    dropped: Counter[str] = field(default_factory=Counter)  # operations without a line, by reason
    unknown: Counter[str] = field(default_factory=Counter)  # members not in members.py
    first: dict[Process, Json] = field(default_factory=dict)  # metadata of the first record
    # The most that lines say of lines lost and operations unmeasured; both only grow.
    said_lost: dict[Process, tuple[int, int]] = field(default_factory=dict)
    lost: dict[Process, int] = field(default_factory=dict)  # operations without a line
    ends: dict[Process, End] = field(default_factory=dict)  # what each process told at its end
    # Processes with operations that have no line: it was lost, or removed with an old file.
    holed: set[Process] = field(default_factory=set)
    window_s: int = 0  # length of the windows of time lines
    bursts: Bursts | None = None  # None: there are no records to judge, `why_no_bursts` tells why
    why_no_bursts: str = ""
