# SPDX-License-Identifier: Apache-2.0
"""Write to shared storage through a child process that has become another account.

Root is often squashed on shared storage, and a dead file server must not stop the agent. The child
may hang; the agent waits for it only as long as its calls of `wait` say.
"""

import os
import pwd
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.system.acl import allow
from nccl_inspector.system.atomic import replacing
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.safe_files import open_directory

DONE = b"done"
DONE_WITHOUT_ACL = (
    b"done, but the file system has no access lists: only the service account and root can read it"
)

CHILD_S = 60
_MESSAGE_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class Target:
    """Where a file goes (`<directory>/<job_id>/<name>`) and who may read it."""

    directory: Path
    job_id: int
    name: str
    reader_uid: int | None
    reader_gid: int | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """A running child; `deadline` is a time of time.monotonic()."""

    pid: int
    pipe_fd: int
    deadline: float


def write_report_file(target: Target, data: bytes) -> bytes:
    """Write the file, readable by one more user or group; return DONE or DONE_WITHOUT_ACL.

    Raises:
        OSError: it could not be written.
    """
    reports_fd = os.open(target.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(FileExistsError):
        os.mkdir(str(target.job_id), 0o700, dir_fd=reports_fd)
    job_fd = open_directory(str(target.job_id), reports_fd)
    with replacing(job_fd, target.name, f".{os.getpid()}") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        shared = allow(file.fileno(), 0o6, target.reader_uid, 0o4, target.reader_gid)
        shared = allow(job_fd, 0o7, target.reader_uid, 0o5, target.reader_gid) and shared
    return DONE if shared else DONE_WITHOUT_ACL


def _become(account: pwd.struct_passwd) -> None:
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _child(pipe_fd: int, user: str, where: str, work: Callable[[], bytes]) -> None:
    signal.alarm(CHILD_S)
    try:
        if user:
            _become(pwd.getpwnam(user))  # may hang with the directory service
        message = work()
    except KeyError:
        message = f"report_user: there is no account {user!r}".encode("ascii", "replace")
    except OSError as err:
        message = f"{err.filename or where}: {err.strerror}".encode("ascii", "replace")
    except InspectorError as err:
        message = str(err).encode("ascii", "replace")
    os.write(pipe_fd, message[:_MESSAGE_BYTES_MAX])


def start(user: str, where: str, work: Callable[[], bytes]) -> Child:
    """Start the child; it runs as `user` if we are root, otherwise as ourselves.

    `work` returns the message; an OSError or InspectorError that it raises becomes the message.
    `where`: what it writes to, for errors that do not say it.

    Raises:
        OSError: no process or pipe could be made.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    account = user if os.geteuid() == 0 else ""
    try:
        pid = start_child(partial(_child, writing, account, where, work), [writing])
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Child(pid, reading, time.monotonic() + CHILD_S + 5)


def wait(child: Child, seconds: float) -> bytes | None:
    """Return the child's message (empty: it died), or None if it has not answered within `seconds`.

    A child past its deadline is killed: the next call returns an empty message, or None again if
    the child hangs in the file system and cannot die. After an answer, `reap` collects the child.
    """
    poll = select.poll()
    poll.register(child.pipe_fd, select.POLLIN)
    if poll.poll(seconds * 1000):
        message = os.read(child.pipe_fd, _MESSAGE_BYTES_MAX)
        os.close(child.pipe_fd)
        return message
    if time.monotonic() > child.deadline:
        with suppress(OSError):  # it may run as another account by now
            os.kill(child.pid, signal.SIGKILL)
    return None


def reap(pids: Iterable[int]) -> list[int]:
    """Collect children that have answered and ended; return the pids that have not ended yet."""
    return [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
