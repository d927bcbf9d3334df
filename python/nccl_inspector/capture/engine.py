# SPDX-License-Identifier: Apache-2.0
"""Read a capture into columns with DuckDB, in limited memory; bad lines are counted by reason.

DuckDB gets only descriptors of regular files, never a path that a user controls. Files that it
cannot read itself are first copied line by line: a truncated gzip file, a line that is too long, or
lines without a header.
"""

import errno
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import duckdb

from nccl_inspector.capture.capture_files import END, CaptureFile, find_files, opened
from nccl_inspector.capture.collectives import join_once
from nccl_inspector.capture.end_files import END_BYTES_MAX, End, parse_end
from nccl_inspector.capture.line_records import Json, parse_record
from nccl_inspector.capture.line_schema import (
    MARKER,
    OTHER_KIND,
    PROXY,
    UNTIMED,
    quoted,
    select_lines,
)
from nccl_inspector.capture.lines import read_lines
from nccl_inspector.capture.members import COLL, P2P
from nccl_inspector.capture.operation_counts import count_kinds
from nccl_inspector.capture.restore import needs_context, restored
from nccl_inspector.errors import InspectorError, RefusedError

MEMORY = "1GB"  # for DuckDB; the rest of the process needs some 200 MB
_BATCH_FILES, _BATCH_BYTES = 64, 1 << 30
_SNIFFED_LINES = 32
_COPY_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
DISK_FULL = os.strerror(errno.ENOSPC)  # DuckDB's error texts contain it

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


def _note(capture: Capture, metadata: Json) -> None:
    process = metadata["hostname"], metadata["pid"]
    capture.first.setdefault(process, metadata)
    capture.last[process] = metadata


def _sniff(fd: int, file: CaptureFile, capture: Capture) -> bool:
    """Look at the first lines and note their metadata; return whether lines need a header."""
    ignored: Counter[str] = Counter()
    first = list(islice(read_lines(fd, file.gzipped, ignored), _SNIFFED_LINES))
    bare = needs_context(first)
    for line in restored(first, ignored) if bare else first:
        try:
            record = parse_record(line)
        except RefusedError:
            continue  # counted when the whole file is read
        capture.unknown.update(record.unknown)
        _note(capture, record.metadata)
    return bare


def _look_at_end(fd: int, size: int, capture: Capture) -> None:
    """Note the metadata of the last complete line; it has the number of lines lost until then."""
    tail = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    for line in reversed(tail.split(b"\n")[-_SNIFFED_LINES:]):
        try:
            _note(capture, parse_record(line).metadata)
        except RefusedError:
            continue
        return


def _copied(fd: int, file: CaptureFile, bare: bool, folder: Path, refused: Counter[str]) -> Path:
    """Return our own copy of the lines of a file that DuckDB cannot read itself."""
    lines = read_lines(fd, file.gzipped, refused)
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb", buffering=_COPY_BYTES) as copy:
        for line in restored(lines, refused) if bare else lines:
            copy.write(line + b"\n")
    return Path(name)


def _batches(files: Sequence[CaptureFile]) -> Iterator[list[int]]:
    """Yield the indices of files to read together; these are all gzipped, or all plain."""
    for gzipped in (False, True):
        batch: list[int] = []
        size = 0
        for at, file in enumerate(files):
            if file.gzipped != gzipped:
                continue
            batch.append(at)
            size += file.size
            if len(batch) == _BATCH_FILES or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


class _Loader:
    """Reads files into temporary Parquet files."""

    def __init__(self, capture: Capture, directory: Path, folder: Path) -> None:
        self._capture = capture
        self._directory = directory
        self._folder = folder
        self.parts: list[str] = []
        self._written = 0

    def read(self, files: Sequence[CaptureFile], batch: Sequence[int]) -> None:
        """Read a batch of files, together if that is possible."""
        gzipped = files[batch[0]].gzipped
        with ExitStack() as stack:
            plain: dict[str, int] = {}
            for at in batch:
                try:
                    fd = stack.enter_context(opened(self._directory, files[at]))
                except OSError:
                    self._capture.refused["file_unreadable"] += 1
                    continue
                if _sniff(fd, files[at], self._capture):
                    self._read_copy(fd, files[at], at, True)
                    continue
                plain[f"/proc/self/fd/{fd}"] = at
                if not gzipped:
                    _look_at_end(fd, files[at].size, self._capture)
            if plain and not self._take(plain, gzipped):
                for path, at in plain.items():
                    if len(plain) == 1 or not self._take({path: at}, gzipped):
                        self._read_copy(int(path.rpartition("/")[2]), files[at], at, False)

    def _take(self, paths: dict[str, int], gzipped: bool) -> bool:
        """Return whether DuckDB could read these files; if not, nothing was taken from them."""
        everything = self._capture.everything or gzipped
        try:
            part = self._write(select_lines(paths, COLL, everything, gzipped))
            other = f"select count(*) from read_parquet({quoted(part)}) where reason = 'other_kind'"
            parts = [part]
            if self._capture.sql.execute(other).fetchall()[0][0]:
                query = select_lines(paths, P2P, everything, gzipped)
                parts.append(
                    self._write(
                        query, "where reason not in ('not_a_record', 'proxy_trace', 'dump_stats')"
                    )
                )
        except (duckdb.IOException, duckdb.InvalidInputException) as err:
            if DISK_FULL in str(err):
                raise  # the file is not the cause
            return False
        self.parts += parts
        return True

    def _write(self, query: str, where: str = "") -> str:
        self._written += 1
        name = str(self._folder / f"{self._written}.parquet")
        self._capture.sql.execute(
            f"copy (select * from ({query}) {where}) to {quoted(name)} (format parquet)"
        )
        return name

    def _read_copy(self, fd: int, file: CaptureFile, at: int, bare: bool) -> None:
        copy = _copied(fd, file, bare, self._folder, self._capture.refused)
        try:
            if not self._take({str(copy): at}, False):
                self._capture.refused["file_unreadable"] += 1
        finally:
            copy.unlink()


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


def _connect(folder: Path) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "temp_directory": str(folder / "spilled"),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "preserve_insertion_order": "false",
    }
    return duckdb.connect(":memory:", config=config)


@contextmanager
def load(
    directory: Path, everything: bool = False, progress: Progress | None = None
) -> Iterator[Capture]:
    """Give the contents of the JSON lines below a directory; they last until the block is left.

    `everything`: also read columns that the analysis does not need. Temporary files in TMPDIR take
    some 30 bytes for each operation.

    Raises:
        InspectorError: there is no such directory, or no file in it can be read.
        OSError, duckdb.Error: TMPDIR is full, or has no room for what does not fit into memory.
    """
    refused: Counter[str] = Counter()
    files = find_files(directory, refused)
    total, done = sum(file.size for file in files), 0
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-") as name:
        folder = Path(name)
        sql = _connect(folder)
        try:
            capture = Capture(sql, tuple(file.name for file in files), everything, refused)
            capture.ends = _read_ends(directory, files)
            loader = _Loader(capture, directory, folder)
            for batch in _batches(files):
                loader.read(files, batch)
                done += sum(files[at].size for at in batch)
                if progress:
                    progress(done, total)
            if not loader.parts:
                raise InspectorError(f"{directory}: none of its files can be read")
            parts = ", ".join(map(quoted, loader.parts))
            sql.execute(f"create view lines as from read_parquet([{parts}], union_by_name=true)")
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
