# SPDX-License-Identifier: Apache-2.0
"""Find NCCL's and PyTorch's lines in text of any kind, and take their heads apart.

The text is the user's: any bytes, endless lines, prefixes of `srun --label` and torchrun, lines of
several processes written into each other. Nothing here takes more time for a line than its length
says, and nothing keeps more of it than `MESSAGE_BYTES_MAX`.

    [time ]host:pid:tid [gpu] NCCL INFO message
    [time ]host:pid:tid [gpu] file:line NCCL WARN message
    [time ]host:pid:tid [gpu] file:line (func) NCCL WARN message     (2.30.7 and later)
    host:pid NCCL DIAG [OK|INFO] check: text                         (2.31 and later)
    NCCL version 2.30.7+cuda13.0
    [rank3]:[E1125 10:11:12.123456 ProcessGroupNCCL.cpp:632] message
"""

import re
from calendar import timegm
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from nccl_inspector.nccl_log.prefixes import read_prefix
from nccl_inspector.nccl_log.record import Level

MESSAGE_BYTES_MAX = 4096  # of a message only this much is looked at
HEAD_BYTES_MAX = 640  # of what comes before a message
# NCCL up to 2.28.9 cuts a line here, its end included.
NCCL_LINE_BYTES = 1023
_LINE_BYTES_MAX = 1 << 16  # a longer line is taken apart in the middle

# Lines that may be most of a log and say nothing of a single process that is used here; the ways
# of channels are counted in whole blocks (COUNTED_WAY).
_WAY = rb"via (?:P2P/|NET/IB/[0-9()]{1,12}/GDRDMA)"
_QUIET = (
    rb"(?!Ring |Trees? |Channel (?:[^>\r\n]{1,40}> [^ \r\n]{1,24} (?:\[(?:send|receive)\] )?"
    + _WAY  # as NCCL writes it; then whatever stands between
    + rb"|[^\r\n]{0,80}? "
    + _WAY
    + rb")|(?:All(?:Reduce|GatherV?|[tT]oAll)|Reduce(?:Scatter)?|Broadcast|Gather|Scatter"
    rb"|Send|Recv): "
    rb"|Pattern |\[Proxy )"
)
# All alternatives begin with the same letters, so that a search for them passes over other text
# at the speed of memory.
MARK: Final = re.compile(
    rb"CCL (?:INFO " + _QUIET + rb"([^\r\n]{0,4096})"
    rb"|(WARN|ATTN|ERROR|DIAG|version) ?([^\r\n]{0,4096}))"
    rb"|CCL\.cpp:\d{1,6}\] ([^\r\n]{0,4096})"
    rb"|CCL error in: ?([^\r\n]{0,4096})"
)
# The second head in one line: two processes wrote into each other.
_SECOND = re.compile(rb" (?=NCCL (?:INFO|WARN|ATTN|ERROR) )")
COUNTED_WAY: Final = re.compile(
    rb"via (P2P/(?:CUMEM|IPC|direct pointer|MNNVL|indirect)|NET/IB/[0-9()]{1,12}/GDRDMA)"
)
NET_GDRDMA: Final = "NET/IB/GDRDMA"
LAST_ERROR: Final = b"Last error:"  # PyTorch repeats NCCL's last warning in the next line

TIME: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_ZONE = re.compile(rb"Z|[+-]\d\d:?\d\d")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_ADDRESS = re.compile(
    rb"(?!\d\d?:)([A-Za-z0-9_][A-Za-z0-9_.-]{0,63}):(\d{1,10}):\d{1,20}(?: \[[\w-]{1,16}\])?(?= |$)"
)
_SITE = re.compile(rb"[\w./+-]{1,200}:\d{1,6}")
# What the C++ compiler calls a function; aws-ofi-nccl gives that as its place.
_FUNCTION = re.compile(rb"([\w:~]{1,120})\([^\n]{0,400}:(\d{1,6})$")

GPU: Final = "GPU"  # an alias begins so if only the number of a GPU is left of a head

