# SPDX-License-Identifier: Apache-2.0
"""The lock of a queue: of all services that share its files, one at a time holds it.

It is the lock of the file `state/lock`. Network storage keeps such a lock for all its hosts, but
the lock of a directory for each host alone. The directory `queue` is locked as well: older releases
lock only that, and some storage keeps no locks of files at all.
"""

import errno
import fcntl
import os
from contextlib import suppress

from nccl_inspector.controller.queue import Queue

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o640
# What flock says on NFS without a service for locks, and on Lustre mounted without `flock`.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
BUSY = "another controller service works on this queue"


class QueueLock:
    """The lock of a queue; `close` releases it, before the queue is closed."""

    def __init__(self, queue: Queue) -> None:
        """Lock nothing yet."""
        self.path, self._queue_fd = queue.lock_path, queue.lock_fd
        self._fd = -1  # of the file, while we hold its lock
        self.words = BUSY

    @property
    def is_held(self) -> bool:
        """Whether we have the lock; takes it if it is free."""
        if self._fd < 0:
            try:
                self._take()
            except BlockingIOError:
                self.words = BUSY
            except OSError as err:
                self.words = f"{self.path}: {err.strerror}"
        return self._fd >= 0

    def _take(self) -> None:
        """Take both locks.

        Raises:
            BlockingIOError: somebody else has one of them.
            OSError: the file cannot be opened or locked.
        """
        fcntl.flock(self._queue_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fd = -1
        try:
            fd = os.open(self.path, _FLAGS, _MODE)
            _lock(fd)
        except OSError:
            if fd >= 0:
                os.close(fd)
            fcntl.flock(self._queue_fd, fcntl.LOCK_UN)
            raise
        with suppress(OSError):  # another account has made it
            os.fchmod(fd, _MODE)
        self._fd = fd

    def beat(self) -> None:
        """Do nothing: the lock ends with the process."""

    def give_way(self) -> None:
        """Do nothing: the lock is kept until `close`."""

    def close(self) -> None:
        """Release the lock; the next look at `is_held` takes it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            fcntl.flock(self._queue_fd, fcntl.LOCK_UN)


def _lock(fd: int) -> None:
    """Lock a file, if its storage has locks.

    Raises:
        BlockingIOError: somebody else has its lock.
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        if err.errno not in _NO_LOCKS:
            raise
