# SPDX-License-Identifier: Apache-2.0
"""The agent's HTTP endpoint: a child process that runs as nobody and only reads `prom/`.

Clients cannot stop the agent from publishing, and no client ever talks to a process of root.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from nccl_inspector.agent.http_server import CONNECTIONS_MAX, Server
from nccl_inspector.agent.prom_access import groups_of_reader
from nccl_inspector.agent.prom_page import Page
from nccl_inspector.errors import InspectorError
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.safe_files import open_directory

log = logging.getLogger("nccl-inspector")

_NOBODY = 65534
_FILES_MAX = 4 * CONNECTIONS_MAX
_NICE = 5


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a setting that settings/config.py has checked."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(address: str) -> socket.socket:
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(CONNECTIONS_MAX)
        one.setblocking(False)
    except OSError as err:
        one.close()
        raise InspectorError(f"listen = {address}: {err.strerror}") from err
    return one


async def _run(listener: socket.socket, alive_fd: int, server: Server) -> None:
    end = asyncio.Event()
    # The agent has the other end of the pipe, which closes when the agent ends, in whatever way.
    asyncio.get_running_loop().add_reader(alive_fd, end.set)
    await server.serve(listener, end)


def _child(
    listener: socket.socket, alive_fd: int, prom_fd: int, who: Mapping[str, str], stale_s: float
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES_MAX, _FILES_MAX))
    os.nice(_NICE)
    if os.geteuid() == 0:
        os.setgroups(groups_of_reader(prom_fd))
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    asyncio.run(_run(listener, alive_fd, Server(Page(prom_fd, stale_s), who)))


class Endpoint:
    """The listening socket, and the child that answers on it."""

    def __init__(self, address: str, run_fd: int, who: Mapping[str, str], stale_s: float) -> None:
        """Listen and start the child, or if that is not possible yet, let `keep` do it.

        `who`: the labels of its own metrics.

        `stale_s`: once the agent has renewed nothing for so long, only these are shown.

        Raises:
            InspectorError: the address cannot be used.
        """
        self.address = address
        self._run_fd = run_fd
        self._who, self._stale_s = who, stale_s
        self._listener = _listen(address)
        self._pid = 0
        self._alive_fd = -1
        try:
            self._start()
        except OSError as err:
            log.warning("the HTTP endpoint cannot be started yet: %s", err)  # `keep` tries again

    def keep(self) -> None:
        """Start the child again if it has ended.

        Raises:
            OSError: no process could be started; the next call tries again.
        """
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            log.warning("the HTTP endpoint ended with status %d and is started again", code)
            self._gone()
        self._start()

    def change(self, who: Mapping[str, str], stale_s: float) -> None:
        """Use other labels and another limit from now on; the address stays bound meanwhile."""
        self._who, self._stale_s = who, stale_s
        self._kill()

    def _gone(self) -> None:
        os.close(self._alive_fd)
        self._pid, self._alive_fd = 0, -1

    def _kill(self) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # it has nothing to save
            os.waitpid(self._pid, 0)
            self._gone()

    def close(self) -> None:
        """End the child and free the address."""
        self._listener.close()
        self._kill()

    def _start(self) -> None:
        with ExitStack() as passed_on:  # closed here when the child has them
            prom_fd = open_directory("prom", self._run_fd)
            passed_on.callback(os.close, prom_fd)
            reading, alive_fd = os.pipe2(os.O_CLOEXEC)
            passed_on.callback(os.close, reading)
            work = partial(_child, self._listener, reading, prom_fd, self._who, self._stale_s)
            try:
                self._pid = start_child(work, [self._listener.fileno(), reading, prom_fd])
            except OSError:
                os.close(alive_fd)
                raise
            self._alive_fd = alive_fd
