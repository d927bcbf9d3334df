"""The processes of a cluster: which they are, how one is started, how all are ended.

Nothing is ever found by a program's or a user's name. Every process of a cluster, daemons,
slurmstepd, tasks and orphans alike, lives in the mount namespace of one of its machines, which
alone shows that machine's private tmpfs. So one look at /proc finds exactly them, also after a
start that died half-way, and after a reboot it finds none.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import HEAD, NODES, Layout

DAEMON_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
_GRACE_S = 1.0
_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process id with its start time (clock ticks since boot): they name one process only."""

    pid: int
    start: int

    def alive(self) -> bool:
        """False once it is gone, a zombie, or its number belongs to another process."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.start

    def send(self, number: signal.Signals) -> None:
        """Signal exactly this process; nothing when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time; None for a process that is gone or a zombie (PID 1 may reap late)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


def _machine_of(pid: int, marks: Mapping[str, str], seen: dict[str, str | None]) -> str | None:
    """The machine whose private tmpfs this process sees, looked up once per mount namespace."""
    try:
        namespace = str(Path(f"/proc/{pid}/ns/mnt").readlink())
        if namespace not in seen:
            mounts = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
            points = {line.split(" ", 5)[4] for line in mounts}
            seen[namespace] = next((marks[point] for point in points if point in marks), None)
        return seen[namespace]
    except OSError:  # gone meanwhile; Linux says so in several ways
        return None


def members(layout: Layout) -> dict[Process, str]:
    """Every live process of the cluster with its machine; also children that left it."""
    marks = {str(layout.private(machine)): machine for machine in (HEAD, *NODES)}
    seen: dict[str, str | None] = {}
    found: dict[int, str] = {}
    stats: dict[int, tuple[int, int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        status = _stat(pid)
        if status is None:
            continue
        stats[pid] = status
        if machine := _machine_of(pid, marks, seen):
            found[pid] = machine
    grown = bool(found)
    while grown:
        children = {
            pid: found[at[0]] for pid, at in stats.items() if pid not in found and at[0] in found
        }
        found |= children
        grown = bool(children)
    return {Process(pid, stats[pid][1]): machine for pid, machine in found.items()}


def end_all(layout: Layout) -> int:
    """End every process of the cluster: SIGTERM, a moment, then SIGKILL. Returns their number.

    Raises:
        ClusterError: this very process is one of them, or some would not die.
    """
    first = members(layout)
    if any(process.pid == os.getpid() for process in first):
        raise ClusterError("this shell is inside the cluster: leave it first")
    for process in first:
        process.send(signal.SIGTERM)
    wait_gone(first, _GRACE_S)
    deadline = time.monotonic() + _KILL_S
    while left := members(layout):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"processes that do not die: {sorted(process.pid for process in left)}"
            )
        for process in left:
            process.send(signal.SIGKILL)
        wait_gone(left, 1.0)
    return len(first)


def wait_gone(processes: Iterable[Process], timeout: float) -> bool:
    """Wait until all are gone; False when `timeout` seconds were not enough."""
    left = list(processes)
    deadline = time.monotonic() + timeout
    while left := [process for process in left if process.alive()]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def record(path: Path, pid: int) -> None:
    """Note a process that was just started, so that it is known again, also as one that died."""
    found = _stat(pid)
    path.write_text(f"{pid} {found[1] if found else 0}\n")


def recorded(path: Path) -> Process | None:
    """The process of such a note if it is still alive."""
    try:
        pid, start = path.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    process = Process(int(pid), int(start))
    return process if process.alive() else None


def spawn(argv: Sequence[str], *, log: Path, env: Mapping[str, str], note: Path) -> None:
    """Start a daemon that writes to `log`; its parent becomes init, so that it outlives us."""
    script = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(log), *argv],
        env=dict(env), cwd="/", stdout=subprocess.PIPE, text=True, check=True, timeout=10,
        umask=0o022,
    )  # fmt: skip
    record(note, int(done.stdout))
