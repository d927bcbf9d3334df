# SPDX-License-Identifier: Apache-2.0
"""Read a capture into columns with DuckDB, in limited memory; bad lines are counted by reason."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from nccl_inspector.capture.capture_files import END, CaptureFile, find_files, opened
from nccl_inspector.capture.collectives import join_once
from nccl_inspector.capture.end_files import END_BYTES_MAX, End, parse_end
from nccl_inspector.capture.line_records import Json
from nccl_inspector.capture.line_schema import MARKER, OTHER_KIND, PROXY, UNTIMED
from nccl_inspector.capture.operation_counts import count_kinds
from nccl_inspector.capture.reader import Notes, Reader, batches, connect, parquet
from nccl_inspector.errors import InspectorError

# Called with the bytes read and all bytes.
Progress = Callable[[int, int], None]
Process = tuple[str, int]  # host name and pid

# File names, as plugin/json/file.c makes them.
_FILE = re.compile(
    r"(?P<host>[^/]*)-pid(?P<pid>[0-9]{1,10})(\.(?P<number>[0-9]{1,9}))?\.log(\.gz)?$"
)
_RING = """
select coalesce(sum(n), 0)::bigint from (
    select max(ring_dropped) as n from lines where reason = 'dump_stats' group by comm, rank)
"""
_LOST = """
select hostname, pid, max(lines_dropped), max(unmeasured) from lines
where reason = '' group by hostname, pid
"""


@dataclass
class Capture:
    """What was read from a directory of JSON lines.

    Each row of the view `ops` is an operation of one rank (members.columns()), of `joined` a
    collective of all ranks (collectives.py), and of `counted` a kind of operation
    (operation_counts.py).
    """

    sql: duckdb.DuckDBPyConnection
    files: tuple[str, ...]
    everything: bool  # whether all columns were read
    refused: Counter[str] = field(default_factory=Counter)  # lines, by reason
    dropped: Counter[str] = field(default_factory=Counter)  # operations without a line, by reason
    unknown: Counter[str] = field(default_factory=Counter)  # members not in members.py
    # By process: metadata of the first record, and of the last one that was looked at.
    first: dict[Process, Json] = field(default_factory=dict)
    last: dict[Process, Json] = field(default_factory=dict)
    lost: dict[Process, int] = field(default_factory=dict)  # operations without a line
    ends: dict[Process, End] = field(default_factory=dict)  # what each process told at its end
    # Processes with operations that have no line: it was lost, or removed with an old file.
    holed: set[Process] = field(default_factory=set)


def _process_of(name: str) -> tuple[Process, int] | None:
    """Return the process and number in a file's name; None: our plugin makes no such name."""
    said = _FILE.search(name)
    return ((said["host"], int(said["pid"])), int(said["number"] or 0)) if said else None


def _read_ends(directory: Path, files: Sequence[CaptureFile]) -> dict[Process, End]:
    """Return what the processes told at their ends."""
    found: dict[Process, End] = {}
    for file in files:
        whose = _process_of(file.name) if file.has_end else None
        if whose is None:
            continue
        try:
            with opened(directory, CaptureFile(file.name + END, 0)) as fd:
                end = parse_end(os.pread(fd, END_BYTES_MAX, 0))
        except OSError:
            continue
        if end is not None:
            found[whose[0]] = end
    return found


def _rotated(names: Sequence[str]) -> set[Process]:
    """Return the processes whose first file is missing, judged by the file names."""
    found: dict[Process, int] = {}
    for name in names:
        whose = _process_of(name)
        if whose:
            process, number = whose
            found[process] = min(number, found.get(process, number))
    return {process for process, number in found.items() if number}


def _count(capture: Capture) -> None:
    """Count the refused lines, and the operations that are reported to have no line."""
    sql = capture.sql
    for reason, count in sql.execute(
        "select reason, count(*) from lines group by reason"
    ).fetchall():
        if reason in (UNTIMED, PROXY):
            capture.dropped[reason] += count
        elif reason not in ("", MARKER, OTHER_KIND):
            capture.refused[reason] += count
    rings = sql.execute(_RING).fetchall()[0][0]
    capture.dropped["ring_full"] += rings
    known = {name for name, *_ in sql.execute("describe lines").fetchall()}
    said = {
        process: (metadata.get("lines_dropped") or 0, metadata.get("operations_unmeasured") or 0)
        for process, metadata in capture.last.items()
    }
    if "unmeasured" in known:
        for hostname, pid, lines, untimed in sql.execute(_LOST).fetchall():
            before = said.get((hostname, pid), (0, 0))
            said[hostname, pid] = max(before[0], lines or 0), max(before[1], untimed or 0)
    capture.lost = {process: sum(counts) for process, counts in said.items()}
    capture.holed = {process for process, count in capture.lost.items() if count}
    capture.holed |= _rotated(capture.files)
    capture.dropped["line_dropped"] += sum(lines for lines, _ in said.values())
    capture.dropped["unmeasured"] += sum(untimed for _, untimed in said.values())


def read_here(
    directory: Path,
    files: Sequence[CaptureFile],
    folder: Path,
    everything: bool,
    progress: Progress | None,
) -> Notes:
    """Read all files in this process, into Parquet files in a folder."""
    total, done = sum(file.size for file in files), 0
    sql = connect(folder)
    try:
        reader = Reader(sql, directory, folder, everything)
        for batch in batches(files):
            reader.read(files, batch)
            done += sum(files[at].size for at in batch)
            if progress:
                progress(done, total)
        return reader.notes
    finally:
        sql.close()


# Reads files as read_here() does.
Read = Callable[[Path, Sequence[CaptureFile], Path, bool, Progress | None], Notes]


def _take_notes(capture: Capture, notes: Notes) -> None:
    capture.refused.update(notes.refused)
    capture.unknown.update(notes.unknown)
    for metadata in notes.metadata:
        process = metadata["hostname"], metadata["pid"]
        capture.first.setdefault(process, metadata)
        capture.last[process] = metadata


@contextmanager
def load(
    directory: Path,
    everything: bool = False,
    progress: Progress | None = None,
    read: Read = read_here,
) -> Iterator[Capture]:
    """Give the contents of the JSON lines below a directory; they last until the block is left.

    `everything`: also read columns that the analysis does not need. `read` turns the files into
    columns.
    Temporary files in TMPDIR take some 60 bytes for each operation.

    Raises:
        InspectorError: there is no such directory, or no file in it can be read.
        OSError, duckdb.Error: TMPDIR is full, or has no room for what does not fit into memory.
    """
    refused: Counter[str] = Counter()
    files = find_files(directory, refused)
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-") as name:
        folder = Path(name)
        notes = read(directory, files, folder, everything, progress)
        if not notes.parts:
            raise InspectorError(f"{directory}: none of its files can be read")
        sql = connect(folder)
        try:
            capture = Capture(sql, tuple(file.name for file in files), everything, refused)
            capture.ends = _read_ends(directory, files)
            _take_notes(capture, notes)
            sql.execute(f"create view lines as from {parquet(notes.parts)}")
            sql.execute(
                "create view ops as select * exclude (reason, ring_dropped) from lines "
                "where reason = ''"
            )
            _count(capture)
            capture.refused["duplicate"] += join_once(sql)
            count_kinds(sql)
            capture.refused, capture.dropped = +capture.refused, +capture.dropped
            yield capture
        finally:
            sql.close()
