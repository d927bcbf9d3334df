# SPDX-License-Identifier: Apache-2.0
"""The directory that the tasks of `analyze --slurm` share: made, removed, and found again.

A command that is killed cannot remove it. So it leaves a note beside the data of who it is, and the
next command of the same user removes what a dead one left. Whether a process lives can only be seen
on its own host, so what another host's left is named and stays.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.in_force import Process, this_process
from nccl_inspector.system.atomic import replace_path
from nccl_inspector.system.printable import visible

_PREFIX = ".nccl-inspector-analyze."
_OWNER = "owner"
OWNER_BYTES_MAX = 4096
_WRITES_S = 0.5  # for so long a task that is ended may still write
_NAMED_S = 24 * 3600.0  # so old is what is named, although its command may run on another host


def _check_shared(shared: Path) -> None:
    """Refuse a directory in which somebody else may put another one in the place of ours.

    Raises:
        InspectorError: it is one, or is not there.
    """
    try:
        found = shared.stat()
    except OSError as err:
        raise InspectorError(f"--shared: {shared}: {err.strerror}") from err
    others = stat.S_IWGRP | stat.S_IWOTH if os.geteuid() == 0 else stat.S_IWOTH
    is_ours = found.st_uid in (0, os.geteuid()) and not found.st_mode & others
    if not is_ours and not found.st_mode & stat.S_ISVTX:
        raise InspectorError(
            f"--shared: {shared}: others can rename what is in it; take a directory of your own"
        )


def refuse_others(work: Path) -> None:
    """Refuse a directory that others could have put there, and with it the plan.

    Raises:
        OSError: it is not ours alone, or others can rename what is above it.
    """
    own = work.stat(follow_symlinks=False)
    if own.st_uid != os.geteuid() or own.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "not a directory of this user alone")
    for above in work.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, f"others can rename what is in {above}")


def _read_owner(place: Path) -> tuple[str, Process] | None:
    """Return host name and process of the command that made a directory; None: not known."""
    try:
        fd = os.open(place / _OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = json.loads(file.read(OWNER_BYTES_MAX))
        said = found["process"]
        words = (str(said[key]) for key in ("start", "boot", "space"))
        return visible(str(found["host"])), Process(int(said["pid"]), *words)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(owner: Process) -> bool | None:
    """Tell whether a command still runs; None: it cannot be seen from here."""
    here = this_process()
    # The first namespaces have the same number on all hosts, so it does not tell the host.
    if not owner.boot or (owner.boot, owner.space) != (here.boot, here.space):
        return None
    return owner.is_there()


def _remove_if_left(place: Path, say: Callable[[str], None]) -> None:
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    owner = _read_owner(place)
    alive = _is_alive(owner[1]) if owner else None
    if alive is False:
        shutil.rmtree(place)
    elif alive is None and time.time() - found.st_mtime > _NAMED_S:
        where = f" on {owner[0]}" if owner else ""
        say(f"{place}: of another run{where}; remove it if that one has ended")


def _remove_left(shared: Path, say: Callable[[str], None]) -> None:
    """Remove what this user's dead commands left in a directory; name what is old and stays."""
    for place in sorted(shared.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # for example another command removes it, too
            _remove_if_left(place, say)


@contextmanager
def shared_work(shared: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Give a new directory below `shared`, which is removed at the end.

    What dead commands of this user left there is removed first.

    Raises:
        InspectorError: it cannot be made, or would not be safe there.
    """
    _check_shared(shared)
    shared = shared.absolute()
    _remove_left(shared, say)
    work = shared / f"{_PREFIX}{secrets.token_hex(4)}"
    note = {"host": os.uname().nodename, "process": asdict(this_process())}
    try:
        try:
            work.mkdir(mode=0o700)
            refuse_others(work)
            replace_path(work / _OWNER, json.dumps(note).encode(), 0o600)
        except OSError as err:
            raise InspectorError(f"--shared: {shared}: {err.strerror}") from err
        yield work
    finally:
        with suppress(OSError):  # a task that goes on for a moment may write once more
            shutil.rmtree(work)
        if work.exists():
            time.sleep(_WRITES_S)
            shutil.rmtree(work, ignore_errors=True)
        if work.exists():
            say(f"{work}: cannot be removed")
