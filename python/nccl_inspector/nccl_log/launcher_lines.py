# SPDX-License-Identifier: Apache-2.0
"""Lines of launchers about the ends of tasks: srun and slurmstepd, torchrun, mpirun, DeepSpeed.

Users can write such lines, too. The report uses them as information (report/launcher.py).
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from nccl_inspector.model.exit_words import (
    OOM_WORDS,
    OUT_OF_MEMORY,
    SIGKILL,
    SIGTERM,
    end_words,
    signal_of,
)
from nccl_inspector.nccl_log.wrapped import plain_blocks
from nccl_inspector.system.printable import plain

SRUN, TORCHRUN, MPIRUN, DEEPSPEED = "srun", "torchrun", "mpirun", "deepspeed"
TAIL_BYTES = 32 << 20  # of an output: launchers write at its end
ENDS_MAX, NOTES_MAX = 256, 64
_QUOTE_CHARS = 160

# strsignal(3) of the C library, which srun writes; srun does not set a locale.
_NAMED = {
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "Illegal instruction": 4,
    "Trace/breakpoint trap": 5, "Aborted": 6, "Bus error": 7, "Floating point exception": 8,
    "Killed": 9, "User defined signal 1": 10, "Segmentation fault": 11,
    "User defined signal 2": 12, "Broken pipe": 13, "Alarm clock": 14, "Terminated": 15,
    "Stack fault": 16, "CPU time limit exceeded": 24, "File size limit exceeded": 25,
    "Bad system call": 31, "Out Of Memory": OUT_OF_MEMORY,
}  # fmt: skip
# In front of `error: ` is the name of srun, salloc or slurmstepd, of slurmstepd-NODE with several
# slurmd on a host, or the time; with --label the number of a task is in front of slurmstepd's.
_HEAD = (
    rb"^(?:\d{1,7}: )?(?:srun: |salloc: |slurmstepd(?:-[^\s:]{1,64})?: |\[[^\]\n]{1,40}\] )?"
    rb"error: "
)
_TASKS = re.compile(
    _HEAD + rb"(\S{1,1000}): tasks? ([\d,-]{1,2048}): (?:Exited with exit code (\d{1,3})"
    rb"|([A-Z][A-Za-z0-9/ ]{2,40}?)(?: \(core dumped\))?)\s*$"
)
_OOM = re.compile(
    _HEAD
    + rb"Detected \d{1,19} oom[-_]kill event(?:s|\(s\))? in (?:StepId=|step )([\d.+a-z]{1,40})"
    rb"(?:\.| cgroup\.)(?: Some of |\s*$)"
)
_ENDED = re.compile(
    _HEAD + rb"\*\*\* (?:STEP|JOB) (\S{1,40}) ON \S{1,256} "
    rb"(?:CANCELLED AT [-0-9T:]{1,32}[^*\n]{1,90}|FAILED [^*\n]{1,60})\*\*\*"
)
_NODE_FAILURE = re.compile(_HEAD + rb"Node failure on (\S{1,1000})\s*$")
_TERMINATING = re.compile(rb"^srun: (?:(?:Force )?Terminat(?:ing|ed) |Job step aborted)")
_MARK = re.compile(
    rb"error: (?:\*\*\* |Detected |Node failure on |[^\s:]{1,1000}: tasks? )"
    rb"|srun: (?:Force )?Terminat|srun: Job step aborted|  exitcode {1,8}: -?\d"
    rb"|noticed that process rank |Process name: \[|RUNNING AT |failed \(exitcode: -?\d"
    rb"|exits with return code = -?\d"
    rb"|Sending process \d{1,10} closing signal |Closing process \d{1,10} via signal "
)
_TORCHRUN = re.compile(
    rb"(?P<p>[^\n]{0,40}?)  time {1,10}: (\S{1,40})\n(?P=p)  host {1,10}: (\S{1,256})\n"
    rb"(?P=p)  rank {1,10}: (\d{1,9}) \(local_rank: \d{1,9}\)\n"
    rb"(?P=p)  exitcode {1,10}: (-?\d{1,3}) \(pid: (\d{1,10})\)"
)
# Above one of the rows: the process that torchrun saw fail first. It is the last row of its table.
_ROOT = re.compile(rb"Root Cause \(first observed failure\):\n[^\n]{0,40}?\[\d{1,9}\]:\n\Z")
# By each torchrun of a node at once, and of each attempt; the table comes after the last one only.
_FAILED = re.compile(
    rb"failed \(exitcode: (-?\d{1,3})\) local_rank: \d{1,9} \(pid: (\d{1,10})\) of"
)
_CLOSED = re.compile(rb"(?:Sending|Closing) process (\d{1,10}) ")
# Another text may end where Slurm's begins: a progress bar has no line end of its own.
_OWN_HEAD = re.compile(rb"(?:^|[^\w/\"'` ])(?=(?:srun|slurmstepd(?:-[^\s:]{1,64})?): error: )")
# Before the code is the command of the node's last process, whichever of them failed.
_DEEPSPEED = re.compile(rb" exits with return code = (-?\d{1,3})\s*$")
_DEEPSPEED_HEAD: Final = b":sigkill_handler] "
_MPI_SIGNAL = re.compile(
    rb"noticed that process rank (\d{1,9}) with PID (\d{1,10}) on node\s+(\S{1,256})\s+exited on\s+"
    rb"signal (\d{1,3})"
)
_MPI_CODE = re.compile(rb"Process name: \[\S{1,200},(\d{1,9})\]\s+Exit code: {1,8}(\d{1,3})")
_HYDRA = re.compile(
    rb"(?:RANK (\d{1,9}) )?PID (\d{1,10}) RUNNING AT (\S{1,256})\n[^\n]{0,8}?"
    rb"(?:KILLED BY SIGNAL: (\d{1,3})|EXIT CODE: (\d{1,3}))"
)
_BEFORE, _AFTER = 1024, 512  # bytes of a paragraph around its mark
_LINE_BYTES_MAX = 8192
_LOOKS_MAX = 4096  # at lines and paragraphs; a line of a user's may be full of marks
_CLOSED_MAX = 65536  # processes that torchrun ended: all but one of a large job


@dataclass(frozen=True, slots=True)
class LauncherEnd:
    """How one or more tasks ended, as a line says.

    `hosts` and `tasks` are Slurm's lists, or one host and one rank; empty: not told.
    `by_launcher`: after Slurm had begun to end the step, by a signal that it sends; or after
    torchrun had told the process to end, because another one had failed.
    """

    source: str
    hosts: str
    tasks: str
    code: int
    signal: int
    line: str
    pid: int | None = None
    by_launcher: bool = False

    @property
    def words(self) -> str:
        """Return `SIGKILL: out of memory, or kill -9`, or the code in words."""
        if self.signal == OUT_OF_MEMORY:
            return OOM_WORDS
        return end_words(self.code, self.signal)


@dataclass(frozen=True, slots=True)
class LauncherLines:
    """What launchers wrote, in order.

    `out_of_memory`: steps, as `12.0`. `notes`: lines that say why Slurm ended a step.
    """

    ends: tuple[LauncherEnd, ...] = ()
    out_of_memory: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def to_json(lines: LauncherLines) -> dict[str, Any]:
    """Return the lines for another process."""
    return asdict(lines)


def from_json(found: dict[str, Any]) -> LauncherLines:
    """Return what `to_json` was given."""
    ends = tuple(LauncherEnd(**one) for one in found["ends"])
    return LauncherLines(ends, tuple(found["out_of_memory"]), tuple(found["notes"]))


# Reading.


def _own_line(line: bytes) -> bytes:
    """Return a line from where Slurm's own text begins in it."""
    found = _OWN_HEAD.search(line)
    return line[found.end() :] if found else line


