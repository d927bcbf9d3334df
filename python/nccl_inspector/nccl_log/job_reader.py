# SPDX-License-Identifier: Apache-2.0
"""Take what is neither NCCL's nor PyTorch's C++ in a job's output: exceptions, launchers' lines.

The last traceback of each process counts, and of launchers what stands at the end of a file.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from nccl_inspector.model.card import WARNING
from nccl_inspector.model.exit_words import OUT_OF_MEMORY, SIGABRT, SIGTERM, signal_of
from nccl_inspector.nccl_log.catalogue import Matcher
from nccl_inspector.nccl_log.job_lines import JobLine, end_lines, job_lines
from nccl_inspector.nccl_log.kept import Keeper
from nccl_inspector.nccl_log.launcher_lines import (
    SRUN,
    LauncherEnd,
    LauncherReader,
    LinePlace,
    OutputEnd,
)
from nccl_inspector.nccl_log.lines import MARK, Head, parse_text_head, time_of
from nccl_inspector.nccl_log.process_log import LAUNCHER
from nccl_inspector.nccl_log.record import Level, Record
from nccl_inspector.nccl_log.torch_lines import parse_torch_head

_TAIL_BYTES = 256 << 10  # of a file, at least: launchers write at its end
_EPISODE_BYTES = 32 << 10  # tracebacks that are nearer to each other are of one failure
_UNREAD_BYTES = 16 << 10  # before the end of a file: where errors that no rule knows are shown
_UNREAD_MAX, _UNREAD_TEXT_MAX, _TAKEN_MAX = 3, 200, 4096
# Words of an error, in the line of any program.
_UNREAD = re.compile(
    rb"(?:^|[\s\[(|*])(?:(?:ERROR|FATAL)[\]):]{0,2}|(?:[Ff]atal )?[Ee]rror ?:|panic:)(?:\s|$)"
    rb"|(?:Error|Exception): "
)
# The begin and the frames of a traceback; what explains a result of NCCL's.
_UNTOLD = re.compile(
    rb"\]\s{2,64}(?:File \"|raise |return |[\w.]{1,64}(?: = |\())|\s~{0,256}\^{2}"
    rb"|^\s{0,64}raise |Traceback \(most|nccl[A-Z]\w{1,32}Error: |Last error:"
    rb"| exits with return code = "
)
_LAST_BYTES = 64 << 10  # before the end of a file: an exception that ended the program
# What an error of others repeats of NCCL's: nccl-tests behind a slash, XLA in quotes.
_INNER = re.compile(rb"(?: / ([^'\n]{4,800})'|log entry[^'\n]{0,80}'([^'\n]{4,800})')")
_LAUNCHERS: Final = (
    b"error: ", b"exitcode", b"noticed that process", b"Process name: [", b"RUNNING AT",
    b"exits with return code",
)  # fmt: skip
_CRASH = re.compile(rb"\[([\w.-]{1,64}):(\d{1,10})[ :\]]")
_CRASH_BY = re.compile(rb" received by PID (\d{1,10})")
# Where Python waits for other ranks, and what an exception from there says of them.
_COLLECTIVE = re.compile(
    r"torch/distributed/\S{1,64}:\d{1,9} in (?:_?all_|_?reduce|broadcast|barrier|monitored_b"
    r"|gather|scatter|i?send|i?recv|batch_isend|wait|new_group)"
)
_OF_PEERS = re.compile(
    rb"(?i)tim(?:ed?|es) ?out|closed|remote|peer|connect(?:ion)?\b|abort|HCCL|error code is \d"
)
# Whom a text is about, if that is not its writer.
_ABOUT: Final = {
    "barrier-missed": (
        re.compile(
            rb"(?:[Rr]anks? |from rank )(\d[\d, ]{0,400})(?: failed to pass|\. Please check)"
        ),
        "rank {}",
    ),
    "amd-gpu-fault": (re.compile(rb"fault by GPU (node-\d{1,4}) "), "GPU {}"),
    "gpu-xid": (re.compile(rb"Xid \(PCI:([0-9A-Fa-f:.]{4,16})\)"), "GPU {}"),
    "ofi-memory": (re.compile(rb"libfabric:(\d{1,10}):"), "pid {}"),
    "ray-memory": (re.compile(rb"\bIP: ([0-9A-Fa-f.:]{2,64})"), "node {}"),
    "ray-node-lost": (re.compile(rb"(?:node IP|Node Id): ([^\s)]{1,64})"), "node {}"),
    "nan-found": (re.compile(rb" on rank (\d{1,7}) "), "rank {}"),
    "jax-task-lost": (
        re.compile(rb"(\d{1,9}) (?:heartbeat timeout|unexpectedly tried)"),
        "task {}",
    ),
    "ray-worker-died": (re.compile(rb"Worker PID: (\d{1,10})"), "pid {}"),
    "launch-failed": (
        re.compile(rb"(?: failed on node |connect to host )(\S{1,256}?)(?::| port )"),
        "node {}",
    ),
    "amd-gpu-hung": (re.compile(rb"Exception by GPU (node-\d{1,4}) "), "GPU {}"),
    "mpi-aborted": (re.compile(rb"invoked on rank (\d{1,7})"), "rank {}"),
    "horovod-stalled": (re.compile(rb"missing ranks: (\d[\d, ]{0,400})"), "rank {}"),
    "task-killed": (re.compile(rb"exitcode=-?\d{1,3}\. pid=(\d{1,10})"), "pid {}"),
    "mpi-failed": (re.compile(rb"\(rank (\d{1,7}) in comm"), "rank {}"),
}
# Rules of lines that never are about their writer, and whom they are about if they do not say.
_OF_OTHERS: Final = {
    "ray-memory": "a node that is not named",
    "ray-node-lost": "a node that is not named",
    "ray-worker-died": "a worker that is not named",
    "gpu-xid": "a GPU that is not named",
    "horovod-stalled": "ranks that are not named",
    "mpi-daemon-lost": "a node that is not named",
}
_CRASHES: Final = frozenset({"process-crashed", "process-bus-error"})
_MISMATCHED = re.compile(rb"Rank (\d{1,7}) is running (?:inconsistent )?collective")
_NAMED_MAX = 64
_DEADLY: Final = frozenset({4, 7, 8, 9, 11})  # signals that nobody sends to tell a process to end
_FAILED_NODE = re.compile(r"error: Node failure on (\S{1,256})")
# Why Slurm ended a job, by its words.
_ENDED_BY: Final = {
    "DUE TO TIME LIMIT": "time-limit",
    "DUE TO PREEMPTION": "job-preempted",
    "DUE TO JOB REQUEUE": "job-requeued",
}
_NEW_LINE: Final = b"\n"


@dataclass(slots=True)
class _Raised:
    """The last traceback of a process."""

    record: Record
    order: int
    place: str


@dataclass(frozen=True, slots=True)
class _Launched:
    """A launcher's line: its rule of the catalogue, and whom it is about (empty: not told)."""

    rule: str
    text: str
    at: LinePlace
    whom: str = ""


