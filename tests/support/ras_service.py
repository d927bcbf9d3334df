# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NCCL's RAS service: its answers are those of real ones, which were recorded.

`recorded_ras/` has what the libraries of NCCL 2.28.9 and 2.32.3 answered to STATUS with three
ranks, before and 70 s after the third was killed, and what 2.32.3 answered to MONITOR (as JSON) and
DIAGNOSTICS with two ranks of which one was killed. Which release knows which request is from NCCL's
src/ras/client_support.cc (2.24 to 2.30) and from asking 2.27.7, 2.28.9 and 2.32.3.
"""

import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nccl_inspector.ras.client import Address

EVENT = b"[now] PEER_DEAD: Process 7\x1b[2J on node n2\n"
RECORDED = Path(__file__).parent / "recorded_ras"


def recorded(name: str, suffix: str = ".json") -> bytes:
    """Return a recorded answer, such as `dead-2.32.3`."""
    return (RECORDED / f"{name}{suffix}").read_bytes()


class RasService:
    """What the service says, and what it was asked. `answers`: to one STATUS after the other."""

    def __init__(self, release: tuple[int, int, int], answers: Sequence[bytes]) -> None:
        self.release = release
        self.asked: list[str] = []
        self.events = recorded("events-2.32.3", ".txt")
        self.diagnostics = b"n1:7 NCCL DIAG [OK]   Xid/SXid: no events\x07\n"
        self._answers = list(answers)
        self._is_json = False

    def answer(self, request: str) -> tuple[bytes, bool]:
        """Return the answer to a line, and whether the connection ends then."""
        self.asked.append(request)
        word = request.lower()
        if word.startswith("client protocol "):
            return b"SERVER PROTOCOL 2\n", False
        if word.startswith("timeout ") and word.split()[1].isdigit():
            return b"OK\n", False
        if word == "set format json" and self.release >= (2, 28, 7):
            self._is_json = True
            return b"OK\n", False
        if word in ("status", "verbose status"):
            return (self._next() if self._is_json else b"NCCL version 2\n\nJob summary\n"), True
        if word.startswith("monitor") and self.release >= (2, 29, 2):
            return b"OK\n" + (self.events if self._is_json else EVENT), True
        if word == "diagnostics" and self.release >= (2, 31, 2):
            return self.diagnostics, True
        return f"ERROR: Unknown command {request}\n".encode(), False

    def _next(self) -> bytes:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@contextmanager
def listening(handle: Callable[[socketserver.StreamRequestHandler], None]) -> Iterator[Address]:
    """Give the address of a server on loopback that handles each connection so."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            handle(self)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(service: RasService) -> Iterator[Address]:
    """Give the address at which the service answers."""

    def handle(handler: socketserver.StreamRequestHandler) -> None:
        for line in handler.rfile:
            data, ends = service.answer(line.decode().rstrip("\n"))
            handler.wfile.write(data)
            if ends:
                return

    with listening(handle) as address:
        yield address
