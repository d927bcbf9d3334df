# SPDX-License-Identifier: Apache-2.0
"""What else a job's output says of its end: exceptions of Python, store errors, failed tests.

Lines are found by what nearly all of them have in common, so that other text costs little. An
exception that no rule knows counts only as the last line of a traceback.

    Traceback (most recent call last):
      File "train.py", line 120, in step
    ValueError: too many values to unpack
    [E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect
    (raylet) A worker died or was killed while executing a task by an unexpected system error.
    n1: Test CUDA failure common.cu:303 'an illegal memory access was encountered'
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from nccl_inspector.nccl_log.lines import MARK
from nccl_inspector.nccl_log.prefixes import own_text, read_prefix

# `error` and `Error` of Python, C and Slurm; the others have none. A pattern that begins with plain
# text passes over other text faster than `find` does; not so with a letter that is frequent.
ERROR: Final = b"rror"
_MARKS: Final = tuple(map(re.compile, (rb"xception: ", rb"\[c10d\] ", rb"failure ")))
# What a framework writes without any of these when it ends the job: looked for only there.
_END_MARKS: Final = tuple(
    map(
        re.compile,
        (
            rb"onitoredBarrier", rb"nexpected result ", rb" memory pressure", rb"heartbeat",
            rb"different incarnation", rb"aborting the MPI job", rb"unable to reliably start",
            rb"Caught signal ", rb"\] Signal: ", rb"core dumped\)", rb"Memory access fault by ",
            rb"Xid \(PCI:", rb"Fatal Python ", rb"\*\*\* SIG", rb"will be terminated soon",
            rb"actor is dead because ", rb"its node has died", rb"node was preempted",
            rb"Detected mismatch", rb"terminate called", rb"Cannot allocate memory",
            rb"HW Exception by ", rb"what\(\): ", rb"\(\): ", rb"double free or ",
            rb"corrupted size vs", rb"Killed", rb"code 137", rb"unexpectedly",
            rb"lost communication with", rb"MPI_ABORT was ", rb"not enough slots ",
            rb"connect to host ", rb"missing ranks: ", rb"Stalled ranks:",
            rb"may be stuck",
        ),
    )
)  # fmt: skip
# A user's block may be full of marks: one line is looked at for so many bytes, and some more.
_LOOK_BYTES, _LOOKS = 256, 64
_LINE_BYTES_MAX = 4096
_TRACE_BYTES = 8192  # before an exception: where its traceback is looked for
_TRACE_LINES_MAX = 48
_EXCEPTION = re.compile(rb"(?:Error|Exception)(?:\(\w{1,64}\))?(?=: |:?[ \t]{0,8}$)")
_NAME = re.compile(rb"[A-Za-z_][\w.]{0,96}$")
# Begins of texts that rules know without an exception's name before them.
_KNOWN = re.compile(
    rb"\[c10d\] |CCL error: (?!\{)|NCCL Error \d{1,2}: |Failed[,:] (?:[NR]CCL|Cuda|CUDA|HIP) error "
    rb"|(?:Test )?(?:CUDA|HIP|NCCL) failure |NCCL failure: |nccl[A-Z]\w{3,32} failed: "
    rb"|NCCL operation |NCCL_ERROR_"
    rb"|(?:CUDA|HIP)(?: driver)?(?: error:)? out of memory|(?:CUDA|HIP)(?: driver)? error: "
    rb"|(?:CUDA|HIP) runtime error in |Cuda failure \S{1,64}\.cu:\d"
    rb"|[Nn][Cc][Cc][Ll]Error\((?:code )?nccl[A-Z]"
    rb"|RESOURCE_EXHAUSTED: |CUDA_ERROR_"
)
# More of them, which are looked for only in lines with one of these words.
_RARE_WORDS: Final = (
    b"NCCL async", b"Fatal error in ", b"occurred in MPI", b" was killed",
    b"oordination service", b"JAX distributed", b"libfabric:", b"srun: error: ",
    b"slurmstepd: error: ", b"execve(): ", b"unhandled system error", b"unhandled cuda error",
    b"invalid usage", b"internal error", b"remote process exited",
)  # fmt: skip
_RARE = re.compile(
    rb"NCCL async error: "
    rb"|(?:\[Rank \d{1,7}\]: )?Ranks? \d[\d, ]{0,400} failed to pass monitoredBarrier"
    rb"|Unexpected result |Fatal error in |An error occurred in MPI"
    rb"|A worker died or was killed|[1-9]\d{0,6} Workers \(tasks / actors\) killed due to memory "
    rb"|Task /job:\w{1,64}/replica:\d{1,9}/task:|stopped sending heartbeats"
    rb"|(?:/job:\w{1,64}/replica:\d{1,9}/task:)?\d{1,9} unexpectedly tried to connect with a diff"
    rb"|is aborting the MPI job|(?:ORTE|PRTE) was unable to reliably start "
    rb"|Task launch for StepId=|(?:task \d{1,7}|Application) launch failed: |Unable to create step "
    rb"|container start failed|couldn't start container|execve\(\): "
    rb"|Polled an error from coordination service|JAX distributed service detected fatal "
    rb"|libfabric:\d{1,10}:\d{1,20}:[^<\n]{0,200}<(?:warn|critical|error)>"
    rb"(?= err|[^\n]{1,120}: Cannot allocate memory)"
    rb"|\[[\w.-]{1,64}:\d{1,10} {0,3}:\d{1,10}:\d{1,10}\] Caught signal (?:4|7|8|11) "
    rb"|\[[\w.-]{1,64}:\d{1,10}\] Signal: (?:Bus|Segm|Ille|Floa)"
    rb"|\*\*\* SIG(?:ABRT|BUS|FPE|ILL|SEGV)(?: \(@0x[0-9a-f]{1,16}\))? received (?:at|by) "
    rb"|Fatal Python error: |This thread has been waiting for "
    rb"|[Nn][Cc][Cc][Ll][^\n]{0,200}?(?:unhandled (?:system|cuda) error|invalid usage"
    rb"|internal error|remote process exited)"
    rb"|(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)"
    rb"\s{1,32}\(core dumped\)(?:\s|$)|terminate called "
    rb"|Memory access fault by GPU |Xid \(PCI:"
    rb"|The actor (?:is dead because its worker process has died|died because its node has died)"
    rb"|the actor's node was preempted"
    rb"|Instance \S{1,128} \(node IP: \S{1,64}\) will be terminated soon \(reason: "
    rb"[^)\n]{0,64}(?:preempt|pod-termination|spot|maintenance|unhealthy)"
    rb"|Detected mismatch between collectives |HW Exception by GPU "
    rb"|(?:ORTE|PRTE) has lost communication with a remote daemon"
    rb"|MPI_ABORT was invoked on rank \d|There are not enough slots available"
    rb"|(?<=ssh: )connect to host \S{1,256} port \d{1,5}: |\[missing ranks: \d|Stalled ranks:"
    rb"|(?:free|malloc|realloc|calloc|munmap_chunk|unlink_chunk)\(\): [a-z]"
    rb"|double free or corruption|corrupted size vs"
    rb"|Killed(?:[ \t]{2,64}[^ \t\n]|\s{0,8}$)|command terminated with exit code 137"
    rb"|exited with code 137|unexpectedly failed with exitcode=-?\d"
    rb"|(?:Engine core proc|[Ww]orker proc(?:ess)?) \S{1,64} died unexpectedly"
)
# What is told of the end of a process only in a line of its own, perhaps behind a shell's words.
_OF_OWN_LINE: Final = (
    b"Segmentation ", b"Bus error", b"Illegal ", b"Floating ", b"Aborted", b"terminate called ",
    b"Fatal Python ", b"Memory access ", b"Killed", b"command terminated ",
)  # fmt: skip
_BEFORE_END = re.compile(rb"(?:(?:\S{1,256}: )?line \d{1,7}: {1,8}\d{1,10} {1,4})?")
# The text of an exception of C++; processes that end at once write theirs into one line.
_WHAT = re.compile(rb"\s{0,8}(?:what\(\):\s{1,8}){1,16}(?P<torch>(?=\[(?:PG|Rank) ))?(?=\S)")
WHAT: Final = b"what(): "
# An exception of Python's that repeats what PyTorch's watchdog found.
_REPEATED = re.compile(rb"\[Rank \d{1,7}\] Watchdog caught ")
_FRAME = re.compile(rb'File "([^"\n]{1,400})", line (\d{1,9}), in ([^\n]{1,120})')
# Ray tells of whom its text is in lines of its own, before it.
_ACTOR: Final = b"The actor is dead "
_ACTOR_PLACE = re.compile(rb"\t(pid|ip): (\S{1,64})")
_ACTOR_BYTES = 1024
# mpirun tells of which node behind its text.
_LOST: Final = b"lost communication "
_DAEMON = re.compile(rb"Remote daemon *: \S{1,128} on node (\S{1,256})")
# A launcher that ends processes kills those that do not end by themselves; a shell tells it.
_KILLED: Final = (b"Killed", b"command terminated ", b"exited with ")
_ENDED = re.compile(
    rb"CANCELLED AT |Terminating StepId|Terminated StepId|SIGTERM|Killing subprocess "
)
_CHAINED: Final = (b"During handling of the above", b"was the direct cause of")


@dataclass(frozen=True, slots=True)
class JobLine:
    """A line that may say why a job ended; `at` is where it begins in its block.

    `head` stands before `text`. `frame`: the innermost place of a traceback (`train.py:120 in
    step`), empty if there is none. `is_torch`: the text is one of PyTorch's C++. `whom`: whom it is
    about, if lines around it say so. `is_ended`: a launcher was ending the processes already.
    """

    at: int
    head: bytes
    text: bytes
    frame: str = ""
    is_exception: bool = False
    is_chained: bool = False
    is_torch: bool = False
    whom: str = ""
    is_ended: bool = False


def job_lines(before: bytes, block: bytes, error_at: int) -> Iterator[JobLine]:
    """Yield such lines of a block, in order; `before` is the end of the block before it.

    `error_at`: where ERROR is first; -1: nowhere.
    """
    for begin, line in islice(_marked(block, _MARKS, error_at), _LOOKS + len(block) // _LOOK_BYTES):
        if b"CCL" in line and (b"CCL WARN " in line or MARK.search(line)):
            continue
        found = _line(begin, line.rstrip(b"\r"))
        if found is None:
            continue
        if not found.is_exception:
            yield found
            continue
        known = block[max(0, begin - _TRACE_BYTES) : begin]
        if begin < _TRACE_BYTES:
            known = before[-_TRACE_BYTES:] + known
        yield _with_frame(found, known)


def end_lines(tail: bytes) -> Iterator[JobLine]:
    """Yield what `job_lines` does not find of the end of a file, which is `tail`."""
    for begin, raw in islice(_marked(tail, _END_MARKS, -1), _LOOKS + len(tail) // _LOOK_BYTES):
        line = raw.rstrip(b"\r")
        end = own_text(line)
        known = _rare(line, end)
        is_marked = ERROR in line or any(mark.search(line) for mark in _MARKS)
        if known is None and not is_marked and (what := _WHAT.match(line, end)) is not None:
            yield _exception(begin, line, what)
        elif known is not None and not (is_marked and _is_taken(known[0], _line(begin, line))):
            text = line[known.start() :]
            whom = _actor(tail[max(0, begin - _ACTOR_BYTES) : begin], text) or _lost(
                tail[begin : begin + _ACTOR_BYTES], text
            )
            is_ended = text.startswith(_KILLED) and _ENDED.search(tail, 0, begin) is not None
            yield JobLine(begin, line[:end], text, whom=whom, is_ended=is_ended)


def _is_taken(known: bytes, found: JobLine | None) -> bool:
    """Tell whether `job_lines` takes a known text with what it finds in the same line."""
    return found is not None and (found.is_exception or known in found.text)


def _actor(before: bytes, text: bytes) -> str:
    """Return which of Ray's actors a text is about; empty: of none, or it is not told."""
    if not text.startswith(_ACTOR):
        return ""
    told = {name: value.decode("utf-8", "replace") for name, value in _ACTOR_PLACE.findall(before)}
    pid = f"pid {told[b'pid']}" if b"pid" in told else ""
    return f"{pid} ({told[b'ip']})" if pid and b"ip" in told else pid