class JobReader:
    """Takes the blocks of one file after the other.

    `process` returns the number of the process with a head (-1: there are too many), `place` is the
    file and line of a place in the block that is read.
    """

    def __init__(
        self,
        keeper: Keeper,
        matcher: Matcher,
        process: Callable[[Head, bytes], int],
        place: Callable[[int], str],
    ) -> None:
        self._keeper, self._matcher = keeper, matcher
        self._process, self._place = process, place
        self._year = 0
        self._tail = b""  # the end of this file until now
        self._raised: dict[int, _Raised] = {}
        self._taken: deque[int] = deque(maxlen=_TAKEN_MAX)  # where lines began that were read

    def read(self, block: bytes, offset: int, year: int, error_at: int) -> None:
        """Take a block; `offset`: of all that was read before it. `error_at`: see `job_lines`."""
        for found in job_lines(self._tail, block, error_at):
            self._job_line(found, offset, year, self._place)
        self._year = year
        self._tail = block if len(block) >= _TAIL_BYTES else self._tail[-_TAIL_BYTES:] + block

    def end_file(self, name: str, offset: int, lines: int, end: OutputEnd | None = None) -> None:
        """Take what only the end of a file says.

        `lines`: the number of the line behind it. `end`: what launchers wrote there, if that has
        been read; it ends where the file does.
        """
        rule = self._matcher.rule("python-exception")
        for number, one in sorted(self._raised.items(), key=lambda item: item[1].order):
            hits = self._keeper.keep(rule, number, one.record, one.order, one.place, rule.id)
            if offset - one.order < _LAST_BYTES:
                hits.severity = None
            elif hits.count == 1:
                hits.severity = WARNING
        self._raised.clear()
        begin = offset - len(self._tail)
        for found in end_lines(self._tail):
            self._job_line(
                found, begin, self._year,
                lambda at: f"{name}:{lines - self._tail.count(_NEW_LINE, at)}",
            )  # fmt: skip
        tail, launched = self._tail, set[bytes]()
        if end is None and any(mark in self._tail for mark in _LAUNCHERS):
            reader = LauncherReader()
            reader.read(self._tail)
            end = OutputEnd(reader, LinePlace(), reader.end)
        self._tail = b""
        for line in _launched(end.reader) if end is not None else ():
            if end is not None and end.has(line.at):
                launched.add(line.text.encode("utf-8", "replace"))
                order = offset - (end.end.bytes - line.at.bytes)
                place = f"{name}:{lines - (end.end.lines - line.at.lines)}"
                self._launcher(line, order, place)
        self._unread(name, tail, begin, lines, launched)

    def _unread(
        self, name: str, tail: bytes, offset: int, lines: int, launched: Collection[bytes]
    ) -> None:
        """Keep what tells of an error in the last lines of a file, and was not read."""
        taken, shown = set(self._taken), set[bytes]()
        self._taken.clear()
        at = tail.rfind(b"\n", 0, max(0, len(tail) - _UNREAD_BYTES)) + 1
        for line in tail[at:].splitlines(keepends=True):
            begin, at = at, at + len(line)
            text = line.strip()
            if (
                _UNREAD.search(line) is None or _UNTOLD.search(line) or MARK.search(line)
                or offset + begin in taken or any(one in text or text in one for one in launched)
            ):  # fmt: skip
                continue
            log = self._keeper.log
            log.unread_count += 1
            if len(log.unread) < _UNREAD_MAX and text not in shown:
                shown.add(text)
                place = f"{name}:{lines - tail.count(_NEW_LINE, begin)}"
                words = text[:_UNREAD_TEXT_MAX].decode("utf-8", "replace")
                log.unread.append(f"{place}: {words}")

    def _job_line(
        self, found: JobLine, offset: int, year: int, place_of: Callable[[int], str]
    ) -> None:
        if found.is_torch:
            told = parse_torch_head(found.head, found.text, year)
        else:
            told = parse_text_head(found.head)
        level = Level.TORCH if found.is_torch else Level.JOB
        rule = self._matcher.find(level, found.text, ())
        if rule is None and not found.is_exception:
            return
        if rule is None and _COLLECTIVE.search(found.frame) and _OF_PEERS.search(found.text):
            rule = self._matcher.rule("collective-raised")
        self._taken.append(offset + found.at)
        if rule is not None and found.is_ended:
            rule = self._matcher.rule("task-ended")
        number = self._process(told, found.head)
        if number < 0:
            return
        self._count()
        record = Record(Level.JOB, found.text, told.time_s, rank=told.label, site=found.frame)
        order = offset + found.at
        if rule is None:
            self._raise(number, record, order, found)
            return
        place = place_of(found.at)
        hits = self._keeper.keep(rule, number, record, order, place, rule.id)
        about = [found.whom] if found.whom else _about(rule.id, found.text)
        hits.whom.update(about[: _NAMED_MAX - len(hits.whom)])
        if rule.id in _OF_OTHERS and not hits.whom:
            hits.whom.add(_OF_OTHERS[rule.id])
        self._inner(number, record, order, place)

    def _count(self) -> None:
        self._keeper.log.lines += 1
        self._keeper.log.loud += 1

    def _inner(self, number: int, record: Record, order: int, place: str) -> None:
        """Take the warning of NCCL's that an error of others repeats: behind a slash, or quoted."""
        match = _INNER.search(record.message)
        if match is None:
            return
        text = match[1] or match[2]
        rule = self._matcher.find(Level.WARN, text, ())
        if rule is not None and rule.known != "level":
            inner = replace(record, level=Level.WARN, message=text)
            self._keeper.keep(rule, number, inner, order, place, rule.id)

    def _raise(self, number: int, record: Record, order: int, found: JobLine) -> None:
        """Keep the last traceback of a process; of writers without a name the first of a burst."""
        before = self._raised.get(number)
        is_named = record.rank is not None or self._keeper.log.processes[number].pid is not None
        is_new = before is None or order - before.order > _EPISODE_BYTES
        if is_new or is_named or found.is_chained:
            self._raised[number] = _Raised(record, order, self._place(found.at))

    def _launcher(self, one: _Launched, order: int, place: str) -> None:
        number = self._process(Head(alias=LAUNCHER), b"")
        if number < 0:
            return
        self._count()
        data = one.text.encode("utf-8", "replace")
        record = Record(Level.JOB, data, time_of(data))
        rule = self._matcher.rule(one.rule)
        hits = self._keeper.keep(rule, number, record, order, place, rule.id)
        if one.whom:
            hits.whom.add(one.whom)


