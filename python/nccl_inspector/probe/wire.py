# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON over a TCP connection, in limits of size and time: how ranks and hub speak.

Every connection begins with the probe's key, because anybody may connect to an open port.
"""

import hmac
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.probe.errors import LostError
from nccl_inspector.system.checked_json import Checks, dump

KEY_BYTES = 32
LINE_BYTES_MAX = 1 << 16
_CHUNK_BYTES = 1 << 12
CHECKS = Checks("answer")
RANKS_MAX = 1 << 16
SECONDS_MAX = 1e6
Message = Mapping[str, Any]


def has_key(stream: socket.socket, key: bytes, seconds: float) -> bool:
    """Read the first bytes of a connection; tell whether they are the probe's key."""
    given, until_s = b"", time.monotonic() + seconds
    with suppress(OSError):
        while len(given) < len(key) and (left_s := until_s - time.monotonic()) > 0:
            stream.settimeout(left_s)
            part = stream.recv(len(key) - len(given))
            if not part:
                break
            given += part
    return hmac.compare_digest(given, key)


class Wire:
    """One end of a connection that has shown its key."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = stream
        self._data = b""

    def send(self, message: Message, seconds: float) -> None:
        """Send one line.

        Raises:
            LostError: the other end has gone, or does not read.
        """
        try:
            self.stream.settimeout(seconds)
            self.stream.sendall(dump(message) + b"\n")
        except OSError as err:
            raise LostError(f"the connection is lost: {err.strerror or err}") from err

    def receive(self, seconds: float) -> Message:
        """Return the next message.

        Raises:
            TimeoutError: none came in time.
            LostError: the other end has gone.
            RefusedError: what came is not a message.
        """
        until_s = time.monotonic() + seconds
        while (message := self.taken()) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.stream.settimeout(left_s)
            self.take()
        return message

    def take(self) -> None:
        """Take what has come.

        Raises:
            TimeoutError: nothing came within the time limit of the socket.
            LostError: the other end has gone.
            RefusedError: the line is too long.
        """
        try:
            data = self.stream.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise
        except OSError as err:
            raise LostError(f"the connection is lost: {err.strerror or err}") from err
        if not data:
            raise LostError("the connection was closed")
        self._data += data
        if len(self._data) > LINE_BYTES_MAX:
            raise RefusedError("answer", "a line is too long")

    def taken(self) -> Message | None:
        """Return a message if a whole one has been taken.

        Raises:
            RefusedError: the line is not a message.
        """
        line, end, rest = self._data.partition(b"\n")
        if not end:
            return None
        self._data = rest
        return CHECKS.table(CHECKS.load(line))

    def close(self) -> None:
        """Close the connection."""
        self.stream.close()
