# SPDX-License-Identifier: Apache-2.0
"""Turn files of JSON lines into Parquet files, and note what else they say.

DuckDB gets only descriptors of regular files, never a path that a user controls. Files that it
cannot read itself are first copied line by line: a truncated gzip file, a line that is too long, or
lines without a header.
"""

import errno
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import duckdb

from nccl_inspector.capture.capture_files import CaptureFile, opened
from nccl_inspector.capture.file_parts import Part, bytes_of, piped
from nccl_inspector.capture.line_records import Json, parse_record
from nccl_inspector.capture.line_schema import Wanted, quoted, select_lines
from nccl_inspector.capture.lines import read_lines
from nccl_inspector.capture.members import COLL, P2P
from nccl_inspector.capture.restore import needs_context, restored
from nccl_inspector.capture.shares import share_sql
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.printable import visible

MEMORY = "1GB"  # for DuckDB; the rest of the process needs some 200 MB
_BATCH_FILES, _BATCH_BYTES = 64, 1 << 30
_SNIFFED_LINES = 32
_COPY_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  # as DuckDB's errors have it


def reason_of(err: Exception) -> str:
    """Return what an error of DuckDB or of the system says, in a few words."""
    said = str(err).splitlines()[0] if str(err) else type(err).__name__
    return next((words for words in _NO_ROOM if words in said), visible(said))


