# SPDX-License-Identifier: Apache-2.0
"""The socket on which systemd listens to its services."""

import socket
from typing import Self


class Listener:
    """A socket at a path, or with '@' in front in the abstract name space."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def heard(self) -> list[str]:
        """Return the messages since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found
