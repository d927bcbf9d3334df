# SPDX-License-Identifier: Apache-2.0
"""Speak with NCCL's RAS service, which each process of a job with NCCL 2.24 or later runs.

The protocol is lines over TCP (NCCL's src/ras/client_support.cc): a handshake, settings that are
answered with OK, and one request whose answer ends with the connection. Only requests that change
nothing are sent; the server's CONTROL is not among them. Whoever listens there may be anybody, so
time and size of an answer have limits.
"""

import ipaddress
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import is_host
from nccl_inspector.system.printable import printable

DEFAULT = "localhost:28028"
PROTOCOL = 2
GATHER_S = 5  # how long the server waits for the other processes of its job
_CONNECT_S = 2.0
_LINE_S = 5.0
_ANSWER_S = 60.0
ANSWER_BYTES_MAX = 256 << 20  # 16,384 ranks in 25 communicators
# Of the diagnostics: 16,384 processes, each with some twenty lines.
LINES_BYTES_MAX, LINES_MAX = 64 << 20, 1 << 19
LINE_BYTES_MAX = 1 << 16
_CHUNK_BYTES = 1 << 16
_PORT = re.compile(r"[0-9]{1,5}")


class RasError(InspectorError):
    """The service is not there, gives no answer in time, or refuses."""


class NobodyListensError(RasError):
    """No process listens at the address."""


class RefusedRequestError(RasError):
    """The service does not know the request: its NCCL is too old."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as NCCL_RAS_ADDR has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_place(host: str) -> bool:
    if is_host(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_address(text: str) -> Address:
    """Return the address in a text like `localhost:28028` or `[::1]:28028`.

    Raises:
        InspectorError: it is no such text.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (_is_place(host) and _PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise InspectorError(f"not an address like {DEFAULT}: {printable(text[:80])}")
    return Address(host, int(port))


class _Connection:
    """A connection after the handshake."""

    def __init__(self, stream: socket.socket, where: Address) -> None:
        self._stream, self._where = stream, where
        self._data = b""

    def _receive(self, until_s: float) -> bytes:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise RasError(f"{self._where}: no answer in time")
        self._stream.settimeout(left_s)
        try:
            return self._stream.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise RasError(f"{self._where}: no answer in time") from None
        except OSError as err:
            raise RasError(f"{self._where}: {err.strerror or err}") from err

    def send(self, request: str) -> None:
        """Send one line."""
        try:
            self._stream.settimeout(_LINE_S)
            self._stream.sendall(f"{request}\n".encode("ascii"))
        except OSError as err:
            raise RasError(f"{self._where}: {err.strerror or err}") from err

    def line(self, seconds: float = _LINE_S) -> str:
        """Return the next line, without its end."""
        until_s = time.monotonic() + seconds
        while b"\n" not in self._data:
            if len(self._data) > LINE_BYTES_MAX:
                raise RasError(f"{self._where}: this is not NCCL's RAS service")
            data = self._receive(until_s)
            if not data:
                raise RasError(f"{self._where}: the connection was closed")
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        return printable(line.decode("ascii", "replace").rstrip("\r"))

    def request(self, request: str) -> None:
        """Send a setting and expect OK.

        Raises:
            RefusedRequestError: the service does not know it.
            RasError: another answer, or none.
        """
        self.send(request)
        answer = self.line()
        if answer.startswith("ERROR: Unknown command"):
            raise RefusedRequestError(f"{self._where}: NCCL is too old for: {request}")
        if answer != "OK":
            raise RasError(f"{self._where}: {answer[:200]}")

    def rest(self, bytes_max: int) -> bytes:
        """Return all that comes until the service closes the connection."""
        until_s = time.monotonic() + _ANSWER_S
        parts, size = [self._data], len(self._data)
        while data := self._receive(until_s):
            parts.append(data)
            size += len(data)
            if size > bytes_max:
                raise RasError(f"{self._where}: more than {bytes_max >> 20} MiB")
        return b"".join(parts)

    def lines(self) -> Iterator[str]:
        """Yield line by line what comes, for as long as the service goes on."""
        self._stream.settimeout(None)
        data = self._data
        while True:
            *lines, data = data.split(b"\n")
            yield from (printable(line.decode("ascii", "replace")) for line in lines)
            try:
                more = self._stream.recv(_CHUNK_BYTES)
            except OSError as err:
                raise RasError(f"{self._where}: {err.strerror or err}") from err
            if not more or len(data) > LINE_BYTES_MAX:
                return
            data += more


@contextmanager
def connected(where: Address) -> Iterator[_Connection]:
    """Give a connection after the handshake.

    Raises:
        NobodyListensError: nobody listens there.
        RasError: it is not NCCL, or gives no answer in time.
    """
    try:
        stream = socket.create_connection((where.host, where.port), _CONNECT_S)
    except ConnectionRefusedError as err:
        raise NobodyListensError(f"{where}: nobody listens there") from err
    except OSError as err:
        why = "no answer in time" if isinstance(err, TimeoutError) else err.strerror or err
        raise RasError(f"{where}: {why}") from err
    with stream:
        connection = _Connection(stream, where)
        connection.send(f"CLIENT PROTOCOL {PROTOCOL}")
        if not connection.line().startswith("SERVER PROTOCOL "):
            raise RasError(f"{where}: this is not NCCL's RAS service")
        yield connection


def ask_status(where: Address) -> bytes:
    """Return the state of the job as JSON text.

    Raises:
        RasError: there is no service, or NCCL is older than 2.28.7.
    """
    with connected(where) as connection:
        connection.request(f"TIMEOUT {GATHER_S}")
        try:
            connection.request("SET FORMAT json")
        except RefusedRequestError:
            raise RefusedRequestError(
                f"{where}: its NCCL is older than 2.28.7 and has no JSON; ncclras prints its text"
            ) from None
        connection.send("STATUS")
        return connection.rest(ANSWER_BYTES_MAX)


def ask_diagnostics(where: Address) -> list[str]:
    """Return the lines of RAS' diagnostics: inventory, driver, ECC, Xid, environment, paths.

    Raises:
        RasError: there is no service, NCCL is older than 2.31, or another client asks just now.
    """
    with connected(where) as connection:
        connection.send("DIAGNOSTICS")
        first = connection.line(_ANSWER_S)  # the service goes on listening after a refusal
        if first.startswith("ERROR: Unknown command"):
            raise RefusedRequestError(
                f"{where}: its NCCL is older than 2.31 and has no diagnostics"
            )
        if first.startswith(("ERROR:", "BUSY:")):
            raise RasError(f"{where}: {first[:200]}")
        data = connection.rest(LINES_BYTES_MAX)
    if data.count(b"\n") > LINES_MAX:
        raise RasError(f"{where}: more than {LINES_MAX:,} lines")
    # Not splitlines, which ends a line at other characters, too.
    lines = data.decode("ascii", "replace").removesuffix("\n").split("\n")
    return [first, *(printable(line.removesuffix("\r")) for line in lines if data)]


def follow(where: Address, *, as_json: bool = False) -> Iterator[str]:
    """Yield lines about what happens to the job's processes, until the connection ends.

    `as_json`: the lines are those of JSON objects, one for each event.

    Raises:
        RasError: there is no service, or NCCL is older than 2.29.
    """
    with connected(where) as connection:
        try:
            if as_json:
                connection.request("SET FORMAT json")
            connection.request("MONITOR all")
        except RefusedRequestError:
            raise RefusedRequestError(
                f"{where}: its NCCL is older than 2.29 and cannot be followed"
            ) from None
        yield from connection.lines()