def _lost(behind: bytes, text: bytes) -> str:
    """Return the node whose daemon mpirun lost, which lines behind tell; empty: of none."""
    if _LOST not in text:
        return ""
    match = _DAEMON.search(behind)
    return f"node {match[1].decode('utf-8', 'replace')}" if match else ""


def _marked(
    block: bytes, marks: tuple[re.Pattern[bytes], ...], error_at: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that have one of the marks, or ERROR from `error_at` on, once each."""
    others = {mark: found.start() for mark in marks if (found := mark.search(block))}
    while error_at >= 0 or others:
        at = error_at
        if others:
            first = min(others.values())
            at = first if at < 0 else min(at, first)
        begin = block.rfind(b"\n", at - _LINE_BYTES_MAX if at > _LINE_BYTES_MAX else 0, at) + 1
        begin = max(begin, at - _LINE_BYTES_MAX)
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        yield begin, block[begin : min(end, begin + 2 * _LINE_BYTES_MAX)]
        if 0 <= error_at < end:
            error_at = block.find(ERROR, end)
        if others:
            others = {mark: place for mark, place in _after(block, others, end) if place >= 0}


def _after(
    block: bytes, places: dict[re.Pattern[bytes], int], end: int
) -> Iterator[tuple[re.Pattern[bytes], int]]:
    """Yield the next place of each mark that is not before `end`; -1: there is none."""
    for mark, place in places.items():
        if place >= end:
            yield mark, place
        else:
            found = mark.search(block, end)
            yield mark, found.start() if found else -1


def _line(begin: int, line: bytes) -> JobLine | None:
    end = own_text(line)
    own = line[end:]
    what = _WHAT.match(line, end)
    if what is not None and what["torch"] is not None:
        return _exception(begin, line, what)
    if b"Watchdog caught" in own and (watchdog := _REPEATED.search(own)) is not None:
        return JobLine(begin, line[:end], own[watchdog.start() :], is_torch=True)
    known = _KNOWN.search(own)
    if known is None:
        for words in _RARE_WORDS:
            if words in line:
                known = _rare(own, 0)
                break
    if what is not None and known is None:
        return _exception(begin, line, what)
    exception = _EXCEPTION.search(own)
    if exception is not None and (known is None or exception.start() < known.start()):
        at = _name_at(own, exception.start())
        # Frameworks log exceptions behind a time and a level of their own.
        return JobLine(begin, line[:end], own[at:], is_exception=at == 0)
    if known is None:
        return None
    return JobLine(begin, line[:end], own[known.start() :])


def _exception(begin: int, line: bytes, what: re.Match[bytes]) -> JobLine:
    """Return the text of an exception of C++."""
    is_torch = what["torch"] is not None
    text = line[what.end() :]
    return JobLine(
        begin, line[: what.start()], text if is_torch else WHAT + text, is_torch=is_torch
    )


def _rare(line: bytes, begin: int) -> re.Match[bytes] | None:
    known = _RARE.search(line, begin)
    if known is None or not known[0].startswith(_OF_OWN_LINE):
        return known
    return known if _BEFORE_END.fullmatch(line, begin, known.start()) else None


def _name_at(text: bytes, end: int) -> int:
    """Return where the name begins that ends there with `Error`."""
    begin = max(0, end - 97)
    match = _NAME.search(text[begin:end])
    return begin + match.start() if match else end


def _with_frame(found: JobLine, before: bytes) -> JobLine:
    """Return an exception with the place of its traceback; lines of other tasks may be between."""
    whose = _writer(found.head)
    frame, is_chained = "", False
    for line in reversed(before.split(b"\n")[-_TRACE_LINES_MAX - 1 : -1]):
        if found.head and _writer(line) != whose:
            continue
        if not frame and (match := _FRAME.search(line)) is not None:
            path, number, function = (part.decode("utf-8", "replace") for part in match.groups())
            frame = f"{path}:{number} in {function.strip()}"
        elif any(words in line for words in _CHAINED):
            is_chained = True
            break
        elif not frame and line.strip() and not line[own_text(line) :].startswith(b" "):
            break  # a line of another text: this exception ends no traceback
    return JobLine(
        found.at, found.head, found.text, frame, is_exception=bool(frame), is_chained=is_chained
    )


def _writer(line: bytes) -> tuple[int | None, str]:
    prefix = read_prefix(line)
    return prefix.label, prefix.worker
