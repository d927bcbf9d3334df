"""A process that runs the inputs of one target, each with a limit of CPU time and memory.

The parent sends an input and waits. It asks the kernel for the CPU time of the worker, because no
signal handler of Python's runs in the middle of a long match of a regular expression. When the
input has used up its time it takes the stack (faulthandler writes it at SIGUSR1), and ends the
worker.
"""

import faulthandler
import fcntl
import os
import pickle
import re
import resource
import signal
import socket
import struct
import tempfile
import time
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from tests.fuzzers.target import Read, Run, Target

# Length of the input; bytes that it may add to the address space; whether to do more than read.
_LENGTH = struct.Struct("<IQB")
_MAYBE, _NO, _YES = range(3)
_DIGITS = re.compile(r"[0-9]+|0x[0-9a-f]+")
_LOOK_S = 0.02
_WALL_TIMES = 20  # a wait without CPU time is a hang, too
_WALL_LEAST_S = 60.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FRAME = re.compile(r'File "(?:[^"]*/)?nccl_inspector/([^"]+)", line (\d+),? in (\w+)')


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an input. `kind`: ok, exception, memory, cpu, hang or died.

    `words` is what it came to, or a traceback; `frames` the product's functions; `whole`: not only
    read.
    """

    kind: str
    words: str
    cpu_s: float = 0.0
    grown_bytes: int = 0
    whole: bool = True

    @property
    def frames(self) -> tuple[str, ...]:
        """`analysis/hang/arrival.py:find`, from the outside to the inside."""
        return tuple(f"{path}:{name}" for path, _, name in _FRAME.findall(self.words))

    @property
    def place(self) -> str:
        """The innermost function of the product's; empty where none is known."""
        return self.frames[-1] if self.frames else ""


def way_of(words: str) -> str:
    """Return what an input came to without its numbers."""
    return _DIGITS.sub("0", words)[:500]


class _Runner:
    """Runs inputs, and remembers in which ways they were read."""

    def __init__(self, target: Target, run: Run) -> None:
        self._target, self._run = target, run
        self._ways: set[str] = set()

    def run(self, data: bytes, wanted: int) -> tuple[str, bool]:
        """Return what came of it, and whether all was done."""
        found = self._run(data)
        if not isinstance(found, Read):
            return str(found), self._target.rest_of == 1
        way = way_of(found.way or found.words)
        if wanted == _MAYBE:
            # By what an input is, and not by chance: a failure can be run again.
            chosen = (zlib.crc32(data) >> 8) % self._target.rest_of == 0
            wanted = _YES if chosen or way not in self._ways else _NO
        self._ways.add(way)
        return (f"{found.words} {found.rest()}", True) if wanted == _YES else (found.words, False)


def _peak_and_size() -> tuple[int, int]:
    """Return the highest resident size since the last reset, and the address space, in bytes."""
    status = Path("/proc/self/status").read_text()
    peak, size = (re.search(rf"{word}:\s+(\d+) kB", status) for word in ("VmHWM", "VmSize"))
    assert peak
    assert size
    return int(peak[1]) << 10, int(size[1]) << 10


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _receive(end: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = end.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)  # the parent is gone
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _serve(end: socket.socket, target: Target, place: Path, stacks: int) -> NoReturn:
    """Run inputs until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    runner = _Runner(target, target.prepare(place))
    while True:
        length, room, wanted = _LENGTH.unpack(_receive(end, _LENGTH.size))
        answer = pickle.dumps(_run(runner, _receive(end, length), room, wanted))
        end.sendall(struct.pack("<I", len(answer)) + answer)


def _run(runner: _Runner, data: bytes, room: int, wanted: int) -> Result:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, size = _resident(), _peak_and_size()[1]
    limit = resource.RLIM_INFINITY if not room else size + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    begin_s = time.process_time()
    kind, whole = "ok", True
    try:
        words, whole = runner.run(data, wanted)
    except MemoryError:
        kind, words = "memory", traceback.format_exc()
    except Exception:  # the very thing that is looked for
        kind, words = "exception", traceback.format_exc()
    cpu_s = time.process_time() - begin_s
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return Result(kind, words[-20000:], cpu_s, max(0, _peak_and_size()[0] - before), whole)


class Worker:
    """One such process; ended and begun anew as need be."""

    def __init__(self, target: Target) -> None:
        """Begin nothing yet."""
        self._target = target
        self._pid = 0
        self._end: socket.socket | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        # Appended to: parent and child have one place in it.
        self._stacks = os.memfd_create("stacks")
        fcntl.fcntl(self._stacks, fcntl.F_SETFL, os.O_APPEND)

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.stop()
        os.close(self._stacks)

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._pid:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        if self._end:
            self._end.close()
            self._end = None
        if self._place:
            self._place.cleanup()
            self._place = None

    def _begin(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        self._place = tempfile.TemporaryDirectory(prefix="nccl-inspector-fuzz-", dir="/dev/shm")
        pid = os.fork()
        if not pid:
            try:
                mine.close()
                _serve(theirs, self._target, Path(self._place.name), self._stacks)
            finally:
                traceback.print_exc()
                os._exit(1)
        theirs.close()
        os.setpgid(pid, pid)  # what it has started ends with it
        self._pid, self._end = pid, mine
        return mine

    def run(
        self, data: bytes, cpu_s: float = 0.0, room: int = 0, *, whole: bool | None = True
    ) -> Result:
        """Run an input; 0: without a limit. What exceeds its CPU time ends the worker.

        `whole`: whether more than reading is done; None: as Target.rest_of says.
        """
        wanted = _MAYBE if whole is None else _YES if whole else _NO
        end = self._end or self._begin()
        wall_s, cpu_before_s = 0.0, self._cpu_s()
        try:
            end.sendall(_LENGTH.pack(len(data), room, wanted) + data)
            end.settimeout(_LOOK_S)
            while True:
                try:
                    size = end.recv(4, socket.MSG_WAITALL)
                    break
                except TimeoutError:
                    used_s = self._cpu_s() - cpu_before_s
                    wall_s += _LOOK_S  # by our looks: a campaign that was stopped found no hang
                    if cpu_s and used_s > cpu_s:
                        return self._given_up("cpu", used_s)
                    if wall_s > max(_WALL_LEAST_S, _WALL_TIMES * cpu_s):
                        return self._given_up("hang", used_s)
            end.settimeout(None)
            answer = _whole(end, struct.unpack("<I", size)[0]) if len(size) == 4 else b""
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        if not answer:
            return self._given_up("died", 0.0)
        found: Result = pickle.loads(answer)  # noqa: S301 - our own child's
        return found

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) * _TICK_S

    def _given_up(self, kind: str, cpu_s: float) -> Result:
        """Take the stack, and end the worker."""
        os.ftruncate(self._stacks, 0)
        stack = ""
        if kind != "died":
            os.kill(self._pid, signal.SIGUSR1)
            deadline = time.monotonic() + 2
            # Ours are the outermost functions, which are written last.
            while " in _serve" not in stack and time.monotonic() < deadline:
                stack = os.pread(self._stacks, 1 << 20, 0).decode("utf-8", "replace")
        self.stop()
        lines = stack.splitlines()
        # The innermost comes first there; in a traceback it is the last.
        return Result(kind, "\n".join(reversed(lines)), cpu_s)


def _whole(end: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = end.recv(size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def run_all(target: Target, inputs: Sequence[bytes]) -> list[Result]:
    """Run some inputs one after the other, without limits."""
    with Worker(target) as worker:
        return [worker.run(data) for data in inputs]
