# SPDX-License-Identifier: Apache-2.0
"""Where the RAS services of a job listen, by the environment of its processes on this node.

Only processes that the caller may look at are seen: their own, or all for root. An environment is a
user's word. So nothing but this host's loopback is taken from it, because root must not connect
wherever a user wants, and another user's processes are not believed to be of the job.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import BATCH_STEP, INTERACTIVE_STEP
from nccl_inspector.ras.client import DEFAULT, Address, parse_address

_ENVIRON_BYTES_MAX = 1 << 20
_NUMBER = re.compile(rb"[0-9]{1,10}")
# What SLURM_STEP_ID has in steps that are no sruns; in a batch script it is mostly not set.
_STEPS = {
    b"": BATCH_STEP,
    b"-5": BATCH_STEP,
    b"4294967291": BATCH_STEP,
    b"-6": INTERACTIVE_STEP,
    b"4294967290": INTERACTIVE_STEP,
}
UNKNOWN_STEP = "unknown"


@dataclass(frozen=True, slots=True)
class RasPlace:
    """An address where services of a job may listen, and the processes that have it."""

    address: Address
    steps: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()  # as the processes see them in their own PID namespaces


@dataclass(frozen=True, slots=True)
class RasPlaces:
    """Where the services of a job listen here, and why some of its processes have none."""

    places: tuple[RasPlace, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    steps: dict[str, None] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)


def _environments(proc: Path, uid: int | None) -> Iterator[tuple[Path, dict[bytes, bytes]]]:
    for path in proc.iterdir():
        if not path.name.isdigit():
            continue
        try:
            if uid is not None and path.stat().st_uid != uid:
                continue
            with (path / "environ").open("rb") as file:
                words = file.read(_ENVIRON_BYTES_MAX).split(b"\0")
        except OSError:  # it is somebody else's, or has ended
            continue
        yield path, dict(word.split(b"=", 1) for word in words if b"=" in word)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_elsewhere(process: Path, proc: Path) -> bool:
    """Whether the process has a network of its own, where we cannot connect to it."""
    try:
        return (process / "ns" / "net").readlink() != (proc / "self" / "ns" / "net").readlink()
    except OSError:
        return False


def _own_pid(process: Path) -> int:
    """Return what the process itself has as its id: the innermost PID namespace's."""
    try:
        status = (process / "status").read_bytes()
    except OSError:
        status = b""
    for line in status.split(b"\n"):
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return int(process.name)


def _step(environment: dict[bytes, bytes]) -> str:
    """Return the step as Slurm's commands have it."""
    text = environment.get(b"SLURM_STEP_ID", environment.get(b"SLURM_STEPID", b""))
    number = text.decode() if _NUMBER.fullmatch(text) else UNKNOWN_STEP
    return _STEPS.get(text, number)


def _address(environment: dict[bytes, bytes]) -> Address | str:
    """Return where the process's service listens, or why that is not known."""
    text = environment.get(b"NCCL_RAS_ADDR", DEFAULT.encode()).decode("utf-8", "replace")
    try:
        address = parse_address(text)
    except InspectorError as err:
        return f"NCCL_RAS_ADDR: {err}"
    if _is_loopback(address.host):
        return address
    return f"NCCL_RAS_ADDR is {address}, not this host: give it as --address"


def find_places(
    job_id: int, step: str = "", uid: int | None = None, proc: Path = Path("/proc")
) -> RasPlaces:
    """Return where to ask for a job, or for one step of it.

    `uid`: the job's user, if it is known; processes of others do not count.
    """
    found: dict[Address, _Found] = {}
    problems: dict[str, None] = {}
    for process, environment in _environments(proc, uid):
        if environment.get(b"SLURM_JOB_ID") != str(job_id).encode():
            continue
        if step and _step(environment) != step:
            continue
        if environment.get(b"NCCL_RAS_ENABLE") == b"0":
            problems["NCCL_RAS_ENABLE=0 switches the service off"] = None
            continue
        if _is_elsewhere(process, proc):
            problems["a process has a network namespace of its own: ask inside its container"] = (
                None
            )
            continue
        address = _address(environment)
        if isinstance(address, str):
            problems[address] = None
            continue
        here = found.setdefault(address, _Found())
        here.steps[_step(environment)] = None
        here.pids.add(_own_pid(process))
    places = (
        RasPlace(address, tuple(sorted(here.steps)), frozenset(here.pids))
        for address, here in found.items()
    )
    return RasPlaces(tuple(places), tuple(problems))
