# SPDX-License-Identifier: Apache-2.0
"""Read a capture into columns with DuckDB, in limited memory; bad lines are counted by reason."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import duckdb

from nccl_inspector.capture import first_look, second_look
from nccl_inspector.capture.bursts import find_bursts
from nccl_inspector.capture.capture_files import END, CaptureFile, find_files, opened
from nccl_inspector.capture.contents import Capture, Process, Source
from nccl_inspector.capture.end_files import END_BYTES_MAX, End, parse_end
from nccl_inspector.capture.joined import find_window_s
from nccl_inspector.capture.line_schema import MARKER, OTHER_KIND, PROXY, UNTIMED
from nccl_inspector.capture.reader import Notes, Reader, batches, connect, parquet
from nccl_inspector.capture.second_look import Question
from nccl_inspector.errors import InspectorError

# Called with how much is done, and how much there is.
Progress = Callable[[int, int], None]
# About where each round ends, in percent of the time.
_READ, _LOOKED = 70, 90
_STEPS = 1000  # of progress

# File names, as plugin/json/file.c makes them.
_FILE = re.compile(
    r"(?P<host>[^/]*)-pid(?P<pid>[0-9]{1,10})(\.(?P<number>[0-9]{1,9}))?\.log(\.gz)?$"
)
_REASONS = "select reason, sum(n)::bigint from reasons group by reason"
_RING = "select coalesce(sum(n), 0)::bigint from rings"
_LOST = "select hostname, pid, max(lines), max(unmeasured) from lost group by hostname, pid"


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


def _said_lost(capture: Capture, notes: Notes) -> dict[Process, tuple[int, int]]:
    """Return the most that lines say of lines lost and operations unmeasured; both only grow."""
    rows = [
        (one["hostname"], one["pid"], one.get("lines_dropped"), one.get("operations_unmeasured"))
        for of_file in notes.metadata.values()
        for one in of_file
    ]
    found: dict[Process, tuple[int, int]] = {}
    for hostname, pid, lines, unmeasured in (*rows, *capture.sql.execute(_LOST).fetchall()):
        before = found.get((hostname, pid), (0, 0))
        found[hostname, pid] = max(before[0], lines or 0), max(before[1], unmeasured or 0)
    return found


def _count(capture: Capture, notes: Notes) -> None:
    """Count the refused lines, and the operations that are reported to have no line."""
    sql = capture.sql
    for reason, count in sql.execute(_REASONS).fetchall():
        if reason in (UNTIMED, PROXY):
            capture.dropped[reason] += count
        elif reason not in ("", MARKER, OTHER_KIND):
            capture.refused[reason] += count
    rings = sql.execute(_RING).fetchall()[0][0]
    capture.dropped["ring_full"] += rings
    said = _said_lost(capture, notes)
    capture.lost = {process: sum(counts) for process, counts in said.items()}
    capture.holed = {process for process, count in capture.lost.items() if count}
    capture.holed |= _rotated(capture.files)
    capture.dropped["line_dropped"] += sum(lines for lines, _ in said.values())
    capture.dropped["unmeasured"] += sum(untimed for _, untimed in said.values())


class Workers(Protocol):
    """Do what takes long: read the lines, and look at all operations."""

    def read(self, source: Source, folder: Path, progress: Progress | None) -> Notes:
        """Turn files into Parquet files; a folder of this host may be used."""

    def look(
        self, sql: duckdb.DuckDBPyConnection, notes: Notes, once: bool, progress: Progress | None
    ) -> int | None:
        """Make the tables of the first look in `sql`; see first_look.look()."""

    def look_again(
        self, sql: duckdb.DuckDBPyConnection, question: Question, progress: Progress | None
    ) -> None:
        """Make the tables of the second look in `sql`, which has what second_look.NEEDS names."""


class Here:
    """Does all in this process."""

    def read(self, source: Source, folder: Path, progress: Progress | None) -> Notes:
        """Read all files, into Parquet files in the folder."""
        files = source.files
        total, done = sum(file.size for file in files), 0
        sql = connect(folder)
        try:
            reader = Reader(sql, source.directory, folder, source.everything)
            for batch in batches(files):
                reader.read(files, batch)
                done += sum(files[at].size for at in batch)
                if progress:
                    progress(done, total)
            return reader.notes
        finally:
            sql.close()

    def look(
        self, sql: duckdb.DuckDBPyConnection, notes: Notes, once: bool, progress: Progress | None
    ) -> int | None:
        """Look for the first time; the whole capture is one share."""
        sql.execute(f"create or replace view lines as from {parquet(notes.parts[0])}")
        removed = first_look.look(sql, once)
        if progress:
            progress(1, 1)
        return removed

    def look_again(
        self, sql: duckdb.DuckDBPyConnection, question: Question, progress: Progress | None
    ) -> None:
        """Look for the second time."""
        second_look.look(sql, question)
        if progress:
            progress(1, 1)


def _take_notes(capture: Capture, notes: Notes) -> None:
    """Take what the files say, the oldest first, in whatever order they were read."""
    capture.refused.update(notes.refused)
    capture.refused["file_unreadable"] += len(notes.unreadable)
    capture.unknown.update(notes.unknown)
    numbers = {
        at: whose[1] for at, name in enumerate(capture.files) if (whose := _process_of(name))
    }
    for at in sorted(notes.metadata, key=lambda at: (numbers.get(at, 0), at)):
        for metadata in notes.metadata[at]:
            process = metadata["hostname"], metadata["pid"]
            capture.first.setdefault(process, metadata)


def _part(progress: Progress | None, begin: int, end: int) -> Progress | None:
    """Return a function that shows the progress of a round; begin and end are in percent."""
    if progress is None:
        return None
    tell = progress

    def show(done: int, total: int) -> None:
        percent = begin + (end - begin) * done / max(total, 1)
        tell(int(percent * _STEPS / 100), _STEPS)

    return show


def _look(capture: Capture, notes: Notes, workers: Workers, progress: Progress | None) -> None:
    """Make all tables."""
    sql = capture.sql
    shown = _part(progress, _READ, _LOOKED)
    removed = workers.look(sql, notes, False, shown)
    if removed is None:
        removed = workers.look(sql, notes, True, shown)
    capture.refused["duplicate"] += removed or 0
    _count(capture, notes)
    capture.window_s = find_window_s(sql)
    capture.bursts, capture.why_no_bursts = find_bursts(capture)
    second_look.prepare(sql)
    question = Question(capture.window_s, capture.bursts)
    workers.look_again(sql, question, _part(progress, _LOOKED, 100))


@contextmanager
def load(
    directory: Path,
    everything: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Iterator[Capture]:
    """Give the contents of the JSON lines below a directory; they last until the block is left.

    `everything`: also read columns that the analysis does not need. Without `workers` all is done
    in this process.
    Temporary files in TMPDIR take some 20 bytes for each operation, or 60 with `everything`.

    Raises:
        InspectorError: there is no such directory, or no file in it can be read.
        OSError, duckdb.Error: TMPDIR is full, or has no room for what does not fit into memory.
    """
    workers = workers or Here()
    refused: Counter[str] = Counter()
    files = find_files(directory, refused)
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-") as name:
        folder = Path(name)
        source = Source(directory, files, everything)
        notes = workers.read(source, folder, _part(progress, 0, _READ))
        if not notes.parts:
            raise InspectorError(
                f"{directory}: none of its files can be read"
                if len(notes.unreadable) == len(files)
                else "no operation in these files"
            )
        sql = connect(folder)
        try:
            capture = Capture(sql, tuple(file.name for file in files), everything, refused)
            capture.ends = _read_ends(directory, files)
            _take_notes(capture, notes)
            _look(capture, notes, workers, progress)
            capture.refused, capture.dropped = +capture.refused, +capture.dropped
            yield capture
        finally:
            sql.close()