def _text(data: bytes) -> str:
    return plain(data.decode("utf-8", "replace").strip())[:_QUOTE_CHARS]


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line begins: bytes and lines from the begin of what was read."""

    bytes: int = 0
    lines: int = 0


class LauncherReader:
    """Takes blocks of whole lines.

    `job_ids`: of lines that name a job, those of others are left out; None: all count.
    """

    def __init__(self, job_ids: frozenset[int] | None = None) -> None:
        self.ends: dict[LauncherEnd, LinePlace] = {}
        self.out_of_memory: dict[str, LinePlace] = {}
        self.notes: dict[str, LinePlace] = {}
        self.end = LinePlace()  # of what was read
        self._job_ids = job_ids
        self._at = LinePlace()
        self._is_ended = False
        self._looks = 0
        self._closed: set[int] = set()  # pids of what torchrun ended
        self._failed: dict[int, LauncherEnd] = {}  # by pid, as torchrun wrote at once

    def read(self, block: bytes) -> None:
        """Take a block."""
        self._read(block)
        self.end = LinePlace(self.end.bytes + len(block), self.end.lines + block.count(b"\n"))

    def _read(self, block: bytes) -> None:
        end = counted = lines = 0
        while match := _MARK.search(block, end):  # once in each line
            is_closed = match[0].endswith(b" signal ")
            self._looks += not is_closed
            if len(self.ends) >= ENDS_MAX or self._looks > _LOOKS_MAX:
                return
            start = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.end())
            end = end if end >= 0 else len(block)
            lines += block.count(b"\n", counted, start)
            counted = start
            self._at = LinePlace(self.end.bytes + start, self.end.lines + lines)
            if is_closed:
                self._close(match[0])
            elif end - start <= _LINE_BYTES_MAX:
                around = block[max(0, start - _BEFORE) : match.end() + _AFTER]
                self._line(match[0], block[start:end], around)

    def _line(self, mark: bytes, line: bytes, around: bytes) -> None:
        if mark.startswith(b"exits"):
            self._deepspeed(line)
        elif mark.startswith(b"failed"):
            self._torchrun_at_once(line)
        elif b"exitcode" in mark:
            self._torchrun(around)
        elif mark.startswith((b"noticed", b"Process", b"RUNNING")):
            self._mpirun(around)
        elif _TERMINATING.match(line := _own_line(line)):
            self._is_ended = True
        elif found := _TASKS.match(line):
            self._tasks(found, line)
        elif found := _OOM.match(line):
            if self._is_own(found[1]):
                self._note(self.out_of_memory, found[1].decode("ascii", "replace"))
        elif (found := _ENDED.match(line)) or _NODE_FAILURE.match(line):
            self._end(found, line)

    def _end(self, found: re.Match[bytes] | None, line: bytes) -> None:
        """Take a line by which Slurm ends a step; `found` is None if it names no job."""
        if found is None or self._is_own(found[1]):
            self._is_ended = True
            self._note(self.notes, _text(line))

    def _is_own(self, step: bytes) -> bool:
        """Tell whether a job's or step's id is of this job; if it is no plain number, it may be."""
        job = step.partition(b".")[0]
        return self._job_ids is None or not job.isdigit() or int(job) in self._job_ids

    def _note(self, notes: dict[str, LinePlace], text: str) -> None:
        if len(notes) < NOTES_MAX:
            notes.setdefault(text, self._at)

    def _tasks(self, found: re.Match[bytes], line: bytes) -> None:
        hosts, tasks = found[1].decode("ascii", "replace"), found[2].decode("ascii")
        signal = 0 if found[3] else _NAMED.get(found[4].decode("ascii"))
        if signal is None:
            return
        code = int(found[3] or 0)
        by_launcher = self._is_ended and signal_of(code, signal) in (SIGTERM, SIGKILL)
        self._add(
            LauncherEnd(SRUN, hosts, tasks, code, signal, _text(line), by_launcher=by_launcher)
        )

    def _torchrun(self, around: bytes) -> None:
        """Take the rows of a table; one that has been taken before is taken once."""
        for found in _TORCHRUN.finditer(around):
            code, host = int(found[5]), found[3].decode("ascii", "replace")
            quote = _text(found[0].rpartition(b"\n")[2])
            pid, is_root = int(found[6]), bool(_ROOT.search(around[: found.start()]))
            row = LauncherEnd(
                TORCHRUN, host, found[4].decode(), max(code, 0), max(-code, 0), quote, pid,
                by_launcher=pid in self._closed and pid not in self._failed and not is_root,
            )  # fmt: skip
            if row not in self.ends:
                self._add_row(row, is_root)

    def _add_row(self, row: LauncherEnd, is_root: bool) -> None:
        """Take a row, in the place of what was written of it at once; a root before all others."""
        known = self._failed.get(row.pid or 0)
        if known in self.ends and (known.code, known.signal) == (row.code, row.signal):
            self.ends = {row if one == known else one: at for one, at in self.ends.items()}
            return
        self._add(row)
        if is_root and row in self.ends:
            table = [one for one in self.ends if (one.source, one.hosts) == (TORCHRUN, row.hosts)]
            at = self.ends[table[0]]
            moved = {row: at} | {one: self.ends[one] for one in table}
            rest = iter(moved.items())
            self.ends = dict(
                next(rest) if one in moved else (one, n) for one, n in self.ends.items()
            )

    def _torchrun_at_once(self, line: bytes) -> None:
        if found := _FAILED.search(line):
            code, pid = int(found[1]), int(found[2])
            one = LauncherEnd(TORCHRUN, "", "", max(code, 0), max(-code, 0), _text(line), pid)
            self._add(one)
            self._failed[pid] = one

    def _deepspeed(self, line: bytes) -> None:
        found = _DEEPSPEED.search(line)
        if found and _DEEPSPEED_HEAD in line:
            code = int(found[1])
            quote = f"a process of this node exits with return code = {code}"
            self._add(LauncherEnd(DEEPSPEED, "", "", max(code, 0), max(-code, 0), quote))

    def _close(self, mark: bytes) -> None:
        found = _CLOSED.match(mark)
        if found and len(self._closed) < _CLOSED_MAX:
            self._closed.add(int(found[1]))

    def _mpirun(self, around: bytes) -> None:
        for one in _MPI_SIGNAL.finditer(around):
            self._of_rank(one[1], one[2], one[3], b"", one[4], one[0])
        for one in _HYDRA.finditer(around):
            self._of_rank(one[1] or b"", one[2], one[3], one[5], one[4], one[0])
        for one in _MPI_CODE.finditer(around):
            self._of_rank(one[1], b"0", b"", one[2], b"", one[0])

    def _of_rank(
        self, rank: bytes, pid: bytes, host: bytes, code: bytes | None, signal: bytes | None,
        text: bytes,
    ) -> None:  # fmt: skip
        # With several daemons Open MPI does not know the pid, and writes 0.
        quote = _text(b" ".join(text.split()))
        self._add(
            LauncherEnd(MPIRUN, host.decode("ascii", "replace"), rank.decode(), int(code or 0),
                    int(signal or 0), quote, int(pid) or None)
        )  # fmt: skip

    def _add(self, one: LauncherEnd) -> None:
        if one.code or one.signal:
            self.ends.setdefault(one, self._at)

    @property
    def lines(self) -> LauncherLines:
        """What was read, in order."""
        return LauncherLines(tuple(self.ends), tuple(self.out_of_memory), tuple(self.notes))


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """What launchers wrote at the end of an output; `begin` and `end` of it in the reader."""

    reader: LauncherReader
    begin: LinePlace
    end: LinePlace

    def has(self, at: LinePlace) -> bool:
        """Tell whether a line of the reader is of this output."""
        return self.begin.bytes <= at.bytes < self.end.bytes


def read_launchers(chunks: Iterable[bytes]) -> LauncherLines:
    """Return what launchers wrote into an output."""
    reader = LauncherReader()
    for block in plain_blocks(chunks):
        reader.read(block)
    return reader.lines
