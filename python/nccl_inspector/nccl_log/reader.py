# SPDX-License-Identifier: Apache-2.0
"""Read logs of any size and number, and keep what is said of each process and by each rule.

Memory is bounded by the number of processes, of rules and of what is kept for each of these,
whatever the size of the logs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import floor
from typing import Final

from nccl_inspector.model.card import CRITICAL
from nccl_inspector.nccl_log.catalogue import LogRule, Matcher, Role
from nccl_inspector.nccl_log.job_lines import ERROR
from nccl_inspector.nccl_log.job_reader import JobReader
from nccl_inspector.nccl_log.kept import Hits, Keeper, Log
from nccl_inspector.nccl_log.launcher_lines import OutputEnd
from nccl_inspector.nccl_log.lines import (
    COUNTED_WAY,
    HEAD_BYTES_MAX,
    LAST_ERROR,
    LEVELS,
    MARK,
    MESSAGE_BYTES_MAX,
    NCCL_LINE_BYTES,
    NET_GDRDMA,
    TIME,
    Head,
    divide,
    parse_diag_head,
    parse_head,
    parse_text_head,
    seconds_of,
    thread_of,
)
from nccl_inspector.nccl_log.prefixes import read_prefix
from nccl_inspector.nccl_log.process_log import (
    HANDLERS,
    LOOKED_UP,
    ProcessLog,
    Room,
    set_variable,
    set_version,
)
from nccl_inspector.nccl_log.record import Level, Record
from nccl_inspector.nccl_log.torch_lines import (
    DESYNC_MARK,
    counts_of,
    desync_of,
    group_of,
    operation_of,
    parse_torch_head,
    severity_of,
)
from nccl_inspector.nccl_log.wrapped import plain_blocks

PROCESSES_MAX = 16384
_HEADS_MAX = 65536
_SECONDS_MAX = 4096
_SECOND_BYTES = len("2026-11-25 10:11:12")
_CUT_BYTES = NCCL_LINE_BYTES - 1, NCCL_LINE_BYTES
_VARIABLE_WORDS: Final = b" set by environment to "

# A pattern that begins with plain text passes over other text faster than `find` does.
_CCL = re.compile(rb"CCL")
# A call of NCCL's that came back with an error: file:line -> result.
_TRACE = re.compile(rb"[\w./+-]{1,200}:\d{1,6} -> (\d{1,3})(?: \[[^\]]{1,32}\])?\s{0,64}$")
_IN_PROGRESS = 7
_AFTER_LINES_MAX = 256  # after a warning: in these NCCL says which calls failed by it
_WRAPPED_BYTES_MAX = 400  # behind a line of PyTorch's that may go on in the next one
_DESYNC_BYTES_MAX = 16 << 10
_DESYNCS_MAX = 64


class LogReader:
    """Takes the bytes of logs, one file after the other."""

    def __init__(self, *, own_files: bool = False) -> None:
        """`own_files`: each file is of one process, so equal host and pid are not the same one."""
        self.log = Log()
        self._keeper = Keeper(self.log)
        self._matcher = Matcher()
        self._own_files = own_files
        self._job = JobReader(self._keeper, self._matcher, self._process, self._place)
        self._is_output = True
        self._by_key: dict[tuple[int, int | None, str, int | None, str], int] = {}
        self._by_head: dict[bytes, int] = {}
        self._loud_heads: dict[bytes, tuple[Head, int]] = {}
        self._file, self._year, self._label = "", 0, -1
        self._block_start, self._lines_before = 0, 1
        self._block, self._last_counted = b"", (0, 1)
        self._version = ""
        self._seconds: dict[bytes, float | None] = {}
        self._room = Room()
        self._unfinished: bytes | None = None  # the head of a `Last error:` that ended its block
        self._offset = 0  # of all blocks
        self._unversioned: list[int] = []  # processes of this file, until a version is told
        # The last line of a thread, if it is a warning after which a call of NCCL's may fail.
        self._pending: dict[bytes, Hits] = {}
        self._since_warning = 0  # lines of level INFO

    def read(
        self,
        name: str,
        chunks: Iterable[bytes],
        year: int = 0,
        label: int | None = None,
        *,
        is_output: bool = True,
        end: OutputEnd | None = None,
    ) -> None:
        """Read a file; `label` is the number of the task that wrote it, if its name says so.

        `year`: of times that have none. `is_output`: lines of launchers, exceptions and the like
        are read, too. `end`: what launchers wrote at its end, if that has been read.
        """
        log = self.log
        self._is_output = is_output
        log.files += 1
        self._file, self._year = name, year
        self._label = -1 if label is None else label
        self._lines_before, self._version = 1, ""
        self._by_head.clear()
        self._loud_heads.clear()
        self._pending.clear()
        self._unversioned.clear()
        for block in plain_blocks(self._counted(chunks)):
            self._block = block
            self._last_counted = (0, self._lines_before)
            self._read_block(block)
            self._lines_before += block.count(b"\n")
            self._offset += len(block)
        if is_output:
            self._job.end_file(name, self._offset, self._lines_before, end)

    @property
    def offset(self) -> int:
        """How many bytes of all files have been taken apart, as `Quote.order` counts them."""
        return self._offset

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.log.bytes += len(chunk)
            yield chunk

    def _read_block(self, block: bytes) -> None:
        # Most blocks of a job's output have nothing of what follows.
        first = _CCL.search(block)
        if first is not None:
            self._read_lines(block, first.start())
        self._rest_of(block)

    def _read_lines(self, block: bytes, begin: int) -> None:
        """Take NCCL's and PyTorch's lines; none is before `begin`."""
        heads, processes = self._by_head, self.log.processes
        rfind = block.rfind
        lines = 0
        for match in MARK.finditer(block, begin):
            start = match.start()
            # The mark begins behind the first letter: NCCL, RCCL.
            line = rfind(b"\n", max(0, start - HEAD_BYTES_MAX), start) + 1
            head = block[max(line, start - HEAD_BYTES_MAX) : start and start - 1]
            message = match[1]
            if message is None:
                lines += 1
                self._other(match, head, line)
                continue
            # Lines of level INFO are very many, so their heads are taken apart only once.
            parts = head.rsplit(b" ", 3)
            key = parts[-3] if len(parts) > 2 else head
            colon = head.find(b": ", 0, 10)
            if colon > 0:
                key = head[:colon] + b" " + key
            number = heads.get(key)
            if number is None:
                number = self._process_of(head)
                if len(heads) >= _HEADS_MAX:
                    heads.clear()
                heads[key] = number
            if number >= 0:
                self._info(number, processes[number], message, head, line, match.end())
        # What is counted without looking at lines.
        self.log.lines += lines + block.count(b"CCL INFO ")
        self._count_ways(block)

    def _rest_of(self, block: bytes) -> None:
        """Take what is no line of NCCL's or PyTorch's."""
        error_at = block.find(ERROR)
        if error_at >= 0 or self._unfinished is not None:
            self._last_errors(block)
        if self._is_output:
            self._job.read(block, self._offset, self._year, error_at)

    def _count_ways(self, block: bytes) -> None:
        ways = self.log.ways
        for way, found in Counter(COUNTED_WAY.findall(block)).items():
            ways[way.decode() if way.startswith(b"P2P") else NET_GDRDMA] += found

    def _process_of(self, head: bytes) -> int:
        return self._process(parse_head(head), head, torn=b"CCL " in head)

    def _other(self, match: re.Match[bytes], head: bytes, line: int) -> None:
        """Take a line that is not of level INFO."""
        _, word, message, torch, failed = match.groups()
        if torch is not None:
            self._torch(head, torch, line, match.end())
        elif failed is not None:
            self._torch(head, b"error in: " + failed, line, match.end())
        elif word == b"version":
            start = match.start()
            self._bare_version(head, message, self._block[start - 1 : start])
        else:
            self._said(LEVELS[word], head, message, line, match.end())

    # One kind of line each.

    def _info(
        self, number: int, process: ProcessLog, message: bytes, head: bytes, line: int, end: int
    ) -> None:
        first = message[: message.find(b" ")]
        handler = HANDLERS.get(first)
        if self._pending:
            self._after_warning(head, message)
        if b" NCCL " in message and (parts := divide(message)) is not None:
            own, head_of_other, rest = parts
            self._info(number, process, own, head, line, end)
            self._divided(head_of_other, rest, line)
            return
        if handler is not None:
            handler(process, message)
            if first not in LOOKED_UP:
                return
        elif _VARIABLE_WORDS in message:
            set_variable(process, message)
        elif b" -> " in message[-32:] and (trace := _TRACE.match(message)) is not None:
            self._returned(number, head, message, int(trace[1]), line)
            return
        if first == b"NET/IB" and end - line >= NCCL_LINE_BYTES - 1 and b": Using " in message:
            process.hcas_cut = True
        rule = self._matcher.find(Level.INFO, message, process.numbers)
        if rule is not None:
            told = parse_head(head)
            self._hit(rule, number, self._record(Level.INFO, told, message, line, end), line)

    def _returned(self, number: int, head: bytes, message: bytes, code: int, line: int) -> None:
        """Take a call of NCCL's that came back with a result; it is one more symptom at most."""
        if code in (0, _IN_PROGRESS):
            return
        rule = self._matcher.rule("return-trace")
        hits = self.log.hits.get(rule.id)
        if hits is not None and number in hits.first:
            hits.count += 1
            return
        record = replace(self._record(Level.INFO, parse_head(head), message, line, line), code=code)
        self._hit(rule, number, record, line)

    def _after_warning(self, head: bytes, message: bytes) -> None:
        """Note that NCCL failed, if this line of the same thread says so right after a warning."""
        self._since_warning += 1
        if self._since_warning > _AFTER_LINES_MAX:
            self._pending.clear()
            return
        key = thread_of(head)
        hits = self._pending.get(key)
        if hits is None:
            return
        trace = _TRACE.match(message)
        code = int(trace[1]) if trace else 0
        if code in (0, _IN_PROGRESS):
            del self._pending[key]
            return
        hits.code = code
        self._failed_by(hits)

    def _failed_by(self, hits: Hits) -> None:
        """Note that a call of NCCL's failed by what a warning says."""
        if hits.rule.id == "warning":
            hits.rule = self._matcher.rule("nccl-failed")
        elif hits.rule.role is Role.ERROR:
            hits.severity = CRITICAL

    def _said(self, level: Level, head: bytes, message: bytes, line: int, end: int) -> None:
        if b" NCCL " in message and (parts := divide(message)) is not None:
            message, head_of_other, rest = parts
            self._divided(head_of_other, rest, line)
        parse = parse_diag_head if level is Level.DIAG else parse_head
        told, number, time_s = self._loud_head(head, parse)
        if number < 0:
            return
        process = self.log.processes[number]
        self.log.loud += level is not Level.DIAG
        message = message.rstrip()
        rule = self._matcher.find(level, message, process.numbers, told.site)
        if rule is not None:
            begin = line + told.start
            self.log.cut += end - begin in _CUT_BYTES
            key = self._keeper.key(rule, message)
            hits = self.log.hits.get(key)
            if hits is None or not self._keeper.counts_only(hits, number, time_s):
                timed = replace(told, time_s=time_s)
                record = self._record(level, timed, message, line, end)
                hits = self._hit(rule, number, record, line, key)
            if told.thread:
                self._pending[told.thread] = hits
                self._since_warning = 0

    def _loud_head(
        self, head: bytes, parse: Callable[[bytes], Head]
    ) -> tuple[Head, int, float | None]:
        """Return what a head says, the process and the time.

        Heads that differ in their time are one, so the time that counts is not that of the head.
        """
        clock = TIME.search(head)
        key = head if clock is None else head[: clock.start()] + head[clock.end() :]
        known = self._loud_heads.get(key)
        if known is None:
            told = parse(head)
            if len(self._loud_heads) >= _HEADS_MAX:
                self._loud_heads.clear()
            known = self._loud_heads[key] = told, self._process(told, head, torn=b"CCL " in head)
            return *known, told.time_s
        return *known, None if clock is None else self._time_of(clock)

    def _time_of(self, clock: re.Match[bytes]) -> float | None:
        """Return a time; those of a second are worked out once."""
        text = clock.group()[:_SECOND_BYTES]
        if text not in self._seconds:
            if len(self._seconds) >= _SECONDS_MAX:
                self._seconds.clear()
            whole = seconds_of(clock)
            self._seconds[text] = None if whole is None else floor(whole)
        second = self._seconds[text]
        return second if second is None or clock[7] is None else second + float(b"0." + clock[7])

    def _divided(self, head: bytes, rest: bytes, line: int) -> None:
        """Take the line of a process that wrote into another one's."""
        _, word, message = rest.split(b" ", 2)
        told = parse_head(head)
        number = self._process(told, head, torn=True)
        if number < 0:
            return
        level = LEVELS[word]
        if level is Level.INFO:
            self._info(number, self.log.processes[number], message, head, line, line)
            return
        self.log.loud += 1
        numbers = self.log.processes[number].numbers
        rule = self._matcher.find(level, message, numbers, told.site)
        if rule is not None:
            record = self._record(level, told, message, line, line)
            self._hit(rule, number, record, line, self._keeper.key(rule, message))

    def _torch(self, head: bytes, message: bytes, line: int, end: int) -> None:
        told = parse_torch_head(head, message, self._year)
        number = self._process(told, head)
        if number < 0:
            return
        self._counts(number, message, end)
        if b"(SeqNum=" in message:
            self._operation(number, message)
        rule = self._matcher.find(Level.TORCH, message, ())
        if b"Timeout at coll" in message or not message.rpartition(b"]")[2].strip():
            self._desync(number, message, end)
        if rule is None and severity_of(head) in ("E", "F") and message.strip():
            whole = self._unwrapped(message, end)
            rule = self._matcher.find(Level.TORCH, whole, ()) or self._matcher.rule("torch-error")
            message = whole if rule.known != "level" else message
        if rule is not None:
            self.log.loud += 1
            record = Record(Level.TORCH, message, told.time_s, rank=told.label)
            self._hit(rule, number, record, line, self._keeper.key(rule, message))

    def _unwrapped(self, message: bytes, end: int) -> bytes:
        """Return a line that a terminal may have broken anywhere, with what follows it."""
        rest = self._block[end : end + _WRAPPED_BYTES_MAX].lstrip(b"\r\n")
        stop = MARK.search(rest)
        lines = rest[: stop.start() if stop else len(rest)].split(b"\n")
        own = lines[:-1] if stop else lines  # the last has the head of another line
        return message + b"".join(line.rstrip(b"\r") for line in own)

    def _operation(self, number: int, message: bytes) -> None:
        """Note what a rank waits in; another one of that number must be of another group."""
        found = operation_of(message)
        if found is None:
            return
        key = number, found[0]
        known = self.log.operations
        if key in known or len(known) < PROCESSES_MAX:
            known[key] = found[1] if known.get(key, found[1]) == found[1] else None

    def _desync(self, number: int, message: bytes, end: int) -> None:
        """Take PyTorch's own report of who lags, which follows a line in lines of its own."""
        text = self._block[end : end + _DESYNC_BYTES_MAX]
        at = text.find(DESYNC_MARK)
        if at < 0 or MARK.search(text, 0, at) is not None:
            return
        stop = MARK.search(text, at)
        found = desync_of(text[at : stop.start() if stop else len(text)])
        if found is not None and len(self.log.desyncs) < _DESYNCS_MAX:
            self.log.desyncs.setdefault(found, (group_of(message), number))

    def _counts(self, number: int, message: bytes, end: int) -> None:
        group = group_of(message)
        if group is None or b"work" not in message:
            return
        found = counts_of(message)
        if found is None and b"ast enqueued" in message:
            # The line may have been broken where a terminal or a collector ends one.
            found = counts_of(message + self._block[end : end + _WRAPPED_BYTES_MAX])
        key = number, group.key
        if found is not None and (key in self.log.work or len(self.log.work) < PROCESSES_MAX):
            self.log.work[key] = group, found

    def _last_errors(self, block: bytes) -> None:
        """Take the warnings that PyTorch repeats in its exceptions."""
        if self._unfinished is not None:
            self._last_error(self._unfinished, block, 0)
            self._unfinished = None
        at = block.find(LAST_ERROR)
        while at >= 0:
            line = block.rfind(b"\n", max(0, at - HEAD_BYTES_MAX), at) + 1
            head = block[max(line, at - HEAD_BYTES_MAX) : at]
            begin = block.find(b"\n", at, at + HEAD_BYTES_MAX) + 1
            if begin == len(block):
                self._unfinished = head
            elif begin:
                self._last_error(head, block, begin)
            at = block.find(LAST_ERROR, at + 1)

    def _last_error(self, head: bytes, block: bytes, at: int) -> None:
        text = block[at : at + MESSAGE_BYTES_MAX].partition(b"\n")[0]
        told = parse_text_head(head)
        message = text[read_prefix(text).end :].strip()
        number = self._process(told, head)
        if number < 0 or not message:
            return
        self.log.loud += 1
        rule = self._matcher.find(Level.WARN, message, ())
        if rule is not None:
            self.log.lines += 1
            record = Record(Level.WARN, message, rank=told.label)
            self._failed_by(self._hit(rule, number, record, at, self._keeper.key(rule, message)))

    def _bare_version(self, head: bytes, message: bytes, letter: bytes) -> None:
        """Take `NCCL version X`: alone in a line it holds for the job, else for the process."""
        fresh = ProcessLog("", None, self._room)
        set_version(fresh, message)
        if not fresh.version:
            return
        if letter == b"R":
            fresh.library = "RCCL"
        self._version = fresh.version
        told = parse_head(head)
        if told.host and (number := self._process(told, head)) >= 0:
            process = self.log.processes[number]
            process.version, process.library = fresh.version, fresh.library
            return
        # A process may have written before the one that tells the version did so.
        for number in self._unversioned:
            process = self.log.processes[number]
            if not process.version:
                process.version, process.library = fresh.version, fresh.library
        self._unversioned.clear()

    # What is kept.

    def _process(self, told: Head, head: bytes, *, torn: bool = False) -> int:
        """Return the number of a process; -1: there are too many.

        `torn`: another process's text stands before its head, so the host may not be right.
        """
        label = told.label
        if label is None and self._label >= 0:
            label = self._label
        of_file = self.log.files if self._own_files else 0
        key = of_file, label, told.host, told.pid, told.alias
        number = self._by_key.get(key)
        if number is not None:
            return number
        if len(self.log.processes) >= PROCESSES_MAX:
            self.log.skipped["lines of processes beyond the first 16,384"] += 1
            return -1
        number = self._by_key[key] = len(self.log.processes)
        process = ProcessLog(told.host, told.pid, self._room, label, self._version)
        process.torn, process.is_rank, process.alias = torn, told.is_rank, told.alias
        if not self._version:
            self._unversioned.append(number)
        if b"RCCL" in head or "hip" in self._version:
            process.library = "RCCL"
        self.log.processes.append(process)
        return number

    def _record(self, level: Level, told: Head, message: bytes, line: int, end: int) -> Record:
        cut = end - line - told.start in _CUT_BYTES
        return Record(
            level, message, told.time_s, told.host, told.pid, told.label, site=told.site, cut=cut
        )

    def _place(self, at: int) -> str:
        """Return file and line of a place in this block; places come in order, mostly."""
        before, number = self._last_counted
        if at < before:
            before, number = 0, self._lines_before
        number += self._block.count(b"\n", before, at)
        self._last_counted = at, number
        return f"{self._file}:{number}"

    def _hit(
        self, rule: LogRule, number: int, record: Record, at: int, key: str | None = None
    ) -> Hits:
        order = self._offset + at
        return self._keeper.keep(rule, number, record, order, self._place(at), key or rule.id)