@dataclass
class Notes:
    """What was found besides the operations."""

    # Parquet files by share (shares.py), with one row for each line.
    parts: dict[int, list[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)  # lines, by reason
    unknown: Counter[str] = field(default_factory=Counter)  # members not in members.py
    unreadable: set[int] = field(default_factory=set)  # files
    # By file, metadata of the lines that were looked at: the first ones, and the last one.
    metadata: dict[int, list[Json]] = field(default_factory=dict)

    def add(self, other: "Notes") -> None:
        """Add what was found in later files."""
        self.add_parts(other.parts)
        self.refused.update(other.refused)
        self.unknown.update(other.unknown)
        self.unreadable |= other.unreadable
        for at, found in other.metadata.items():
            self.metadata.setdefault(at, []).extend(found)

    def add_parts(self, parts: Mapping[int, Sequence[str]]) -> None:
        """Add files to the shares."""
        for share, names in parts.items():
            self.parts.setdefault(share, []).extend(names)


def parquet(parts: Sequence[str]) -> str:
    """Return the SQL for the rows of Parquet files, whatever their path looks like."""
    listed = ", ".join(map(quoted, parts))
    return f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"


def connect(folder: Path, threads: int = 0) -> duckdb.DuckDBPyConnection:
    """Return a database in limited memory that may spill into a folder.

    `threads`: how many threads it has; 0: one for each CPU that this process may use.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY,
        "threads": threads or len(os.sched_getaffinity(0)),
        "temp_directory": str(folder / "spilled"),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "preserve_insertion_order": "false",
    }
    sql = duckdb.connect(":memory:", config=config)
    sql.execute("set enable_progress_bar = false")  # it goes to stdout, as the report does
    return sql


def _sniff(fd: int, file: CaptureFile, at: int, notes: Notes) -> bool:
    """Look at the first lines and note their metadata; return whether lines need a header."""
    ignored: Counter[str] = Counter()
    first = list(islice(read_lines(fd, file.gzipped, ignored), _SNIFFED_LINES))
    bare = needs_context(first)
    found: dict[tuple[str, int], list[Json]] = {}
    for line in restored(first, ignored) if bare else first:
        try:
            record = parse_record(line)
        except RefusedError:
            continue  # counted when the whole file is read
        notes.unknown.update(record.unknown)
        said = record.metadata
        found.setdefault((said["hostname"], said["pid"]), [said])[1:] = [said]
    for of_process in found.values():
        notes.metadata.setdefault(at, []).extend(of_process)
    return bare


def _look_at_end(fd: int, size: int, at: int, notes: Notes) -> None:
    """Note the metadata of the last complete line; it has the number of lines lost until then."""
    tail = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    for line in reversed(tail.split(b"\n")[-_SNIFFED_LINES:]):
        try:
            metadata = parse_record(line).metadata
        except RefusedError:
            continue
        notes.metadata.setdefault(at, []).append(metadata)
        return


def _copied(
    fd: int,
    file: CaptureFile,
    bare: bool,
    folder: Path,
    refused: Counter[str],
    part: tuple[int, int | None] = (0, None),
) -> Path:
    """Return our own copy of the lines of a file that DuckDB cannot read itself."""
    lines = read_lines(fd, file.gzipped, refused, part)
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb", buffering=_COPY_BYTES) as copy:
        for line in restored(lines, refused) if bare else lines:
            copy.write(line + b"\n")
    return Path(name)


def batches(files: Sequence[CaptureFile]) -> Iterator[list[int]]:
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


class Reader:
    """Reads files below a directory into Parquet files in a folder, whose names have a prefix."""

    def __init__(
        self,
        sql: duckdb.DuckDBPyConnection,
        directory: Path,
        folder: Path,
        everything: bool,
        prefix: str = "",
        shares: int = 1,
    ) -> None:
        """`everything`: also read columns that the analysis does not need.

        `shares`: into how many shares the lines are divided.
        """
        self._sql = sql
        self._directory = directory
        self._folder = folder
        self._everything = everything
        self._prefix = prefix
        self._shares = shares
        self._written = 0
        self.notes = Notes()

    def read(self, files: Sequence[CaptureFile], batch: Sequence[int]) -> None:
        """Read a batch of files, together if that is possible."""
        gzipped = files[batch[0]].gzipped
        with ExitStack() as stack:
            plain: dict[str, int] = {}
            for at in batch:
                try:
                    fd = stack.enter_context(opened(self._directory, files[at]))
                except OSError:
                    self.notes.unreadable.add(at)
                    continue
                if _sniff(fd, files[at], at, self.notes):
                    self._read_copy(fd, files[at], at, True)
                    continue
                plain[f"/proc/self/fd/{fd}"] = at
                if not gzipped:
                    _look_at_end(fd, files[at].size, at, self.notes)
            if plain and not self._take(plain, gzipped):
                for path, at in plain.items():
                    if len(plain) == 1 or not self._take({path: at}, gzipped):
                        self._read_copy(int(path.rpartition("/")[2]), files[at], at, False)

    def read_part(self, file: CaptureFile, at: int, part: Part) -> None:
        """Read a part of a plain file, which has the number `at`.

        What was found in its first and last lines is noted with the first and the last part. If its
        lines need a header, the first part has them all.
        """
        try:
            with opened(self._directory, file) as fd:
                self._read_part(fd, file, at, part)
        except OSError as err:
            if err.strerror in _NO_ROOM:
                raise
            self.notes.unreadable.add(at)

    def _read_part(self, fd: int, file: CaptureFile, at: int, part: Part) -> None:
        first = Notes()
        bare = _sniff(fd, file, at, first)
        if part.begin == 0:
            self.notes.add(first)
        if bare:
            if part.begin == 0:
                self._read_copy(fd, file, at, True)
            return
        if part.end >= file.size:
            _look_at_end(fd, file.size, at, self.notes)
        begin, end = bytes_of(fd, part, file.size)

        @contextmanager
        def source() -> Iterator[dict[str, int]]:
            with piped(fd, begin, end) as pipe:
                yield {f"/proc/self/fd/{pipe}": at}

        if begin < end and not self._take_from(source, False):
            self._read_copy(fd, file, at, False, (begin, end))

    def _take(self, paths: Mapping[str, int], gzipped: bool) -> bool:
        """Return whether DuckDB could read these files; if not, nothing was taken from them."""
        return self._take_from(lambda: nullcontext(paths), gzipped)

    def _take_from(
        self, source: Callable[[], AbstractContextManager[Mapping[str, int]]], gzipped: bool
    ) -> bool:
        """Do the same with files that are opened for each query."""
        # The last line of a compressed file cannot be looked at by itself.
        wanted = Wanted(self._everything, losses=gzipped)
        try:
            with source() as paths:
                written = [self._write(select_lines(paths, COLL, wanted, gzipped))]
            if self._has_other_kind(written[0]):
                where = "where reason not in ('not_a_record', 'proxy_trace', 'dump_stats')"
                with source() as paths:
                    query = select_lines(paths, P2P, wanted, gzipped)
                    written.append(self._write(query, where))
        except (duckdb.IOException, duckdb.InvalidInputException) as err:
            if any(words in str(err) for words in _NO_ROOM):
                raise  # the file is not the cause
            return False
        for parts in written:
            self.notes.add_parts(parts)
        return True

    def _has_other_kind(self, parts: Mapping[int, Sequence[str]]) -> bool:
        listed = [name for names in parts.values() for name in names]
        question = f"select count(*) from {parquet(listed)} where reason = 'other_kind'"
        return bool(listed) and self._sql.execute(question).fetchall()[0][0] > 0

    def _write(self, query: str, where: str = "") -> dict[int, list[str]]:
        """Write lines; return the files by share."""
        self._written += 1
        place = self._folder / f"{self._prefix}{self._written}.parquet"
        into = f"to {quoted(str(place))} (format parquet"
        if self._shares == 1:
            self._sql.execute(f"copy (select * from ({query}) {where}) {into})")
            return {0: [str(place)]}
        share = share_sql(self._shares)
        self._sql.execute(
            f"copy (select *, {share} as share from ({query}) {where}) {into}, partition_by share)"
        )
        if not place.exists():  # there was no line
            return {}
        return {
            int(folder.name.removeprefix("share=")): sorted(map(str, folder.iterdir()))
            for folder in sorted(place.iterdir())
        }

    def _read_copy(
        self,
        fd: int,
        file: CaptureFile,
        at: int,
        bare: bool,
        part: tuple[int, int | None] = (0, None),
    ) -> None:
        copy = _copied(fd, file, bare, self._folder, self.notes.refused, part)
        try:
            if not self._take({str(copy): at}, False):
                self.notes.unreadable.add(at)
        finally:
            copy.unlink()
