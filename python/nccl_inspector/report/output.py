# SPDX-License-Identifier: Apache-2.0
"""Read throughput and what a job's output says of its end, in a child process.

The path, the file and each of its lines are the user's: a file system may never answer, and with
some lines a pattern of the site may take hours. The child has limits of CPU time and wall time. If
it does not answer, the report is made without throughput, and says so.

The child answers with three lines of JSON: what launchers wrote at the end; what all that is in
the output says together (NCCL, PyTorch, exceptions, launchers), by the reader of `nccl-inspector
logs`; and then the throughput. The first ones remain if the others take too long.
"""

import json
import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from typing import Any

from nccl_inspector.analysis.slow_times.throughput import (
    Reading,
    Readings,
    read_lines,
    read_throughput,
)
from nccl_inspector.model.card import Input, Period
from nccl_inspector.nccl_log.judge import judge_log
from nccl_inspector.nccl_log.launcher_lines import (
    TAIL_BYTES,
    LauncherLines,
    LauncherReader,
    OutputEnd,
)
from nccl_inspector.nccl_log.launcher_lines import from_json as launchers_from_json
from nccl_inspector.nccl_log.launcher_lines import to_json as launchers_to_json
from nccl_inspector.nccl_log.reader import LogReader
from nccl_inspector.nccl_log.wrapped import plain_blocks
from nccl_inspector.report.announced_paths import hangs
from nccl_inspector.report.kept_logs import KeptLog, read_kept
from nccl_inspector.report.nccl_words import NcclWords, words_of
from nccl_inspector.report.nccl_words import from_json as words_from_json
from nccl_inspector.report.nccl_words import to_json as words_to_json
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.safe_files import reopen

CPU_S = 30.0  # four million lines take about 10 s
CPU_S_MIN = 1.0  # with less, the output is not opened
WALL_S = 60.0
_OUTPUT_BYTES_MAX = 256 << 20  # of a longer output only the end is read
# NCCL says how it was set up at the begin of an output, and what went wrong at its end.
_WORDS_HEAD_BYTES, _WORDS_TAIL_BYTES = 32 << 20, 64 << 20
# Of the child's CPU time, when launchers' lines and then NCCL's have been read.
_LAUNCHERS_CPU_SHARE, _WORDS_CPU_SHARE = 1 / 10, 4 / 10
_CHUNK_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 16 << 20  # 20,000 readings are 1 MB
_LINES_AT_ONCE = 64  # lines between two checks of the CPU time
_REAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Output:
    """What to read; `uid`: the files must be this user's (None: anybody's).

    `errors`: where standard error went, if that is another file. `cpu_s`: seconds of CPU time.
    `patterns`: empty means the built-in ones. `job_ids`: lines that name another job are left out
    (None: none are). `begins`: bytes of each file that were there before.
    """

    path: Path
    uid: int | None
    period: Period
    patterns: Sequence[re.Pattern[str]] = ()
    cpu_s: float = CPU_S
    logs: Sequence[KeptLog] = ()  # what is kept of NCCL's own logs
    errors: Path | None = None
    job_ids: frozenset[int] | None = None
    begins: Mapping[Path, int] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files, first the standard output."""
        return (self.path, self.errors) if self.errors else (self.path,)

    def begin_of(self, path: Path, size: int) -> int:
        """Return where to begin to read a file of this size; it may have been made anew."""
        begin = self.begins.get(path, 0)
        return begin if begin <= size else 0


_NO_OUTPUT = Input("throughput", "absent")


@dataclass(frozen=True, slots=True)
class OutputContent:
    """What an output says; `seen`: whether it has throughput, and if not, why."""

    readings: Readings | None = None
    seen: Input = _NO_OUTPUT
    words: NcclWords | None = None
    launchers: LauncherLines | None = None


def read_output(output: Output) -> OutputContent:
    """Return what is in an output."""
    path = output.path
    if output.cpu_s < CPU_S_MIN:
        why = "not read: this user's reports have used up their share of the service's time"
        return OutputContent(seen=Input("throughput", "absent", why))
    answer, words, launchers = _ask_child(output)
    if isinstance(answer, str):
        seen = Input("throughput", "absent", f"{path}{answer}")
        return OutputContent(None, seen, words, launchers)
    notes = "; ".join(answer.notes)
    if not answer.found:
        why = f"{path} has no throughput lines; {notes}".rstrip("; ")
        return OutputContent(None, Input("throughput", "absent", why), words, launchers)
    detail = f"{len(answer.found)} readings of the job's output{f'; {notes}' if notes else ''}"
    return OutputContent(answer, Input("throughput", "present", detail), words, launchers)


def _ask_child(
    output: Output,
) -> tuple[Readings | str, NcclWords | None, LauncherLines | None]:
    """Return what a child finds; of the throughput else why not, which follows the path's name."""
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
    except OSError as err:
        return f" is not read: no pipe: {err.strerror}", None, None
    try:
        pid = start_child(partial(_work, output, writing), [writing])
    except OSError as err:
        os.close(reading)
        return f" is not read: no process: {err.strerror}", None, None
    finally:
        os.close(writing)
    try:
        data = _listen(reading, time.monotonic() + WALL_S)
    finally:
        os.close(reading)
    status = _end(pid, kill=data is None)
    if data is None:
        hangs(pid)
        return f" does not answer: left after {WALL_S:.0f} s", None, None
    first, _, rest = data.partition(b"\n")
    launchers = _launchers_from_json(first)
    first, _, rest = rest.partition(b"\n")
    words = _words_from_json(first)
    if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return f" is not read: it took more than {output.cpu_s:.0f} s of CPU time", words, launchers
    return _from_json(rest), words, launchers


