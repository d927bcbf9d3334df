# SPDX-License-Identifier: Apache-2.0
"""Paths of users that are not opened for a while, because a process hung when it opened one.

The file system that hangs is that of the path, or of whatever a link leads to: the user decides.
Therefore the user's paths are avoided. The paths of all users on a mount are avoided only if
several users' paths have hung on it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

AVOID_S = 3600.0
MOUNT_USERS_MIN = 3
_PLACES_MAX = 10_000
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes blanks: as octal numbers


def read_mounts() -> list[str]:
    """Return all mount points, from the kernel's table; no file system is accessed."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    return [_OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines]


def mount_of(path: Path, mounts: Iterable[str]) -> str:
    """Return the mount that a path lies on, judged only by its name; links are not followed."""
    above = {str(one) for one in PurePosixPath(path).parents} | {str(path)}
    return max((mount for mount in mounts if mount in above), key=len, default="/")


@dataclass(frozen=True, slots=True)
class Hung:
    """A user's path on which a process hung, and until when to avoid it (time.monotonic())."""

    uid: int
    mount: str
    until_s: float


class Avoided:
    """The users and mounts to avoid."""

    def __init__(self) -> None:
        """Begin with nothing to avoid."""
        self._hung: dict[int, Hung] = {}

    def add(self, uid: int, path: Path, now_s: float) -> None:
        """Remember that a process hung when it opened this path of a user."""
        self.remember(uid, mount_of(path, read_mounts()), now_s + AVOID_S, now_s)

    def remember(self, uid: int, mount: str, until_s: float, now_s: float) -> None:
        """Avoid a user's paths until a time, because one on this mount hung; times as in Hung."""
        self._forget(now_s)
        if len(self._hung) < _PLACES_MAX:
            self._hung[uid] = Hung(uid, mount, min(until_s, now_s + AVOID_S))

    def _forget(self, now_s: float) -> None:
        self._hung = {uid: one for uid, one in self._hung.items() if one.until_s > now_s}

    def why_not(self, uid: int, path: Path, now_s: float) -> str:
        """Return why a path must not be opened; empty if it may be opened."""
        self._forget(now_s)
        if uid in self._hung:
            hung = self._hung[uid]
            return f"not opened: a file of this user on {hung.mount} did not answer"
        mount = mount_of(path, read_mounts())
        users = sum(one.mount == mount for one in self._hung.values())
        return f"not opened: {mount} did not answer" if users >= MOUNT_USERS_MIN else ""

    def listed(self, now_s: float) -> list[Hung]:
        """Return what is avoided now, sorted by user."""
        self._forget(now_s)
        return sorted(self._hung.values(), key=lambda one: one.uid)
