# SPDX-License-Identifier: Apache-2.0
"""The socket on which systemd listens to its services."""

import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self


class Listener:
    """A socket with '@' in front in the abstract name space; by default at a path of its own.

    An address has 107 bytes at most, and TMPDIR may be longer.
    """

    def __init__(self, address: str = "") -> None:
        self._folder = TemporaryDirectory(prefix="nccl-inspector-notify-", dir="/tmp")
        self.address = address = address or str(Path(self._folder.name) / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._folder.cleanup()

    def heard(self) -> list[str]:
        """Return the messages since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found
