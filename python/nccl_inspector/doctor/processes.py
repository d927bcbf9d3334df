# SPDX-License-Identifier: Apache-2.0
"""Daemons of this host: slurmd, slurmctld, node_exporter.

Several machines may share a table of processes (containers, our sandbox). So a daemon in our own
mount namespace counts first; one elsewhere counts only if there is none here.
"""

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BYTES_MAX = 1 << 16
_SYSTEM_UIDS, _NOBODY = 1000, 65534  # a user's process may have any name


@dataclass(frozen=True, slots=True)
class Running:
    """A process of a daemon; `is_here`: in our mount namespace."""

    pid: int
    name: str
    argv: tuple[str, ...]
    uid: int
    is_here: bool


def _namespace(pid: str) -> str:
    try:
        return str((_PROC / pid / "ns" / "mnt").readlink())
    except OSError:
        return ""


def _running(pid: str, names: frozenset[str], ours: str) -> Running | None:
    folder = _PROC / pid
    try:
        name = (folder / "comm").read_text("utf-8", "replace").strip()
        uid = folder.stat().st_uid
        if name not in names or _SYSTEM_UIDS <= uid != _NOBODY:
            return None
        with (folder / "cmdline").open("rb") as file:
            argv = file.read(_BYTES_MAX).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:  # it has ended
        return None
    namespace = _namespace(pid)
    return Running(int(pid), name, tuple(argv), uid, not namespace or namespace == ours)


def find_daemons(*names: str) -> tuple[Running, ...]:
    """Return the running daemons with these names (at most 15 characters, as the kernel has them).

    Raises:
        OSError: there is no /proc.
    """
    ours, wanted = _namespace("self"), frozenset(names)
    pids = [entry.name for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return tuple(found for pid in pids if (found := _running(pid, wanted, ours)))


def nearest(daemons: tuple[Running, ...], *names: str) -> tuple[Running, ...]:
    """Return those of these names in our mount namespace or, if there is none, all of them."""
    named = tuple(one for one in daemons if one.name in names)
    return tuple(one for one in named if one.is_here) or named
