# SPDX-License-Identifier: Apache-2.0
"""Lines of JSON over a TCP connection, in limits of size and time: how ranks and hub speak.

Every connection begins with the probe's key, because anybody may connect to an open port.
"""

import hmac
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from nccl_inspector.errors import RefusedError
from nccl_inspector.probe.errors import LostError
from nccl_inspector.system.checked_json import Checks, dump

KEY_BYTES = 32
LINE_BYTES_MAX = 1 << 16
KEY_S = 5.0  # for the key, from the connection on
STRANGERS_MAX = 4096  # connections at a time that have not shown it
BACKLOG = 1024
_CHUNK_BYTES = 1 << 12
CHECKS = Checks("answer")
RANKS_MAX = 1 << 16
SECONDS_MAX = 1e6
Message = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not shown the key."""

    stream: socket.socket
    until_s: float
    given: bytes = b""


class Arrivals:
    """New connections, all read at once: who does not show the key keeps nobody waiting.

    Each has KEY_S for it. Beyond STRANGERS_MAX the one that has waited longest is hung up on.
    """

    def __init__(self, listening: socket.socket, key: bytes) -> None:
        listening.setblocking(False)
        self._listening, self._key = listening, key
        self._strangers: dict[_Stranger, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in list(self._strangers):
            self._hang_up(one)
        self._selector.close()

    def with_key(self, seconds: float) -> list[socket.socket]:
        """Return the connections that have shown the key, after at most so long."""
        found = []
        for ready, _ in self._selector.select(seconds):
            if ready.data is None:
                self._accept()
            elif ready.data in self._strangers and self._shows_key(ready.data):
                self._forget(ready.data)
                ready.data.stream.setblocking(True)
                found.append(ready.data.stream)
        now = time.monotonic()
        for one in [one for one in self._strangers if one.until_s < now]:
            self._hang_up(one)
        return found

    def _accept(self) -> None:
        with suppress(OSError):  # none is left
            for _ in range(BACKLOG):
                stream, _ = self._listening.accept()
                if len(self._strangers) >= STRANGERS_MAX:
                    self._hang_up(next(iter(self._strangers)))
                stream.setblocking(False)
                one = _Stranger(stream, time.monotonic() + KEY_S)
                self._strangers[one] = None
                self._selector.register(stream, selectors.EVENT_READ, one)

    def _shows_key(self, one: _Stranger) -> bool:
        try:
            part = one.stream.recv(len(self._key) - len(one.given))
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        one.given += part
        if not part:
            self._hang_up(one)
        if len(one.given) < len(self._key):
            return False
        if not hmac.compare_digest(one.given, self._key):
            self._hang_up(one)
            return False
        return True

    def _forget(self, one: _Stranger) -> None:
        del self._strangers[one]
        self._selector.unregister(one.stream)

    def _hang_up(self, one: _Stranger) -> None:
        self._forget(one)
        one.stream.close()


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
