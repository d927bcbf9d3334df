# SPDX-License-Identifier: Apache-2.0
"""Start a child process of the agent that does one thing and inherits only what that needs."""

import errno
import faulthandler
import os
import signal
from collections.abc import Callable, Iterable

# What a system that is short of processes, memory or descriptors says. It passes.
SHORT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def start_child(work: Callable[[], None], kept: Iterable[int]) -> int:
    """Fork and return the child's pid; the child runs `work` and exits with 0 if that returned.

    Files that the child creates are for its own user only, unless it sets other rights. `kept`: the
    descriptors above 2 that stay open in the child. All others are closed: the account that the
    child switches to must not reach the agent's directories, a child that hangs must not hold the
    agent's lock, and Python must not write a signal to a descriptor that has got the number of the
    agent's wakeup pipe.

    Raises:
        OSError: no process could be started.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _leave_the_agent(kept)
        work()
        status = 0
    finally:
        os._exit(status)


def _leave_the_agent(kept: Iterable[int]) -> None:
    # systemd's watchdog sends SIGABRT to all; only the service itself writes its stack then.
    faulthandler.disable()
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    numbers = sorted(kept)
    for low, high in zip([2, *numbers], [*numbers, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
