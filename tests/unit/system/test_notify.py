# SPDX-License-Identifier: Apache-2.0
"""What a service says to systemd, and who does not say it."""

import os
import socket
from collections.abc import Iterator

import pytest

from nccl_inspector.system.notify import Notifier
from tests.support.systemd_socket import Listener


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest) -> Iterator[Listener]:
    address = "" if request.param == "path" else f"@test-{os.getpid()}"
    with Listener(address) as one:
        yield one


def notifier(
    monkeypatch: pytest.MonkeyPatch, systemd: Listener, watchdog_us: str = "4000000"
) -> Notifier:
    for name, value in (
        ("NOTIFY_SOCKET", systemd.address),
        ("WATCHDOG_USEC", watchdog_us),
        ("WATCHDOG_PID", str(os.getpid())),
    ):
        monkeypatch.setenv(name, value)
    return Notifier()


def test_systemd_hears_each_message(monkeypatch: pytest.MonkeyPatch, systemd: Listener) -> None:
    one = notifier(monkeypatch, systemd)
    assert one.beat_s == 1.0
    one.ready()
    one.beat()
    one.stopping()
    assert systemd.heard() == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_children_inherit_neither_the_address_nor_a_voice(
    monkeypatch: pytest.MonkeyPatch, systemd: Listener
) -> None:
    one = notifier(monkeypatch, systemd)
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
    pid = os.fork()
    if not pid:
        one.ready()
        one.beat()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert systemd.heard() == []


@pytest.mark.parametrize("watchdog_us", ["", "x", "-1"])
def test_without_a_watchdog_nothing_beats(
    monkeypatch: pytest.MonkeyPatch, systemd: Listener, watchdog_us: str
) -> None:
    one = notifier(monkeypatch, systemd, watchdog_us)
    one.beat()
    one.ready()
    assert (one.beat_s, systemd.heard()) == (None, ["READY=1"])


def test_without_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setattr(socket, "socket", None)
    one = Notifier()
    one.ready()
    one.beat()
    assert one.beat_s is None


@pytest.mark.parametrize("address", ["/nonexistent/notify", "relative", "@" + "x" * 200])
def test_a_socket_that_is_not_there_stops_no_service(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    Notifier().ready()