def _listen(fd: int, until_s: float) -> bytes | None:
    """Return everything until the pipe is closed; None: it was not closed in time."""
    parts: list[bytes] = []
    while select.select([fd], [], [], max(0.0, until_s - time.monotonic()))[0]:
        part = os.read(fd, _CHUNK_BYTES)
        parts.append(part)
        if not part or sum(map(len, parts)) > _ANSWER_BYTES_MAX:
            return b"".join(parts)
    return None


def _end(pid: int, *, kill: bool) -> int | None:
    """Return the child's exit status; None: it has not ended, because a file system hangs."""
    until_s = time.monotonic() + _REAP_S
    if kill:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # SIGCHLD is ignored: there is no status
        while time.monotonic() < until_s:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status
            time.sleep(0.01)
    return None


def _launchers_from_json(data: bytes) -> LauncherLines | None:
    """Return what `_work` wrote of launchers; None: nothing, or it broke off."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return None if found is None else launchers_from_json(found)


def _words_from_json(data: bytes) -> NcclWords | None:
    """Return what `_work` wrote of NCCL; None: nothing, or it broke off."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return None if found is None else words_from_json(found)


def _from_json(data: bytes) -> Readings | str:
    """Return what `_work` wrote of throughput, or why there is nothing."""
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        return " is not read: the process that read it broke off"
    if why := found.get("why"):
        return str(why)
    readings = tuple(Reading(time_s, value) for time_s, value in found["found"])
    return Readings(found["unit"], readings, found["refused"], tuple(found["notes"]))


# In the child.


def _work(output: Output, fd: int) -> None:
    signal.alarm(ceil(WALL_S) + 1)  # in case the parent is gone
    hard_s = ceil(output.cpu_s) + 1
    setrlimit(RLIMIT_CPU, (hard_s, hard_s + 1))
    with os.fdopen(fd, "wb") as pipe:
        ends = _read_launchers(output)
        lines = next((one.reader.lines for one in ends.values()), None)
        pipe.write(json.dumps(lines and launchers_to_json(lines)).encode() + b"\n")
        pipe.flush()
        words = _read_words(output, ends)
        pipe.write(json.dumps(words and words_to_json(words)).encode() + b"\n")
        pipe.flush()
        pipe.write(json.dumps(_read_throughput(output)).encode())


def _read_throughput(output: Output) -> dict[str, Any]:
    """Return the readings of the standard output; if it has none, of the standard error."""
    found = _read(output, output.path)
    if output.errors and not (isinstance(found, Readings) and found.found):
        other = _read(output, output.errors)
        if isinstance(other, Readings) and other.found:
            found = replace(other, notes=(f"from {output.errors}", *other.notes))
    if isinstance(found, str):
        return {"why": found}
    rows = [(one.time_s, one.value) for one in found.found]
    return {"unit": found.unit, "found": rows, "refused": found.refused, "notes": found.notes}


def _read_launchers(output: Output) -> dict[Path, OutputEnd]:
    """Return what launchers wrote at the end of each output that can be read.

    They write to standard error, which comes first.
    """
    clock = _CpuTime(output.cpu_s * _LAUNCHERS_CPU_SHARE)
    reader = LauncherReader(output.job_ids)
    ends = {}
    for path, fd, size in _opened(reversed(output.paths), output.uid):
        begin = reader.end
        tail = [(max(output.begin_of(path, size), size - TAIL_BYTES), size)]
        with suppress(OSError, ValueError):
            for block in plain_blocks(_parts(fd, tail, clock)):
                reader.read(block)
        # Of an end that was not read to its end it is not known where lines stand.
        ends[path] = OutputEnd(reader, reader.end if clock.is_over else begin, reader.end)
    return ends


