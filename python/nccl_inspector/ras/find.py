# SPDX-License-Identifier: Apache-2.0
"""Where the RAS service of a job listens, by the environment of its processes on this node.

Only processes that the caller may look at are seen: their own, or all for root. An environment is a
user's word, so nothing but this host's loopback is taken from it: root must not connect wherever a
user wants.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.client import DEFAULT, Address, parse_address

_ENVIRON_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class RasPlaces:
    """Addresses of a job's services here, and why some of its processes have none."""

    addresses: tuple[Address, ...]
    problems: tuple[str, ...]


def _environments(proc: Path) -> Iterator[tuple[Path, dict[bytes, bytes]]]:
    for path in proc.iterdir():
        if not path.name.isdigit():
            continue
        try:
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


def find_places(job_id: int, proc: Path = Path("/proc")) -> RasPlaces:
    """Return where to ask for a job."""
    addresses: dict[Address, None] = {}
    problems: dict[str, None] = {}
    for process, environment in _environments(proc):
        if environment.get(b"SLURM_JOB_ID") != str(job_id).encode():
            continue
        if environment.get(b"NCCL_RAS_ENABLE") == b"0":
            problems["NCCL_RAS_ENABLE=0 switches the service off"] = None
            continue
        if _is_elsewhere(process, proc):
            problems["a process has a network namespace of its own: ask inside its container"] = (
                None
            )
            continue
        text = environment.get(b"NCCL_RAS_ADDR", DEFAULT.encode()).decode("utf-8", "replace")
        try:
            address = parse_address(text)
        except InspectorError as err:
            problems[f"NCCL_RAS_ADDR: {err}"] = None
            continue
        if _is_loopback(address.host):
            addresses[address] = None
        else:
            problems[f"NCCL_RAS_ADDR is {address}, not this host: give it as --address"] = None
    return RasPlaces(tuple(addresses), tuple(problems))
