# SPDX-License-Identifier: Apache-2.0
"""The lock of a queue's directory: of the services on one host, or on shared storage, one works."""

import fcntl

from nccl_inspector.controller.queue import Queue


class QueueLock:
    """The lock of a queue's directory; closing the queue releases it."""

    words = "another controller service works on this queue"

    def __init__(self, queue: Queue) -> None:
        """Lock nothing yet."""
        self._fd, self._is_held = queue.lock_fd, False

    @property
    def is_held(self) -> bool:
        """Whether we have the lock; takes it if it is free."""
        if not self._is_held:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._is_held = True
        return True

    def beat(self) -> None:
        """Do nothing: the lock ends with the process."""

    def close(self) -> None:
        """Release the lock; the next look takes it again."""
        self._is_held = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
