# SPDX-License-Identifier: Apache-2.0
"""Ask `scontrol ping` which of Slurm's controllers answer, in a child and without waiting for it.

A host that is down costs scontrol 8 s and more, and scontrol itself may be on storage that hangs.
"""

import os
import re
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nccl_inspector.slurm.command import Command
from nccl_inspector.system.child_process import start_child

ASK_S = 5.0  # from one question to the next, if the first one is over
ANSWER_S = 120.0
_LOOK_S = 0.2
_BYTES_MAX = 4096
_LINE = re.compile(r"^Slurmctld\([a-z0-9]+\) at (\S+) is (UP|DOWN)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """The hosts of slurm.conf's SlurmctldHost in their order, without domains; who works.

    `working`: the first one that is up. A standby answers, too, but a slurmctld takes control as
    soon as it sees none before it in the list; the first one takes it whenever it starts.
    """

    hosts: tuple[str, ...]
    working: str


def short_name(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0].lower()


def parse_ping(text: str) -> Answer | None:
    """Return what `scontrol ping` printed; None if it is no answer, or none of them is up."""
    found = [(short_name(host), state) for host, state in _LINE.findall(text)]
    working = next((host for host, state in found if state == "UP"), "")
    return Answer(tuple(host for host, _ in found), working) if working else None


class SlurmPing:
    """Asks again and again, one question at a time."""

    def __init__(self, scontrol: Path) -> None:
        """Ask nothing yet."""
        self._scontrol = scontrol
        self._child: int | None = None
        self._way: socket.socket | None = None  # to the child that asks
        self._data = b""
        self._next_s = 0.0

    def heard(self, now_s: float) -> tuple[Answer | None, ...]:
        """Return an answer if one has come, and ask again if it is time.

        None in place of an answer: scontrol failed. `now_s`: of time.monotonic().
        """
        if self._way is None:
            if now_s >= self._next_s and self._is_reaped():
                self._ask()
                self._next_s = now_s + ASK_S
            return ()
        try:
            data = self._way.recv(_BYTES_MAX)
        except BlockingIOError:
            return ()
        except OSError:
            data = b""
        self._data += data
        if data:
            return ()
        self._way.close()
        self._way = None
        return (parse_ping(self._data.decode("utf-8", "replace")),)

    def _is_reaped(self) -> bool:
        """Whether the last child has ended."""
        if self._child is not None:
            with suppress(ChildProcessError):
                if not os.waitpid(self._child, os.WNOHANG)[0]:
                    return False
            self._child = None
        return True

    def _ask(self) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # no descriptor is free: another time
            return
        try:
            self._child = start_child(partial(_answer, theirs, self._scontrol), [theirs.fileno()])
        except OSError:  # no process could be started: another time
            ours.close()
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._way, self._data = ours, b""

    def close(self) -> None:
        """Give up; the child ends by itself."""
        if self._way is not None:
            self._way.close()
            self._way = None


def _answer(way: socket.socket, scontrol: Path) -> None:
    """In the child: send what scontrol prints, or nothing if it fails."""
    command = Command(scontrol, "ping")
    until_s = time.monotonic() + ANSWER_S
    while (said := command.said()) is None:
        is_unwanted = select.select([way], [], [], _LOOK_S)[0]
        if is_unwanted or time.monotonic() >= until_s:
            command.stop()
            return
    if said.status == 0:
        way.sendall(said.output.encode("utf-8", "replace")[:_BYTES_MAX])
