# SPDX-License-Identifier: Apache-2.0
"""The port of a probe is open to all: who has no key keeps no rank waiting."""

import secrets
import socket
import threading
from contextlib import ExitStack

import pytest

from nccl_inspector.probe import wire
from nccl_inspector.probe.hub import Hub
from nccl_inspector.probe.wire import KEY_BYTES
from nccl_inspector.system.checked_json import dump
from tests.support.processes import nothing_left

RANKS = 3


def join(port: int, key: bytes, rank: int) -> socket.socket:
    """Connect as a rank does."""
    stream = socket.create_connection(("127.0.0.1", port))
    said = {"rank": rank, "node": f"n{rank}", "local": 0, "device": "", "version": "", "offer": {}}
    stream.sendall(key + dump(said) + b"\n")
    return stream


def gathered(hub: Hub, key: bytes, stack: ExitStack) -> list[str]:
    """Return the nodes of the ranks that the hub has gathered within a few seconds."""

    def come() -> None:
        for rank in range(RANKS):
            stack.enter_context(join(hub.port, key, rank))

    thread = threading.Thread(target=come)
    thread.start()
    try:
        # Less than a single connection without the key may take.
        hub.gather(RANKS, wire.KEY_S * 0.8, lambda: "")
    finally:
        thread.join()
    return [rank.node for rank in hub.ranks]


@pytest.mark.parametrize("strangers", [8, 24, 200])
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.0\r\n\r\n", bytes(KEY_BYTES), b"x"])
def test_silent_connections_keep_no_rank_waiting(strangers: int, said: bytes) -> None:
    key = secrets.token_bytes(KEY_BYTES)
    with nothing_left(), Hub(key, "127.0.0.1") as hub, ExitStack() as stack:
        for _ in range(strangers):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port)))
            one.sendall(said)
        assert gathered(hub, key, stack) == ["n0", "n1", "n2"]


def test_beyond_a_number_the_oldest_stranger_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "STRANGERS_MAX", 4)
    key = secrets.token_bytes(KEY_BYTES)
    with Hub(key, "127.0.0.1") as hub, ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port)))
            for _ in range(20)
        ]
        assert gathered(hub, key, stack) == ["n0", "n1", "n2"]
        strangers[0].settimeout(5)
        assert strangers[0].recv(1) == b""
