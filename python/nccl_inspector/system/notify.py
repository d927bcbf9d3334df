# SPDX-License-Identifier: Apache-2.0
"""Tell systemd how a service of Type=notify is; without systemd nothing happens.

Children must not speak for the service: the address is taken out of the environment, and a forked
child that calls `send` all the same says nothing.
"""

import os
import socket
from contextlib import suppress

# How often in the watchdog's time a service says that it lives.
_BEATS = 4
_SEND_S = 1.0  # if systemd hangs itself, a message is lost and the service goes on


class Notifier:
    """The socket that systemd gave to this process."""

    def __init__(self) -> None:
        """Take the address out of the environment."""
        self._pid = os.getpid()
        address = os.environ.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        watchdog_us = os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", None)
        self.beat_s: float | None = None  # beat at least once in this time; None: nobody listens
        if self._address and watchdog_us.isdecimal():
            self.beat_s = int(watchdog_us) / 1e6 / _BEATS

    def ready(self) -> None:
        """Say that the service works from now on."""
        self._send("READY=1")

    def beat(self) -> None:
        """Say that the service's own loop goes on. Never call this from another thread."""
        if self.beat_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the service is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address or os.getpid() != self._pid:
            return
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        with suppress(OSError), socket.socket(socket.AF_UNIX, flags) as one:
            one.settimeout(_SEND_S)
            one.sendto(message.encode("ascii"), self._address)