LEVELS: Final = {
    b"INFO": Level.INFO,
    b"WARN": Level.WARN,
    b"ATTN": Level.ATTN,
    b"ERROR": Level.ERROR,
    b"DIAG": Level.DIAG,
}


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a message; `label` is the prefix of a task or of torchrun's worker.

    `alias`: what else the line calls its writer, if that is no number of the job.
    """

    time_s: float | None = None
    host: str = ""
    pid: int | None = None
    label: int | None = None
    site: str = ""
    start: int = 0  # where NCCL's own line begins in the head
    is_rank: bool = False  # `label` is a rank of the job
    alias: str = ""
    thread: bytes = b""  # host, process and thread, as they stand there


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text in blocks of whole lines; only a very long line may be divided."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk if rest else chunk
        end = data.rfind(b"\n") + 1
        if not end and len(data) <= _LINE_BYTES_MAX:
            rest = data
            continue
        if len(data) - end > _LINE_BYTES_MAX:
            end = len(data)
        yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


def utc_seconds(parts: tuple[bytes, ...], fraction: bytes | None) -> float | None:
    year, month, day, hour, minute, second = (int(part) for part in parts)
    if not (year and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    if hour > 23 or minute > 59 or second > 61:
        return None
    whole = timegm((year, month, day, hour, minute, second))
    return whole + (float(b"0." + fraction) if fraction else 0.0)


def time_of(text: bytes) -> float | None:
    """Return the first time in a text, or None if it has no time."""
    match = TIME.search(text)
    return None if match is None else seconds_of(match)


def seconds_of(match: re.Match[bytes]) -> float | None:
    """Return the time that TIME has found; None: there is no such day or hour."""
    *parts, fraction = match.groups()
    return utc_seconds(tuple(parts), fraction)


def _from_address(word: bytes) -> tuple[str, int] | None:
    """Return host and pid of `host:pid:tid`, perhaps with something glued before it."""
    parts = word.rsplit(b":", 2)
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit() and len(parts[1]) <= 10):
        return None
    host = parts[0].rpartition(b":")[2].rpartition(b"]")[2].decode("ascii", "replace")
    return (host, int(parts[1])) if _HOST.fullmatch(host) else None


def _place(text: bytes) -> str:
    """Return `file:line` from what stands between a process and `NCCL`; empty: it has none."""
    words = text.strip()
    if words.endswith(b")"):
        before, gap, _ = words.rpartition(b" (")
        words = before if gap else words
    if _SITE.fullmatch(words):
        return words.decode("ascii", "replace")
    found = _FUNCTION.search(words)
    return b":".join(found.groups()).decode("ascii", "replace") if found else ""


def parse_head(head: bytes) -> Head:
    """Return what the head of a line of NCCL's says; `head` ends where `NCCL` begins."""
    clock = TIME.search(head)
    begin = 0
    if clock is not None:
        zone = _ZONE.match(head, clock.end())
        begin = clock.end() if zone is None else zone.end()
    found = next(iter(deque(_ADDRESS.finditer(head, begin), maxlen=1)), None)  # the last one
    time_s = None if clock is None else seconds_of(clock)
    if found is None:
        of_text = parse_text_head(head, is_torn=True)
        words = head.split()
        return replace(of_text, site=_place(words[-1]) if words else "")
    before = head[: found.start()]
    prefix = read_prefix(before)
    return Head(
        time_s, found[1].decode("ascii"), int(found[2]), prefix.label, _place(head[found.end() :]),
        found.start(), prefix.is_rank, thread=found[0],
    )  # fmt: skip


def thread_of(head: bytes) -> bytes:
    """Return what a head has of host, process and thread: `Head.thread`, without the rest."""
    found = _ADDRESS.search(head)
    return found[0] if found else b""


def parse_diag_head(head: bytes) -> Head:
    """Return what stands before a line of NCCL's diagnostics: host and pid, without a thread."""
    word = head.rstrip().rpartition(b" ")[2]
    found = _from_address(word + b":0")
    prefix = read_prefix(head)
    if found is None:
        return Head(label=prefix.label, is_rank=prefix.is_rank)
    host, pid = found
    start = head.rfind(host.encode() + b":")
    prefix = read_prefix(head[:start])
    return Head(time_of(head[:start]), host, pid, prefix.label, start=start, is_rank=prefix.is_rank)


def parse_text_head(head: bytes, *, is_torn: bool = False) -> Head:
    """Return what stands before text that names no process itself, such as an exception.

    `is_torn`: it is the rest of a line of NCCL's, from which the process was torn off.
    """
    prefix = read_prefix(head, is_torn=is_torn)
    pid = None if prefix.is_rank else prefix.pid
    alias = prefix.worker if prefix.gpu is None else f"{GPU} {prefix.gpu}"
    alias = alias if prefix.label is None else ""
    return Head(time_of(head), "", pid, prefix.label, is_rank=prefix.is_rank, alias=alias)


def divide(message: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the rest of a message that another process wrote into: its own part, then the other's.

    The other's part is its head and its text from `NCCL` on. None: nobody wrote into it.
    """
    match = _SECOND.search(message)
    if match is None:
        return None
    words = message[: match.start()].split(b" ")
    at = next(
        (at for at in range(len(words) - 1, max(-1, len(words) - 6), -1)
         if _from_address(words[at]) is not None),
        None,
    )  # fmt: skip
    if at is None:
        return None
    head = b" ".join(words[at:]) + b" "
    own = b" ".join(words[:at])
    return own, head, message[match.end() :]