def _about(rule_id: str, text: bytes) -> list[str]:
    """Return whom a line is about, if its rule has a place for that; empty: its writer."""
    if rule_id == "collective-mismatch":
        return [f"rank {one.decode()}" for one in _MISMATCHED.findall(text)]
    if rule_id in _CRASHES and (crash := _CRASH.match(text)) is not None:
        return [f"pid {int(crash[2])} ({crash[1].decode()})"]
    if rule_id in _CRASHES and (crash := _CRASH_BY.search(text)) is not None:
        return [f"pid {int(crash[1])}"]
    pattern, words = _ABOUT.get(rule_id, (None, ""))
    match = pattern.search(text) if pattern else None
    if match is None:
        return []
    numbers = [one.strip().decode("ascii", "replace") for one in match[1].split(b",")]
    return [words.format(one) for one in numbers if one]


def _whom(end: LauncherEnd) -> str:
    """Return whose end a launcher tells; empty: it does not say."""
    if end.tasks:
        who = f"{'task' if end.source == SRUN else 'rank'} {end.tasks}"
    else:
        who = f"pid {end.pid}" if end.pid else ""
    return f"{who} ({end.hosts})" if end.hosts and who else who or end.hosts


def _launched(reader: LauncherReader) -> Iterable[_Launched]:
    """Yield what launchers wrote."""
    for end, at in reader.ends.items():
        yield _Launched(_rule_of_end(end), end.line, at, _whom(end))
    for step, at in reader.out_of_memory.items():
        words = f"Slurm counted kills for lack of memory in step {step}"
        yield _Launched("oom-killed", words, at)
    failed = min((at.bytes for end, at in reader.ends.items() if not end.by_launcher), default=None)
    for note, at in reader.notes.items():
        rule = _rule_of_note(note)
        is_step = "STEP" in note and failed is not None and failed < at.bytes
        if rule == "job-cancelled" and is_step:
            rule = "task-ended"  # srun ends a step when a task of it has failed
        node = _FAILED_NODE.search(note)
        yield _Launched(rule, note, at, f"node {node[1]}" if node else "")


def _rule_of_end(one: LauncherEnd) -> str:
    """Return the rule for how a task ended."""
    if one.signal == OUT_OF_MEMORY:
        return "oom-killed"
    of = signal_of(one.code, one.signal)
    if one.by_launcher or of == SIGTERM:
        return "task-ended"
    return "task-killed" if of and of != SIGABRT and of in _DEADLY else "task-failed"


def _rule_of_note(note: str) -> str:
    """Return the rule for why Slurm ended a step."""
    if "Node failure" in note or "DUE TO NODE FAILURE" in note:
        return "slurm-node-failed"
    for words, rule in _ENDED_BY.items():
        if words in note:
            return rule
    return "job-cancelled"
