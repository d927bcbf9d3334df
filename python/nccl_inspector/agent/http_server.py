# SPDX-License-Identifier: Apache-2.0
"""Answer `GET /metrics` to anybody, with bounded memory whatever the clients do.

There is one thread and at most CONNECTIONS_MAX connections. If there are more, the connection that
has waited longest is closed, so that a client that holds connections open keeps no scraper out.
"""

import asyncio
import gzip
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from nccl_inspector.agent.prom_page import Page
from nccl_inspector.exposition.metrics import load_metrics

CONNECTIONS_MAX = 128
HEAD_BYTES_MAX = 8192
HEAD_S, ANSWER_S = 5.0, 20.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Connections that may be accepted before the excess ones are closed.
_ACCEPTED_AT_ONCE = 32
_CHUNK_BYTES = 64 << 10
_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S{1,2048}) HTTP/1\.[01]\r\n")
_GZIP = re.compile(rb"\r\nAccept-Encoding:[^\r\n]*\bgzip\b(?!;q=0[,\r])", re.IGNORECASE)
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class _Own(Collector):
    """The endpoint's own counters."""

    def __init__(self, who: Mapping[str, str]) -> None:
        self._who = dict(who)
        self.requests: Counter[str] = Counter()  # by code
        self.dropped: Counter[str] = Counter()  # by reason

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the families, with HELP from the table."""
        for what, label, counts in (
            ("requests", "code", self.requests),
            ("dropped_connections", "reason", self.dropped),
        ):
            name = f"nccl_inspector_agent_http_{what}_total"
            labels = [*self._who, label]
            family = CounterMetricFamily(name, load_metrics()[name].help, labels=labels)
            for value, count in sorted(counts.items()):
                family.add_metric([*self._who.values(), value], count)
            yield family


class Server:
    """The connections of one listening socket."""

    def __init__(self, page: Page, who: Mapping[str, str]) -> None:
        """Serve this page, and our own counters with the labels `who`."""
        self._page = page
        self._own = _Own(who)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._own)
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def serve(self, listener: socket.socket, end: asyncio.Event) -> None:
        """Serve until `end` is set; then the socket is closed."""
        server = await asyncio.start_server(
            self._handle, sock=listener, limit=HEAD_BYTES_MAX, backlog=_ACCEPTED_AT_ONCE
        )
        await end.wait()
        server.close()
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            # Its task is not cancelled: asyncio would log that, and a client could fill the log.
            oldest = next(iter(self._open))
            self._drop(oldest, "crowded")
        self._open[writer] = None
        try:
            await self._converse(reader, writer)
        except TimeoutError:
            self._drop(writer, "slow")
        except asyncio.LimitOverrunError:
            self._drop(writer, "too_long")
        except (asyncio.IncompleteReadError, ConnectionError):
            self._drop(writer, "gone")
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _drop(self, writer: asyncio.StreamWriter, reason: str) -> None:
        """End a connection and count it once; data that a slow client has not taken are dropped."""
        if writer in self._open:
            del self._open[writer]
            self._own.dropped[reason] += 1
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(ANSWER_S):
            for part in self._answer(head):
                for at in range(0, len(part), _CHUNK_BYTES):
                    writer.write(part[at : at + _CHUNK_BYTES])
                    await writer.drain()
            writer.write_eof()
            await reader.read(1)  # wait until the client has everything and closes

    def _answer(self, head: bytes) -> list[memoryview]:
        """Return the head and body of the answer."""
        request = _REQUEST.match(head)
        if request is None:
            return self._reply(400, b"not understood\n")
        if request[1] not in (b"GET", b"HEAD"):
            return self._reply(405, b"GET /metrics\n", b"Allow: GET, HEAD\r\n")
        if request[2].partition(b"?")[0] != b"/metrics":
            return self._reply(404, b"GET /metrics\n")
        self._own.requests["200"] += 1
        packed = _GZIP.search(head) is not None
        parts = [self._page.text(packed=packed)]
        own = generate_latest(self._registry)
        # A gzip stream may have several members; the large one is compressed only once.
        parts.append(gzip.compress(own, 1, mtime=0) if packed else own)
        more = b"Content-Encoding: gzip\r\n" if packed else b""
        return _message(200, parts, more, with_body=request[1] == b"GET")

    def _reply(self, code: int, body: bytes, more: bytes = b"") -> list[memoryview]:
        self._own.requests[str(code)] += 1
        return _message(code, [body], more, with_body=True)


def _message(code: int, parts: list[bytes], more: bytes, *, with_body: bool) -> list[memoryview]:
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {sum(map(len, parts))}\r\nConnection: close\r\n"
    ).encode("ascii")
    return [memoryview(part) for part in [head + more + b"\r\n", *(parts if with_body else [])]]
