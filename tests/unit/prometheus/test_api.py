# SPDX-License-Identifier: Apache-2.0
import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.prometheus import api as promapi
from nccl_inspector.prometheus.api import Api, PromSample, check_url

Serve = Callable[[int, bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers every POST the same; its URL."""
    servers = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def vector(*values: str) -> bytes:
    found = [{"metric": {"a": "b"}, "value": [1.0, value]} for value in values]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": found}}
    ).encode()


def failure(url: str) -> str:
    with pytest.raises(InspectorError) as caught:
        Api(url).query("up")
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_a_vector_is_taken_without_what_is_no_number(serve: Serve) -> None:
    found = Api(serve(200, vector("1.5", "NaN", "+Inf", "1e308", "-1e101"))).query("up")
    assert found == [PromSample({"a": "b"}, 1.5)]


def test_a_refusal_gives_the_servers_reason(serve: Serve) -> None:
    body = json.dumps({"status": "error", "error": "parse error\x1b[2J"}).encode()
    assert failure(serve(400, body)).endswith("HTTP 400 Bad Request: parse error?[2J")


def test_a_refusal_without_a_reason_is_its_number(serve: Serve) -> None:
    assert failure(serve(503, b"<html>")).endswith("HTTP 503 Service Unavailable")


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"[]", b"{}", b"\xff", b'{"status":"success","data":null}',
             vector("x"), vector("1").replace(b'"b"', b"1"), b"[" * 100_000,
             vector("1").replace(b'"1"', b"9" * 400)]
)  # fmt: skip
def test_what_is_no_answer_of_a_prometheus_is_said(serve: Serve, body: bytes) -> None:
    assert failure(serve(200, body)).endswith("not the answer of a Prometheus")


def test_an_endless_answer_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promapi, "_ANSWER_BYTES_MAX", 1000)
    assert "too long" in failure(serve(200, b" " * 5000))


def test_nobody_there_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert failure(f"http://127.0.0.1:{port}").endswith(f":{port}: Connection refused")


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promapi, "SOCKET_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "timed out" in failure(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_server_that_speaks_no_http_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as odd:

        def answer() -> None:
            peer, _ = odd.accept()
            peer.recv(1000)
            peer.sendall(b"220 smtp\r\n")
            peer.close()

        Thread(target=answer).start()
        assert failure(f"http://127.0.0.1:{odd.getsockname()[1]}")


@pytest.mark.parametrize(
    "url", ["", "x", "file:///etc/passwd", "ftp://h", "http://", "http://h:99999",
            "http://u:secret@h", "http://h/?a=b"]
)  # fmt: skip
def test_what_is_no_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InspectorError) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


def test_a_path_before_the_api_is_kept() -> None:
    assert check_url("https://h/prometheus/") == "https://h/prometheus"