def _read_words(output: Output, ends: Mapping[Path, OutputEnd]) -> NcclWords | None:
    """Return what the begin and the end of the outputs say together; None: nothing."""
    clock = _CpuTime(output.cpu_s * _WORDS_CPU_SHARE)
    reader = LogReader(own_files=bool(output.logs))
    counted: int | None = None  # bytes from which on the numbers of lines are not known

    def parts_of(fd: int, begin: int, size: int) -> Iterator[bytes]:
        nonlocal counted
        if begin:
            counted = reader.offset if counted is None else counted
        parts = [(begin, size)]
        if size - begin > _WORDS_HEAD_BYTES + _WORDS_TAIL_BYTES:
            parts = [(begin, begin + _WORDS_HEAD_BYTES), (size - _WORDS_TAIL_BYTES, size)]
        for at, part in enumerate(parts):
            if at and counted is None:
                counted = reader.offset
            yield from _parts(fd, [part], clock)

    try:
        cut = read_kept(reader, output.logs)
        year = time.gmtime(output.period.end_s).tm_year
        for path, fd, size in _opened(output.paths, output.uid):
            chunks = parts_of(fd, output.begin_of(path, size), size)
            reader.read(path.name, chunks, year, end=ends.get(path))
    except (OSError, ValueError, OverflowError):
        return None
    if not reader.log.lines:
        return None
    partial = clock.is_over or counted is not None or cut
    report = judge_log(reader.log, own_files=bool(output.logs), partial=partial)
    return words_of(report, 0 if clock.is_over else counted)


def _opened(paths: Iterable[Path], uid: int | None) -> Iterator[tuple[Path, int, int]]:
    """Yield those that can be read: path, descriptor and size. They stay open: the child ends."""
    for path in paths:
        with suppress(OSError, ValueError):
            fd = _open_regular(path, uid)
            if fd is not None:
                yield path, fd, os.fstat(fd).st_size


def _parts(fd: int, parts: Sequence[tuple[int, int]], clock: "_CpuTime") -> Iterator[bytes]:
    for begin, end in parts:
        while begin < end and (chunk := os.pread(fd, min(_CHUNK_BYTES, end - begin), begin)):
            yield chunk
            begin += len(chunk)
            if clock.is_used_up():
                return
        yield b"\n"  # the end of a part is no line's end


def _read(output: Output, path: Path) -> Readings | str:
    try:
        fd = _open_regular(path, output.uid)
        if fd is None:
            return " is no file of the job's user"
        clock = _CpuTime(output.cpu_s)
        lines = clock.within(read_lines(_chunks(fd)))
        found = read_throughput(lines, LocalZone(), output.period, output.patterns or None)
    except OSError as err:
        return f": {err.strerror}"
    if not clock.is_over:
        return found
    cut = f"only the part of it was read for which {output.cpu_s:.0f} s of CPU time were enough"
    return Readings(found.unit, found.found, found.refused, (*found.notes, cut))


class LocalZone(tzinfo):
    """The zone of this machine's clock as the C library has it: by TZ, else /etc/localtime.

    `datetime.astimezone().tzinfo` is only what the clock is ahead by at one moment.
    """

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        """Return what the clock was ahead by; of an hour that comes twice by `fold`."""
        return None if at is None else at.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _: datetime | None) -> None:
        """Nobody asks."""

    def tzname(self, at: datetime | None) -> str | None:
        """Return the name of the time then, such as CEST."""
        return None if at is None else at.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, at: datetime) -> datetime:
        """Return a time in UTC as the clock had it."""
        local = datetime.fromtimestamp(at.replace(tzinfo=UTC).timestamp())
        return local.replace(tzinfo=self)


class _CpuTime:
    """The CPU time that this process may use from its start on, and whether it is used up."""

    def __init__(self, seconds: float) -> None:
        self._until_s = seconds
        self.is_over = False

    def is_used_up(self) -> bool:
        """Tell whether the time is used up."""
        self.is_over = time.process_time() > self._until_s
        return self.is_over

    def within(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield lines until the time is used up."""
        while some := list(islice(lines, _LINES_AT_ONCE)):
            if self.is_used_up():
                return
            yield from some


def _chunks(fd: int) -> Iterator[bytes]:
    size = os.fstat(fd).st_size
    os.lseek(fd, max(0, size - _OUTPUT_BYTES_MAX), os.SEEK_SET)
    left = _OUTPUT_BYTES_MAX
    while left > 0 and (chunk := os.read(fd, min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


def _open_regular(path: Path, uid: int | None) -> int | None:
    """Return a descriptor; None if it is not a regular file of `uid` (None: of anybody).

    The path is checked before it is opened, because opening a device can have an effect.

    Raises:
        OSError: it does not exist, or may not be read.
    """
    path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(path_fd)
        if not stat.S_ISREG(status.st_mode) or (uid is not None and status.st_uid != uid):
            return None
        return reopen(path_fd)
    finally:
        os.close(path_fd)
