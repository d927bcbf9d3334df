# SPDX-License-Identifier: Apache-2.0
"""A child process of the agent: it does one thing, and has nothing of the agent's but that."""

import os
import signal
from collections.abc import Callable, Iterable


def start_child(work: Callable[[], None], kept: Iterable[int]) -> int:
    """Fork, and return the child's pid; the child does `work` and ends, with 0 if that returned.

    What it creates is its own user's alone, unless it says otherwise.
    `kept`: the descriptors above 2 that stay open there. The agent's directories are not for
    whoever the child becomes, its lock must not outlive it in a child that hangs, and a signal
    must not be written to what has the number of the agent's pipe by then.

    Raises:
        OSError: no process could be had.
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
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    numbers = sorted(kept)
    for low, high in zip([2, *numbers], [*numbers, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
