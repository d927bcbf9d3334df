# SPDX-License-Identifier: Apache-2.0
"""Rings over TCP: the network between the hosts, where there is no GPU. This is not NCCL.

The bytes of a ring collective are moved, and nothing is added up. One thread and one connection to
each neighbour carry them, so the figure is what one core can move, or what the network carries.
"""

import fcntl
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from nccl_inspector.errors import RefusedError
from nccl_inspector.probe.backend import Offer, Place
from nccl_inspector.probe.errors import LostError, MemoryLackError, ProbeError
from nccl_inspector.probe.wire import CHECKS, Arrivals

_ADDRESS_OF: Final = 0x8915  # SIOCGIFADDR
_PART_BYTES = 1 << 20
_PATTERN = 251  # ranks that far apart fill their shares alike


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises:
        ProbeError: there is no such interface, or it has no such address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        try:
            answer = fcntl.ioctl(stream, _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
        except OSError as err:
            raise ProbeError(f"interface {name}: {err.strerror}") from err
    return socket.inet_ntoa(answer[20:24])


def _moved(move: Callable[[memoryview], int], part: memoryview) -> int:
    """Return how many bytes a call has sent or received; 0: none yet."""
    try:
        count = move(part)
    except BlockingIOError:
        return 0
    except OSError as err:
        raise LostError(f"a neighbour has gone: {err.strerror}") from err
    if not count:  # the end of what it sends
        raise LostError("a neighbour has gone")
    return count


class TcpBackend:
    """A rank of the ring."""

    device = version = ""

    def __init__(self, place: Place, host: str, limit_s: float) -> None:
        """Listen on `host`, an address of this node; `limit_s`: of every wait for another rank."""
        self._place, self._limit_s = place, limit_s
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family, backlog=16)
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None
        self._peer: socket.socket | None = None
        self._buffer, self._landing = bytearray(), bytearray()
        self._collective = ""

    def offer(self) -> Offer:
        """Return where this rank listens."""
        host, port = self._listening.getsockname()[:2]
        return {"host": host, "port": port}

    def join(self, first: Offer, following: Offer) -> None:
        """Connect to the next rank, and take the connection of the one before."""
        del first
        if self._place.ranks > 1:
            # The next rank's kernel accepts it, so that the order of both does not matter.
            self._next = self._connect(following)
            self._before = self._accept()

    def prepare(self, collective: str, buffer_bytes: int) -> None:
        """Fill this rank's share with its own pattern."""
        self._collective = collective
        try:
            self._buffer, self._landing = bytearray(), bytearray()
            self._buffer = bytearray(buffer_bytes)
            self._landing = bytearray(self._end(0) - self._begin(0) + 1)
        except MemoryError:
            raise MemoryLackError(f"no memory for {buffer_bytes:,} bytes") from None
        own = self._place.rank
        size = self._begin(own + 1) - self._begin(own)
        self._buffer[self._begin(own) : self._end(own)] = bytes([own % _PATTERN + 1]) * size

    def is_right(self) -> bool:
        """Tell whether each share came from the rank that it belongs to."""
        self._run()
        if self._collective == "ReduceScatter":
            return True  # what arrives stands for sums, which nobody makes
        shares = (
            (rank, self._buffer[self._begin(rank) : self._end(rank)])
            for rank in range(self._place.ranks)
        )
        return all(share.count(rank % _PATTERN + 1) == len(share) for rank, share in shares)

    def timed(self, operations: int) -> float:
        """Return the time from the barrier to the end of the last operation."""
        self._barrier()
        begin_s = time.perf_counter()
        for _ in range(operations):
            self._run()
        return time.perf_counter() - begin_s

    def meet(self, peer: int, offer: Offer) -> None:
        """Connect to a rank: the lower one calls, the higher one listens."""
        if self._peer:
            self._peer.close()
        self._peer = self._connect(offer) if self._place.rank < peer else self._accept()

    def passed(self, buffer_bytes: int, operations: int, *, sends: bool) -> float:
        """Move the buffers one way; the receiver's last word ends it for the sender, too."""
        if self._peer is None:
            raise ProbeError("no rank was met")
        try:
            if len(self._buffer) != buffer_bytes:
                self._buffer, self._landing = bytearray(buffer_bytes), bytearray()
        except MemoryError:
            raise MemoryLackError(f"no memory for {buffer_bytes:,} bytes") from None
        whole, nothing, word = memoryview(self._buffer), memoryview(b""), memoryview(bytearray(1))
        self._exchange(self._peer, memoryview(b"!"), self._peer, word)
        begin_s = time.perf_counter()
        for _ in range(operations):
            if sends:
                self._exchange(self._peer, whole, self._peer, nothing)
            else:
                self._exchange(self._peer, nothing, self._peer, whole)
        if sends:
            self._exchange(self._peer, nothing, self._peer, word)
        else:
            self._exchange(self._peer, memoryview(b"!"), self._peer, nothing)
        return time.perf_counter() - begin_s

    def close(self) -> None:
        """Close all connections."""
        for stream in (self._next, self._before, self._peer, self._listening):
            if stream:
                stream.close()

    def _begin(self, share: int) -> int:
        return len(self._buffer) * share // self._place.ranks

    def _end(self, share: int) -> int:
        return self._begin(share + 1)

    def _connect(self, offer: Offer) -> socket.socket:
        try:
            host, port = CHECKS.text(offer.get("host")), CHECKS.integer(offer.get("port"), 65535)
            stream = socket.create_connection((host, port), self._limit_s)
            stream.sendall(self._place.key)
        except TimeoutError:
            raise LostError(
                f"no connection to {offer.get('host')} in {self._limit_s:g} s"
            ) from None
        except (OSError, RefusedError) as err:
            raise ProbeError(f"no connection to {offer.get('host')}: {err}") from err
        return self._ready(stream)

    def _accept(self) -> socket.socket:
        until_s = time.monotonic() + self._limit_s
        with Arrivals(self._listening, self._place.key) as arrivals:
            while (left_s := until_s - time.monotonic()) > 0:
                for stream in arrivals.with_key(left_s)[:1]:
                    return self._ready(stream)
        raise LostError(f"no rank has connected in {self._limit_s:g} s")

    @staticmethod
    def _ready(stream: socket.socket) -> socket.socket:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setblocking(False)
        return stream

    def _barrier(self) -> None:
        """Return when all ranks have called it: a word needs that many steps around the ring."""
        word = memoryview(bytearray(1))
        for _ in range(self._place.ranks - 1):
            self._around(memoryview(b"!"), word)

    def _run(self) -> None:
        """Run the collective once: n - 1 steps around the ring, and for AllReduce twice as many."""
        own, count = self._place.rank, self._place.ranks
        whole, landing = memoryview(self._buffer), memoryview(self._landing)
        if self._collective in ("AllReduce", "ReduceScatter"):
            for step in range(1, count):
                out, into = (own - step) % count, (own - step - 1) % count
                size = self._end(into) - self._begin(into)
                self._around(whole[self._begin(out) : self._end(out)], landing[:size])
        if self._collective in ("AllReduce", "AllGather"):
            for step in range(count - 1):
                out, into = (own - step) % count, (own - step - 1) % count
                self._around(
                    whole[self._begin(out) : self._end(out)],
                    whole[self._begin(into) : self._end(into)],
                )

    def _around(self, out: memoryview, into: memoryview) -> None:
        if self._next and self._before:
            self._exchange(self._next, out, self._before, into)

    def _exchange(
        self, to: socket.socket, out: memoryview, source: socket.socket, into: memoryview
    ) -> None:
        """Send all of `out` and fill all of `into`, at the same time."""
        sent = received = 0
        until_s = time.monotonic() + self._limit_s
        while sent < len(out) or received < len(into):
            before = sent + received
            if sent < len(out):
                part = out[sent : sent + _PART_BYTES]
                sent += _moved(to.send, part)
            if received < len(into):
                room = into[received : received + _PART_BYTES]
                received += _moved(source.recv_into, room)
            if sent + received > before:
                until_s = time.monotonic() + self._limit_s
                continue
            waiting = select.select(
                [source] if received < len(into) else [],
                [to] if sent < len(out) else [],
                [],
                max(0.0, until_s - time.monotonic()),
            )
            if not any(waiting):
                raise LostError(f"nothing has moved for {self._limit_s:g} s")
