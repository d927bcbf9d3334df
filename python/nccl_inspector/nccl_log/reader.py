# SPDX-License-Identifier: Apache-2.0
"""Read logs of any size and number, and keep what is said of each process and by each rule.

Memory is bounded by the number of processes, of rules and of what is kept for each of these,
whatever the size of the logs.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final

from nccl_inspector.nccl_log.catalogue import LogRule, Matcher, Role, shape_of
from nccl_inspector.nccl_log.lines import (
    COUNTED_WAYS,
    HEAD_BYTES_MAX,
    LAST_ERROR,
    LEVELS,
    MARK,
    MESSAGE_BYTES_MAX,
    NCCL_LINE_BYTES,
    TIME,
    Head,
    divide,
    label_of,
    parse_diag_head,
    parse_head,
    parse_torch_head,
    seconds_of,
    whole_lines,
)
from nccl_inspector.nccl_log.process_log import (
    HANDLERS,
    LOOKED_UP,
    ProcessLog,
    Room,
    set_variable,
    set_version,
)
from nccl_inspector.nccl_log.record import Level, Record

PROCESSES_MAX = 16384
QUOTES_MAX = 16  # lines that are kept of each rule
_HEADS_MAX = 65536
_SECONDS_MAX = 4096
_SECOND_BYTES = len("2026-11-25 10:11:12")
_CUT_BYTES = NCCL_LINE_BYTES - 1, NCCL_LINE_BYTES
_FIRSTS_MAX = 1 << 18  # of all rules: who wrote something that a rule fits
_QUOTED_BYTES_MAX = 400
_VARIABLE_WORDS: Final = b" set by environment to "

_WORK = re.compile(
    rb"last enqueued (?:NCCL )?work: (-?\d{1,20}), last completed (?:NCCL )?work: (-?\d{1,20})"
)
_GROUP = re.compile(rb"PG GUID [^ ()]{1,32}\(([^()]{1,64})\)")


@dataclass(frozen=True, slots=True)
class Quote:
    """A line that a rule fits; `order` counts over all that was read, `place` is `file:line`."""

    record: Record
    process: int
    order: int
    place: str


@dataclass(slots=True)
class Hits:
    """All lines that one rule fits: the first ones, and who wrote how many."""

    rule: LogRule
    quotes: list[Quote] = field(default_factory=list)
    first: dict[int, tuple[float | None, int]] = field(default_factory=dict)  # time, order
    earliest: Quote | None = None  # by time; None: no line has one
    count: int = 0
    shapes: set[bytes] = field(default_factory=set)  # of its texts, if it is about settings


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """PyTorch's counts of one rank's collectives when its watchdog gave up."""

    process: int
    group: str
    enqueued: int
    completed: int


@dataclass(slots=True)
class Log:
    """Everything that was read."""

    processes: list[ProcessLog] = field(default_factory=list)
    hits: dict[str, Hits] = field(default_factory=dict)
    work: dict[tuple[int, str], WorkCounts] = field(default_factory=dict)
    bytes: int = 0
    files: int = 0
    lines: int = 0  # of NCCL and PyTorch
    ways: Counter[str] = field(default_factory=Counter)  # the usual ways of channels, of all
    loud: int = 0  # of them warnings and errors
    cut: int = 0  # of them cut by NCCL
    skipped: Counter[str] = field(default_factory=Counter)  # what was not looked at, by reason
    notes: list[str] = field(default_factory=list)  # files that could not be read


class LogReader:
    """Takes the bytes of logs, one file after the other."""

    def __init__(self, *, own_files: bool = False) -> None:
        """`own_files`: each file is of one process, so equal host and pid are not the same one."""
        self.log = Log()
        self._matcher = Matcher()
        self._own_files = own_files
        self._by_key: dict[tuple[int, int | None, str, int | None], int] = {}
        self._by_head: dict[bytes, int] = {}
        self._loud_heads: dict[bytes, tuple[Head, int]] = {}
        self._file, self._year, self._label = "", 0, -1
        self._block_start, self._lines_before = 0, 1
        self._block, self._last_counted = b"", (0, 1)
        self._version = ""
        self._seconds: dict[bytes, float | None] = {}
        self._room, self._firsts = Room(), 0
        self._unfinished: bytes | None = None  # the head of a `Last error:` that ended its block

    def read(
        self, name: str, chunks: Iterable[bytes], year: int = 0, label: int | None = None
    ) -> None:
        """Read a file; `label` is the number of the task that wrote it, if its name says so.

        `year`: of times that have none.
        """
        log = self.log
        log.files += 1
        self._file, self._year = name, year
        self._label = -1 if label is None else label
        self._lines_before, self._version = 1, ""
        self._by_head.clear()
        self._loud_heads.clear()
        for block in whole_lines(chunks):
            self._block = block
            self._last_counted = (0, self._lines_before)
            self._read_block(block)
            self._lines_before += block.count(b"\n")
            log.bytes += len(block)

    def _read_block(self, block: bytes) -> None:
        heads, processes = self._by_head, self.log.processes
        rfind = block.rfind
        lines = 0
        for match in MARK.finditer(block):
            start = match.start()
            # The mark begins behind the first letter: NCCL, RCCL.
            line = rfind(b"\n", max(0, start - HEAD_BYTES_MAX), start) + 1
            head = block[max(line, start - HEAD_BYTES_MAX) : start - 1]
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
        self.log.lines += lines + block.count(b"CCL INFO ")
        for way, text in COUNTED_WAYS.items():
            self.log.ways[way] += block.count(text)
        self._last_errors(block)

    def _process_of(self, head: bytes) -> int:
        return self._process(parse_head(head), head, torn=b"CCL " in head)

    def _other(self, match: re.Match[bytes], head: bytes, line: int) -> None:
        """Take a line that is not of level INFO."""
        _, word, message, torch, failed = match.groups()
        if torch is not None:
            self._torch(head, torch, line)
        elif failed is not None:
            self._torch(head, b"error in: " + failed, line)
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
        if first == b"NET/IB" and end - line >= NCCL_LINE_BYTES - 1 and b": Using " in message:
            process.hcas_cut = True
        rule = self._matcher.find(Level.INFO, message, process.numbers)
        if rule is not None:
            told = parse_head(head)
            self._hit(rule, number, self._record(Level.INFO, told, message, line, end), line)

    def _said(self, level: Level, head: bytes, message: bytes, line: int, end: int) -> None:
        if b" NCCL " in message and (parts := divide(message)) is not None:
            message, head_of_other, rest = parts
            self._divided(head_of_other, rest, line)
        told, number = self._loud_head(head, parse_diag_head if level is Level.DIAG else parse_head)
        if number < 0:
            return
        process = self.log.processes[number]
        self.log.loud += level is not Level.DIAG
        rule = self._matcher.find(level, message, process.numbers)
        if rule is not None:
            begin = line + told.start
            self.log.cut += end - begin in _CUT_BYTES
            if self._counts_only(rule, number, told.time_s):
                return
            self._hit(rule, number, self._record(level, told, message, line, end), line)

    def _loud_head(self, head: bytes, parse: Callable[[bytes], Head]) -> tuple[Head, int]:
        """Return what a head says, and the process; heads that differ in their time are one."""
        clock = TIME.search(head)
        key = head if clock is None else head[: clock.start()] + head[clock.end() :]
        known = self._loud_heads.get(key)
        if known is None:
            told = parse(head)
            known = told, self._process(told, head, torn=b"CCL " in head)
            if len(self._loud_heads) >= _HEADS_MAX:
                self._loud_heads.clear()
            self._loud_heads[key] = known
            return known
        told, number = known
        if clock is not None:
            told = Head(
                self._time_of(clock), told.host, told.pid, told.label, told.site, told.start
            )
        return told, number

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

    def _counts_only(self, rule: LogRule, number: int, time_s: float | None) -> bool:
        """Count a line like others of the process before it; False: it may have to be kept."""
        hits = self.log.hits.get(rule.id)
        if hits is None or number not in hits.first or rule.role is Role.SETTING:
            return False
        earliest = hits.earliest.record.time_s if hits.earliest else None
        if time_s is not None and (earliest is None or time_s < earliest):
            return False
        hits.count += 1
        return True

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
        rule = self._matcher.find(level, message, self.log.processes[number].numbers)
        if rule is not None:
            self._hit(rule, number, self._record(level, told, message, line, line), line)

    def _torch(self, head: bytes, message: bytes, line: int) -> None:
        told = parse_torch_head(head, message, self._year)
        number = self._process(told, head)
        if number < 0:
            return
        self._counts(number, message)
        rule = self._matcher.find(Level.TORCH, message, ())
        if rule is not None:
            self.log.loud += 1
            record = Record(Level.TORCH, message, told.time_s, rank=told.label)
            self._hit(rule, number, record, line)

    def _counts(self, number: int, message: bytes) -> None:
        match = _WORK.search(message)
        if match is None:
            return
        group = _GROUP.search(message)
        name = group[1].decode("utf-8", "replace") if group else ""
        values = int(match[1]), int(match[2])
        # A count that was never set is -1, or that as an unsigned number.
        if max(values) < 1 << 62 and (
            (number, name) in self.log.work or len(self.log.work) < PROCESSES_MAX
        ):
            self.log.work[number, name] = WorkCounts(number, name, *values)

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
        label = label_of(head)
        prefix = text.find(b"]: ", 0, 32)
        message = (text[prefix + 3 :] if text.startswith(b"[") and prefix > 0 else text).strip()
        number = self._process(Head(label=label), head)
        if number < 0 or not message:
            return
        self.log.loud += 1
        rule = self._matcher.find(Level.WARN, message, ())
        if rule is not None:
            self._hit(rule, number, Record(Level.WARN, message, rank=label), at)

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
        if told.pid is not None and (number := self._process(told, head)) >= 0:
            process = self.log.processes[number]
            process.version, process.library = fresh.version, fresh.library

    # What is kept.

    def _process(self, told: Head, head: bytes, *, torn: bool = False) -> int:
        """Return the number of a process; -1: there are too many.

        `torn`: another process's text stands before its head, so the host may not be right.
        """
        label = told.label
        if label is None and self._label >= 0:
            label = self._label
        of_file = self.log.files if self._own_files else 0
        key = of_file, label, told.host, told.pid
        number = self._by_key.get(key)
        if number is not None:
            return number
        if len(self.log.processes) >= PROCESSES_MAX:
            self.log.skipped["lines of processes beyond the first 16,384"] += 1
            return -1
        number = self._by_key[key] = len(self.log.processes)
        process = ProcessLog(told.host, told.pid, self._room, label, self._version)
        process.torn = torn
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

    def _hit(self, rule: LogRule, number: int, record: Record, at: int) -> None:
        hits = self.log.hits.get(rule.id)
        if hits is None:
            hits = self.log.hits[rule.id] = Hits(rule)
        hits.count += 1
        order = self.log.bytes + at
        new = number not in hits.first and self._firsts < _FIRSTS_MAX
        if new:
            self._firsts += 1
            hits.first[number] = record.time_s, order
        earlier = record.time_s is not None and (
            hits.earliest is None
            or hits.earliest.record.time_s is None
            or record.time_s < hits.earliest.record.time_s
        )
        kept = len(hits.quotes) < QUOTES_MAX and (new or self._is_other_setting(hits, record))
        if not earlier and not kept:
            return
        quote = Quote(_short(record), number, order, self._place(at))
        if earlier:
            hits.earliest = quote
        if kept:
            hits.quotes.append(quote)

    @staticmethod
    def _is_other_setting(hits: Hits, record: Record) -> bool:
        """Tell whether the text is of another variable or adapter than those before."""
        if hits.rule.role is not Role.SETTING:
            return False
        shape = shape_of(record.message)
        if shape in hits.shapes:
            return False
        hits.shapes.add(shape)
        return True


def _short(record: Record) -> Record:
    return replace(record, message=record.message[:_QUOTED_BYTES_MAX])
